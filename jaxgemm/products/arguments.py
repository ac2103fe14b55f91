"""What callers pass, checked and brought into one form; an error says what was given and what was wanted."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import dtypes
from jaxgemm.epilogue import ACTIVATIONS
from jaxgemm.kernels import configuration, find_kernel

Options = tuple[tuple[str, int], ...]


def promoted_pair(a: ArrayLike, b: ArrayLike, *, apart: bool = False) -> tuple[jax.Array, jax.Array, bool]:
    """Both as arrays of the type that jnp promotes them to, and whether jnp's product of them is weakly typed.

    ``apart``: two types of 8 bits that are multiplied as they are stay as they are.
    """
    x, y = as_array("a", a), as_array("b", b)
    given = x.dtype, y.dtype
    if not (_is_multiplied(given[0]) and _is_multiplied(given[1])):
        raise TypeError(f"a and b: expected numbers or booleans, got {given[0]} and {given[1]}")
    weak_x, weak_y = x.weak_type, y.weak_type
    if given[0] == given[1] and not (weak_x and weak_y):
        return x, y, False
    if apart and dtypes.stay_apart(*given):
        return _as(x, given[0]), _as(y, given[1]), False
    dtype = np.dtype(jnp.result_type(x, y))
    # Operands are bound as strongly typed, and the result is made weak at the end: a product that is composed of jnp's
    # functions would lose the weakness on its way.
    x, y = _as(x, dtype), _as(y, dtype)
    return x, y, (weak_x or weak_y) and _is_weak_sum(given[0], weak_x, given[1], weak_y)


def pair_for_type(a: ArrayLike, b: ArrayLike) -> tuple[jax.Array, jax.Array, np.dtype, bool]:
    """Both as arrays, the type of jnp's product of them, and whether that product is weakly typed.

    They have that type, but two integers of 8 bits, one signed, are not widened to 16 bits: the product of their values
    is the same. jnp's error for types that it promotes to none, as two of 8-bit floats.
    """
    x, y = as_array("a", a), as_array("b", b)
    if dtypes.stay_apart(x.dtype, y.dtype) and not (x.weak_type or y.weak_type):
        return x, y, np.dtype(jnp.result_type(x, y)), False
    x, y, weak = promoted_pair(x, y)
    return x, y, np.dtype(x.dtype), weak


def promoted(name: str, values: Sequence[ArrayLike]) -> tuple[list[jax.Array], bool]:
    """All as arrays of the type that jnp promotes them to, and whether that is weak."""
    arrays = [as_array(name, value) for value in values]
    types = {x.dtype for x in arrays}
    if not all(map(_is_multiplied, types)):
        raise TypeError(f"{name}: expected numbers or booleans, got {', '.join(sorted(map(str, types)))}")
    if len(types) == 1 and not all(x.weak_type for x in arrays):
        return arrays, False
    dtype, weak = jax.dtypes.result_type(*arrays, return_weak_type_flag=True)
    return [_as(x, dtype) for x in arrays], bool(weak)


def of_one_type(x: jax.Array, y: jax.Array, out: np.dtype | None = None) -> tuple[jax.Array, jax.Array]:
    """Both operands in one type, as kernels take them; unchanged if they stay apart or jnp promotes them to no type.

    It is the type that jnp promotes both operands and ``out``, the result's type if given, to. Without ``out``, an
    int32 beside a bfloat16 would be rounded to bfloat16, but ``lax.dot_general`` into float32 multiplies it in float32.
    """
    common = dtypes.common(x.dtype, y.dtype)
    if common is None or dtypes.stay_apart(x.dtype, y.dtype):
        return x, y
    wide = common if out is None else dtypes.common(common, out) or common
    return _as(x, wide), _as(y, wide)


def for_cotangent(ct: jax.Array, known: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A cotangent and an operand in the type that their product is one of, as :func:`of_one_type` has them.

    An 8-bit float takes the type of a wider float, which holds it; jnp promotes them to none.
    """
    wide = dtypes.multiplied(ct.dtype, known.dtype)
    return of_one_type(ct, known) if wide is None else (_as(ct, wide), _as(known, wide))


def _as(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """The array in a type, and not weakly; the array itself if it has that type already.

    JAX would convert it even then if it is differentiated as it runs, and ``jax.debug_nans`` would look at all of the
    result, also at parts that a product of groups never reads.
    """
    done = isinstance(x, jax.Array) and x.dtype == dtype and not x.weak_type
    return x if done else lax.convert_element_type(x, dtype)


@cache
def _is_multiplied(dtype: np.dtype) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_)


