"""Poison around every buffer of a kernel's call, so that accesses out of bounds change the result.

While :func:`guarded` is open, programs that are lowered copy each operand between two margins of NaN (of a pattern for
integers), and give each result and each workspace a larger buffer that is full of poison. XLA calls a handler of this
module, which calls jaxgemm's with the addresses and sizes of the inner parts. So jaxgemm's handler sees the call that
it would see otherwise, and checks it as strictly.

Seen are reads past either end of an operand that get into a result, as NaN; elements of the result that are not
written, as NaN; writes into the margins of the result or of the workspace, as a result that is :data:`SENTINEL`
throughout; and a workspace that is taken to be zero. Not seen are reads whose values are dropped, writes into operands,
accesses further than a margin from the buffer, and those that stay inside of it, which give wrong numbers at most.
compute-sanitizer sees the dropped and the far ones (tests/sanitize.py). Where XLA computes a product, nothing is
guarded.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from math import prod
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm._runtime import (
    GATED_TARGET,
    GROUPED_GATED_TARGET,
    GROUPED_TARGET,
    MANY_TARGET,
    SCALED_TARGET,
    TARGET,
    ffi,
)

#: Bytes before and after every buffer. Whole multiples of what XLA aligns buffers to, so that the inner part is aligned
#: as a buffer of its own would be.
MARGIN = 4096
PREFIX = "guarded_"
#: The calls that are guarded.
TARGETS = (TARGET, GATED_TARGET, GROUPED_TARGET, GROUPED_GATED_TARGET, SCALED_TARGET, MANY_TARGET)
#: What all of a result is where a kernel wrote outside of it; exact in every type.
SENTINEL = {"f": -12288.0, "i": -559038737}

#: Bits of the poison by type: quiet NaNs that no arithmetic makes, and patterns.
_BITS = {
    "float64": np.uint64(0x7FF8A5A5A5A5A5A5),
    "float32": np.uint32(0x7FC5A5A5),
    "float16": np.uint16(0x7EA5),
    "bfloat16": np.uint16(0x7FE5),
    "int32": np.uint32(0x5A5A5A5A),
    "int8": np.uint8(0x5A),
    "uint8": np.uint8(0xFF),  # the workspace as well, where it is NaN in every float
    "float8_e4m3fn": np.uint8(0x7F),
    "float8_e5m2": np.uint8(0x7E),
}
#: XLA_FFI_DataType's numbers for what kernels take, and their bytes.
_ITEM_BYTES = {2: 1, 4: 4, 6: 1, 10: 2, 11: 4, 12: 8, 16: 2, 19: 1, 20: 1}


# --- The call as XLA makes it: xla/ffi/api/c_api.h --------------------------------------------------------------


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _List(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("items", ctypes.POINTER(ctypes.c_void_p)),
    )


class _Frame(ctypes.Structure):
    """The part of a call that changes."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("api", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("operands", _List),
        ("results", _List),
    )


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

#: Errors of the code below, which runs where none can be raised.
errors: list[str] = []


def _copy(kind: type[ctypes.Structure], at: int) -> tuple[Any, Any]:
    """A structure as large as the one at the address says it is, which a newer XLA may have made larger; and its
    memory.
    """
    memory = ctypes.create_string_buffer(ctypes.string_at(at, kind.from_address(at).struct_size))
    return kind.from_buffer(memory), memory


