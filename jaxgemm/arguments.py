"""What callers pass, checked and brought into one form; an error says what was given and what was wanted."""

from __future__ import annotations

import numbers
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import dtypes
from jaxgemm.kernels import find_kernel
from jaxgemm.select import configuration

Options = tuple[tuple[str, int], ...]


def floating_pair(name_a: str, a: ArrayLike, name_b: str, b: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Both as arrays of their common type."""
    x, y = as_array(name_a, a), as_array(name_b, b)
    given = x.dtype, y.dtype
    same = given[0] == given[1]
    dtype = given[0] if same else jnp.promote_types(*given)
    if not _is_number(dtype):
        raise TypeError(f"{name_a} and {name_b}: expected numbers, got {given[0]} and {given[1]}")
    return (x, y) if same else (x.astype(dtype), y.astype(dtype))


@cache
def _is_number(dtype: np.dtype) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.number))


def result_dtype(name: str, given: DTypeLike | None, operand: np.dtype) -> np.dtype:
    """The result's type; TypeError if it is of another kind than the operands'."""
    if given is None:
        return dtypes.default_result(np.dtype(operand))
    out = canonical_dtype(given)
    for kind in (jnp.integer, jnp.floating, jnp.complexfloating):
        if jnp.issubdtype(operand, kind) != jnp.issubdtype(out, kind):
            raise TypeError(f"gemm: {name} {out.name} for {np.dtype(operand).name} operands; both must be of one kind")
    return out


def static_scaling(name: str, value: ArrayLike, accumulator: np.dtype) -> float | None:
    """The value if it is a number that can be part of the program; None if it is an array.

    It is rounded to the accumulator's type, in which kernels apply it, so that every path applies the same one.
    """
    if value is None or isinstance(value, (bool, str)):
        raise TypeError(f"gemm: {name} must be a real number or a scalar array, got {value!r}")
    if isinstance(value, numbers.Real) or (isinstance(value, np.generic) and np.isrealobj(value)):
        number = float(value)
        if number in (0.0, 1.0):  # what most calls have is its own rounding in every type
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
    return None


def as_array(name: str, value: ArrayLike) -> jax.Array:
    """The value as an array; TypeError if it is none."""
    if isinstance(value, jax.Array):
        return value
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected an array, got {type(value).__name__}: {error}") from None


def canonical_dtype(given: DTypeLike) -> np.dtype:
    """The type, with 64 bits narrowed to 32 where ``jax_enable_x64`` is off, as JAX narrows arrays."""
    return np.dtype(jax.dtypes.canonicalize_dtype(given))


def same_kind(name: str, x: jax.Array, result: np.dtype) -> None:
    """TypeError if converting ``x`` to the result's type would drop a fraction or an imaginary part."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)

    def rank(dtype: Any) -> int:
        return next(i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))

    if rank(x.dtype) > rank(result):
        raise TypeError(f"gemm: {name} {x.dtype} for a result of {result.name}; both must be of one kind")


def broadcast(name: str, x: ArrayLike, shape: tuple[int, ...], out: np.dtype) -> jax.Array:
    """``x`` in the shape of the result, whose type is ``out``."""
    array = as_array(name, x)
    same_kind(name, array, out)
    if array.shape == shape:
        return array
    try:
        return jnp.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"gemm: {name} of shape {array.shape} does not broadcast to the result's {shape}") from None


def option_pairs(kernel: str, given: dict[str, Any]) -> Options:
    """The options as sorted (name, value) pairs; a tuple value is spread over options named ``tile_m`` etc."""
    if not given:
        return ()
    if kernel in ("auto", "xla"):
        raise ValueError(f"gemm: options {', '.join(given)} need a kernel by name, got kernel={kernel!r}")
    row = find_kernel(kernel)
    pairs: dict[str, int] = {}
    for name, value in given.items():
        if isinstance(value, (tuple, list)):
            names = [option for option in row.options if option.startswith(f"{name}_")]
            if len(names) != len(value):
                raise ValueError(f"gemm: option {name} of kernel '{kernel}' takes {len(names)} values, got {value!r}")
            pairs.update(zip(names, value, strict=True))
        else:
            pairs[name] = value
    for name, value in pairs.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"gemm: option {name} must be an integer, got {value!r}")
    options = tuple(sorted((name, int(value)) for name, value in pairs.items()))
    configuration(row, options)
    return options