@cache
def _is_weak_sum(a: np.dtype, weak_a: bool, b: np.dtype, weak_b: bool) -> bool:
    """Whether what jnp computes of arrays of these types is weak: of a weak float and a strong integer it is."""
    scalars = [jax.ShapeDtypeStruct((), t, weak_type=weak) for t, weak in ((a, weak_a), (b, weak_b))]
    return bool(jax.eval_shape(jnp.add, *scalars).weak_type)


def gives_way(x: Any) -> bool:
    """Whether an argument is missing, or of a type that gives way to others: a Python number, or a weak array."""
    return x is None or bool(getattr(x, "weak_type", type(x) in (int, float)))


def weakly_typed(x: jax.Array) -> jax.Array:
    """The array with a type that gives way to others, as a Python number's does."""
    weak: jax.Array = lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)
    return weak


def result_dtype(given: DTypeLike | None, operand: np.dtype) -> np.dtype:
    """The result's type, ``given`` as ``out_dtype``; TypeError if it is of another kind than the operands'."""
    if given is None:
        return dtypes.default_result(np.dtype(operand))
    out = canonical_dtype(given)
    for kind in (jnp.integer, jnp.floating, jnp.complexfloating):
        if jnp.issubdtype(operand, kind) != jnp.issubdtype(out, kind):
            given_types = f"{out.name} for {np.dtype(operand).name} operands"
            raise TypeError(f"gemm: out_dtype {given_types}; both must be of one kind")
    return out


def static_scaling(name: str, value: ArrayLike, accumulator: np.dtype, out: np.dtype) -> float | None:
    """The value if it is a number that can be part of the program; None if it is an array.

    The number is rounded to the accumulator's type, in which kernels apply it, so that every path applies the same
    number. ``out`` is the result's type.
    """
    if value is None or isinstance(value, (bool, str)):
        raise TypeError(f"gemm: {name} must be a real number or a scalar array, got {value!r}")
    if isinstance(value, numbers.Real) or (isinstance(value, np.generic) and np.isrealobj(value)):
        number = float(value)
        if number in (0.0, 1.0):  # exact in every type, and what most calls pass
            return number
        if jnp.issubdtype(accumulator, jnp.integer):
            limits = np.iinfo(accumulator)
            if number != number or not limits.min <= number <= limits.max or number != int(number):
                raise ValueError(f"gemm: {name} is {value}; an integer product takes an integer {name} of its type")
            return number
        with np.errstate(over="ignore", under="ignore"):
            return float(np.dtype(accumulator).type(number)) if jnp.issubdtype(accumulator, jnp.floating) else number
    array = as_array(f"gemm: {name}", value)
    if array.ndim != 0 or not jnp.issubdtype(array.dtype, jnp.number):
        raise TypeError(f"gemm: {name} must be a real number or a scalar array, got {array.dtype}{array.shape}")
    same_kind(name, array, accumulator)
    unmixed(array, out)
    return None


def as_array(name: str, value: ArrayLike) -> jax.Array:
    """The value as an array; TypeError if it is none."""
    if isinstance(value, jax.Array):
        return value
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name}: expected an array, got {type(value).__name__}: {error}") from None


def canonical_dtype(given: DTypeLike) -> np.dtype:
    """The type, with 64 bits narrowed to 32 where ``jax_enable_x64`` is off, as JAX narrows arrays."""
    try:
        return np.dtype(jax.dtypes.canonicalize_dtype(given))
    except TypeError:
        raise TypeError(f"out_dtype or preferred_element_type: expected an element type, got {given!r}") from None


def asked_dtype(given: DTypeLike | None, default: np.dtype) -> np.dtype:
    """The type that is asked for, or else the default."""
    return default if given is None else canonical_dtype(given)


def dot_dtype(given: DTypeLike | None, lhs: np.dtype, rhs: np.dtype) -> np.dtype:
    """The type that is asked for, or else the one that ``lax.dot_general`` gives."""
    return dtypes.product(lhs, rhs) if given is None else canonical_dtype(given)


def same_kind(name: str, x: jax.Array, result: np.dtype, function: str = "gemm") -> None:
    """TypeError if converting ``x`` to the result's type would drop a fraction or an imaginary part."""
    if x.dtype == result:
        return
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)

    def rank(dtype: Any) -> int:
        return next(i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))

    if rank(x.dtype) > rank(result):
        raise TypeError(f"{function}: {name} {x.dtype} for a result of {result.name}; both must be of one kind")


def unmixed(x: jax.Array, result: np.dtype) -> None:
    """Under ``jax.numpy_dtype_promotion("strict")`` jnp's error if an array and the result differ in type."""
    if x.dtype != result and jax.config.jax_numpy_dtype_promotion == "strict":  # type: ignore[attr-defined]
        jnp.result_type(x, result)