def _inner(at: int, kept: list[Any]) -> int:
    """The address of a buffer like the one at this address, without its margins."""
    buffer, memory = _copy(_Buffer, at)
    count = prod(buffer.dims[i] for i in range(buffer.rank))
    dims = (ctypes.c_int64 * 1)(count - 2 * MARGIN // _ITEM_BYTES[buffer.dtype])
    buffer.data = (buffer.data or 0) + MARGIN  # there may be none yet where a call is only prepared
    buffer.rank, buffer.dims = 1, dims
    kept += [memory, dims]
    return ctypes.addressof(buffer)


def _inner_call(at: int, kept: list[Any]) -> int:
    """The address of the call that the handler gets; what it points at goes to ``kept``."""
    frame, memory = _copy(_Frame, at)
    # The last operands are the poison that results lie in.
    frame.operands.size -= frame.results.size
    for buffers in (frame.operands, frame.results):
        found = (ctypes.c_void_p * buffers.size)(*(_inner(buffers.items[i], kept) for i in range(buffers.size)))
        buffers.items = found
        kept.append(found)
    kept.append(memory)
    return ctypes.addressof(frame)


def _guarding(handler: Callable[[int], int | None]) -> Callable[[int], int | None]:
    def call(at: int) -> int | None:
        kept: list[Any] = []
        try:
            # XLA asks for a handler's traits by a call without buffers.
            inner = _inner_call(at, kept) if _Frame.from_address(at).operands.size else at
        except Exception as error:
            errors.append(repr(error))
            inner = at  # refused by the handler, as it has buffers too many
        return handler(inner)

    return call


def _pointer(capsule: object) -> int:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer(capsule, name(capsule))


def _register() -> list[Any]:
    """Register the handlers, as early as jaxgemm does its own. They must live as long as the process."""
    handlers: list[Any] = []
    stages: dict[tuple[str, str], dict[str, object]] = {}
    for target, platform, stage, capsule in ffi.registrations():
        handlers.append(_HANDLER(_guarding(_HANDLER(_pointer(capsule)))))
        stages.setdefault((target, platform), {})[stage] = jax.ffi.pycapsule(handlers[-1])
    for (target, platform), by_stage in stages.items():
        jax.ffi.register_ffi_target(PREFIX + target, by_stage, platform=platform)
    return handlers


_HANDLERS = _register()


# --- The call as the program makes it ---------------------------------------------------------------------------


def _poison(count: int, dtype: Any) -> jax.Array:
    bits = _BITS[np.dtype(dtype).name]
    return lax.bitcast_convert_type(lax.full((count,), bits), dtype)


def _in_poison(x: jax.Array) -> jax.Array:
    margin = MARGIN // np.dtype(x.dtype).itemsize
    value = _BITS[np.dtype(x.dtype).name].reshape(1).view(x.dtype)[0]
    return lax.pad(lax.reshape(x, (x.size,)), value, [(margin, margin, 0)])


def _written(x: jax.Array) -> jax.Array:
    """Whether the margins of a buffer are not poison any more, by their bits."""
    margin, bits = MARGIN // np.dtype(x.dtype).itemsize, _BITS[x.dtype.name]
    words = lax.bitcast_convert_type(x, bits.dtype)
    ends = lax.concatenate([lax.slice(words, (0,), (margin,)), lax.slice(words, (x.size - margin,), (x.size,))], 0)
    return lax.reduce(lax.ne(ends, lax.full_like(ends, bits)), False, lax.bitwise_or, (0,))


def _call(original: Any, target: str, results: Any, operands: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    wide = [_in_poison(x) for x in operands]
    around = [_poison(prod(x.shape) + 2 * MARGIN // np.dtype(x.dtype).itemsize, x.dtype) for x in results]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in around]
    aliases = {len(wide) + i: i for i in range(len(around))}
    outputs = original(PREFIX + target, shapes, input_output_aliases=aliases)(*wide, *around, **attributes)
    written = _written(outputs[0])
    for x in outputs[1:]:
        written = lax.bitwise_or(written, _written(x))
    count = len(operands) // 2 if target == MANY_TARGET else 1  # what follows is a workspace
    own = [_result(x, of.shape, written) for x, of in zip(outputs[:count], results[:count], strict=True)]
    return [*own, *outputs[count:]]


def _result(x: jax.Array, shape: tuple[int, ...], written: jax.Array) -> jax.Array:
    """A result out of its buffer, or the sentinel."""
    size, margin = prod(shape), MARGIN // np.dtype(x.dtype).itemsize
    d = lax.reshape(lax.slice(x, (margin,), (margin + size,)), shape)
    sentinel = SENTINEL["i" if jnp.issubdtype(d.dtype, jnp.integer) else "f"]
    return lax.select(lax.broadcast(written, d.shape), lax.full_like(d, sentinel), d)


@contextlib.contextmanager
def counted(*, poisoned: bool = False) -> Iterator[list[str]]:
    """The list gets the kernels that programs which are lowered meanwhile call."""
    original, called = jax.ffi.ffi_call, []

    def ffi_call(target: str, results: Any, **keywords: Any) -> Any:
        if target not in TARGETS:
            return original(target, results, **keywords)

        def call(*operands: Any, **attributes: Any) -> Any:
            called.append(attributes["kernel"])
            if poisoned:
                return _call(original, target, results, operands, attributes)
            return original(target, results, **keywords)(*operands, **attributes)

        return call

    with mock.patch.object(jax.ffi, "ffi_call", ffi_call):
        yield called


def guarded() -> contextlib.AbstractContextManager[list[str]]:
    """Guards the calls of programs that are lowered meanwhile. The list gets the kernels that they call."""
    return counted(poisoned=True)


def wrote_outside(result: np.ndarray) -> bool:
    """Whether a guarded call's result says that its kernel wrote into the margins."""
    sentinel = SENTINEL["i" if np.issubdtype(result.dtype, np.integer) else "f"]
    return result.size > 0 and bool(np.all(result == result.dtype.type(sentinel)))
