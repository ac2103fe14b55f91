"""Which element types there are, and what each product accumulates and returns in.

None of this depends on the promotion that a program allows itself (``jax.numpy_dtype_promotion``): that is for what a
caller mixes, not for what a product does inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class ElementType:
    """A type that some kernel takes as an operand or writes as a result.

    Attributes:
        name: NumPy's, or that of ml_dtypes.
        short: what commands and tables call it, as in "bf16".
        bytes: of an element.
        accumulator: the type in which products of such operands are summed.
        result: what a product of such operands is returned in unless asked for in another type.
        tensor: the rate in :data:`jaxgemm.roofline.RATES` at which tensor cores multiply such operands; empty for a
            type that is no kernel's operand.
        plain: the unit that does so at full precision where no tensor core does; empty where none is counted.
    """

    name: str
    short: str
    bytes: int
    accumulator: str
    result: str
    tensor: str = ""
    plain: str = ""


#: By name, in the order of their numbers in ffi/dtype.h, which is the same table for C++ and CUDA.
ELEMENT_TYPES: Mapping[str, ElementType] = MappingProxyType(
    {
        t.name: t
        for t in (
            ElementType("float64", "f64", 8, "float64", "float64", tensor="fp64", plain="fp64"),
            ElementType("float32", "f32", 4, "float32", "float32", tensor="tf32", plain="fp32"),
            ElementType("float16", "f16", 2, "float32", "float16", tensor="16-bit"),
            ElementType("bfloat16", "bf16", 2, "float32", "bfloat16", tensor="16-bit"),
            ElementType("int8", "s8", 1, "int32", "int32", tensor="8-bit"),
            ElementType("uint8", "u8", 1, "int32", "int32", tensor="8-bit"),
            ElementType("int32", "s32", 4, "int32", "int32"),
            ElementType("float8_e4m3fn", "e4m3", 1, "float32", "float32", tensor="8-bit"),
            ElementType("float8_e5m2", "e5m2", 1, "float32", "float32", tensor="8-bit"),
        )
    }
)

#: The names of those that some kernel takes as an operand.
OPERANDS = tuple(t.name for t in ELEMENT_TYPES.values() if t.tensor)

_KINDS = (jnp.integer, jnp.floating, jnp.complexfloating)


@cache
def named(name: str) -> np.dtype:
    """The type of this name, NumPy's or ml_dtypes'."""
    return np.dtype(jnp.dtype(name))


def is_8bit(dtype: np.dtype) -> bool:
    """Whether some kernel takes operands of this type, and its elements have 8 bits."""
    known = ELEMENT_TYPES.get(dtype.name)
    return known is not None and known.tensor == "8-bit"


@cache  # asked for at every product that is traced
def accumulator(dtype: np.dtype) -> np.dtype:
    """The type in which products of ``dtype`` are summed: at least 32 bits, also for types that no kernel takes."""
    if known := ELEMENT_TYPES.get(dtype.name):
        return named(known.accumulator)
    if dtype.itemsize >= 4 or not jnp.issubdtype(dtype, jnp.number):
        return dtype
    return np.dtype(np.int32 if jnp.issubdtype(dtype, jnp.integer) else np.float32)


@cache
def default_result(dtype: np.dtype) -> np.dtype:
    """What ``gemm`` returns when ``out_dtype`` is not given: 8- and 16-bit integers widen to int32."""
    if known := ELEMENT_TYPES.get(dtype.name):
        return named(known.result)
    return accumulator(dtype) if jnp.issubdtype(dtype, jnp.integer) else dtype


@cache
def stay_apart(a: np.dtype, b: np.dtype) -> bool:
    """Whether two types are multiplied as they are, though they differ: of 8 bits each, both integers or both floats.

    jnp would widen such integers to 16 bits, and takes no two types of 8-bit floats.
    """
    same_kind = jnp.issubdtype(a, jnp.integer) == jnp.issubdtype(b, jnp.integer)
    return is_8bit(a) and is_8bit(b) and a != b and same_kind


@cache
def product(lhs: np.dtype, rhs: np.dtype) -> np.dtype:
    """What ``lax.dot_general`` of these types returns unless told otherwise; TypeError where it takes no such pair."""
    if lhs == rhs:
        return lhs
    scalars = jax.ShapeDtypeStruct((), lhs), jax.ShapeDtypeStruct((), rhs)
    out = jax.eval_shape(lambda x, y: lax.dot_general(x, y, (((), ()), ((), ()))), *scalars)
    dtype: np.dtype = out.dtype
    return dtype


@cache
def summed(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> np.dtype:
    """The type that a product is kept in until it is rounded to ``out``, once.

    It is the accumulator's, unless that cannot hold what ``out`` can: then it is ``out``, as in ``lax.dot_general``.
    """
    kept = accumulator(product(lhs, rhs))
    same_kind = all(jnp.issubdtype(kept, kind) == jnp.issubdtype(out, kind) for kind in _KINDS)
    return kept if same_kind and out.itemsize <= kept.itemsize else out


@cache
def common(a: np.dtype, b: np.dtype) -> np.dtype | None:
    """The type that jnp promotes both to by default; None where it promotes them to none, as 8-bit floats."""
    if a == b:
        return a
    with jax.numpy_dtype_promotion("standard"):
        try:
            return np.dtype(jnp.promote_types(a, b))
        except ValueError:
            return None


@cache
def multiplied(a: np.dtype, b: np.dtype) -> np.dtype | None:
    """The type in which two are multiplied: ``common``; of an 8-bit float of a kernel's and a wider float the wider.

    It holds every number of the 8-bit float.
    """
    narrow, wide = sorted((a, b), key=lambda x: x.itemsize)
    floats = is_8bit(narrow) and jnp.issubdtype(narrow, jnp.floating) and jnp.issubdtype(wide, jnp.floating)
    return wide if floats and wide.itemsize > 1 else common(a, b)


def of_cotangent(wanted: np.dtype, result: np.dtype) -> np.dtype:
    """The type of the product that is an operand's cotangent, if the forward product's result has the type ``result``.

    It is the operand's, ``wanted``; for 8-bit floats it is lax's, which is then rounded: no kernel writes these, and
    XLA would round operands to the result's type first.
    """
    return result if wanted.itemsize == 1 else wanted