def broadcast(c: ArrayLike, shape: tuple[int, ...], out: np.dtype) -> jax.Array:
    """``c`` in the shape of the result, whose type is ``out``."""
    array = as_array("c", c)
    same_kind("c", array, out)
    unmixed(array, out)
    if array.shape == shape:
        return array
    try:
        return jnp.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"gemm: c of shape {array.shape} does not broadcast to the result's {shape}") from None


def as_bias(function: str, bias: ArrayLike, shape: tuple[int, ...], meaning: str, out: np.dtype) -> jax.Array:
    """``bias`` as an array for a result of type ``out``; ValueError, with ``meaning``, if its shape is another."""
    array = as_array("bias", bias)
    same_kind("bias", array, out, function)
    unmixed(array, out)
    if array.shape != shape:
        raise ValueError(f"{function}: bias must have shape {shape}, {meaning}, got {array.shape}")
    return array


def check_activation(function: str, activation: str | None) -> None:
    """ValueError, in the name of the function or layer that was given it, for an activation that does not exist."""
    if activation is not None and activation not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        raise ValueError(f"{function}: activation: got {activation!r}, expected None or one of {names}")


def check_activation_of(function: str, activation: str | None, out: np.dtype) -> None:
    """ValueError for an activation that does not exist, or that a result of this type does not take."""
    check_activation(function, activation)
    if activation not in (None, "relu") and jnp.issubdtype(out, jnp.integer):
        raise ValueError(f"{function}: activation {activation!r} of an integer product; integers take relu only")


def no_epilogue_of_booleans(function: str, *given: bool) -> None:
    """TypeError if any part of an epilogue is given, for a product of booleans."""
    if any(given):
        raise TypeError(
            f"{function}: a product of booleans is a boolean, and takes no alpha, beta, c, bias or activation; convert "
            "the operands first"
        )


def float_operands(function: str, of_8bit: str = "", **named: ArrayLike) -> tuple[list[jax.Array], bool]:
    """The operands as arrays of one floating-point type, and whether jnp's product of them is weakly typed.

    ``of_8bit``: what the TypeError of other operands says if some have 8 bits.
    """
    arrays = [as_array(f"{function}: {name}", value) for name, value in named.items()]
    dtype = jnp.result_type(*arrays)
    if not jnp.issubdtype(dtype, jnp.floating):
        names = ", ".join(x.dtype.name for x in arrays)
        hint = of_8bit if any(dtypes.is_8bit(x.dtype) for x in arrays) else ""
        raise TypeError(f"{function}: expected floating-point operands, got {names}{hint}")
    # Not weakly typed: composed products would lose that.
    return [_as(x, dtype) for x in arrays], all(map(gives_way, arrays))


def float_result(name: str, given: DTypeLike | None, operands: np.dtype) -> np.dtype:
    """The type of a result, by default that of the operands; TypeError if it is no floating-point type."""
    out = asked_dtype(given, operands)
    if not jnp.issubdtype(out, jnp.floating):
        raise TypeError(f"{name} must be a floating-point type, got {out.name}")
    return out


def check_kernel(kernel: str, batch_invariant: bool = False, *, products: str = "product does") -> None:
    """ValueError for a kernel that does not exist, or if XLA's ``products`` are asked to be batch-invariant."""
    if kernel not in ("auto", "xla"):
        find_kernel(kernel)
    if kernel == "xla" and batch_invariant:
        raise ValueError(f"batch_invariant: XLA's {products} not promise it, got kernel='xla'")


def option_pairs(kernel: str, given: dict[str, Any], function: str = "gemm") -> Options:
    """The options as sorted (name, value) pairs; a tuple value is spread over options named ``tile_m`` etc.

    Raises:
        TypeError, ValueError: the kernel has no such options. The message names ``function``, to which they were given.
    """
    if not given:
        return ()
    if kernel in ("auto", "xla"):
        raise ValueError(f"{function}: options {', '.join(given)} need a kernel by name, got kernel={kernel!r}")
    row = find_kernel(kernel)
    pairs: dict[str, int] = {}
    for name, value in given.items():
        if isinstance(value, (tuple, list)):
            names = [option for option in row.options if option.startswith(f"{name}_")]
            if len(names) != len(value):
                raise ValueError(
                    f"{function}: option {name} of kernel '{kernel}' takes {len(names)} values, got {value!r}"
                )
            pairs.update(zip(names, value, strict=True))
        else:
            pairs[name] = value
    configuration(row, tuple(pairs.items()))  # raises if the kernel lacks an option
    for name, value in pairs.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{function}: option {name} must be an integer, got {value!r}")
    return tuple(sorted((name, int(value)) for name, value in pairs.items()))
