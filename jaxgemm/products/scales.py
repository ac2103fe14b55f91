"""Scales of operands of 8 bits: an operand stands for its values times its scales."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import dtypes
from jaxgemm.products.arguments import as_array, float_result, gives_way

#: The axis of the result along which a scale may run, by the scale's name.
_RUNS = {"a_scale": -2, "b_scale": -1}
_MEANING = {"a_scale": "(..., m, 1), one a row", "b_scale": "(..., 1, n), one a column"}
_MOST_SUM = 2**31 - 1


def scales_of(
    given: dict[str, ArrayLike | None],
    operands: Sequence[np.dtype],
    k: int,
    shape: Sequence[int],
    called: Sequence[str] = ("gemm", "a_scale", "b_scale"),
) -> dict[str, jax.Array]:
    """The scales that are given, checked, in float32, each of shape () or of the rank of the result.

    ``shape``: the result's. ``called``: what errors call the function and both scales.

    Raises:
        TypeError: operands of these types have no scales, or a scale is neither of float32 nor a Python number.
        ValueError: a scale has another shape, or sums of integers may pass what int32 holds.
    """
    function = called[0]
    says = {name: f"{function}: {x}" for name, x in zip(_RUNS, called[1:], strict=True)}
    named = {name: _as_scale(says[name], value) for name, value in given.items() if value is not None}
    if not named:
        return {}
    check_types(says[next(iter(named))], *operands)
    _check_sums(function, operands, k)
    for name, x in named.items():
        if x.dtype != np.float32:
            raise TypeError(f"{says[name]} must be of float32, got {x.dtype}")
        if not _fits(x.shape, shape, _RUNS[name]):
            raise ValueError(
                f"{says[name]} must have shape (), (..., 1, 1), one for each product, or {_MEANING[name]}, for a "
                f"result of {tuple(shape)}; got {x.shape}"
            )
    rank = len(shape)
    return {name: x if x.ndim == 0 else jnp.reshape(x, (1,) * (rank - x.ndim) + x.shape) for name, x in named.items()}


def check_types(scale: str, lhs: np.dtype, rhs: np.dtype) -> None:
    """TypeError, which calls a scale of theirs ``scale``, for operands of these types, which have none."""
    if not (dtypes.is_8bit(lhs) and dtypes.is_8bit(rhs)):
        raise TypeError(f"{scale} is for operands of 8 bits, got {lhs} and {rhs}")
    if lhs != rhs and not dtypes.stay_apart(lhs, rhs):
        raise TypeError(f"{scale} is for two integers or two floats of 8 bits, got {lhs} and {rhs}")


def _as_scale(name: str, value: ArrayLike) -> jax.Array:
    """The scale as an array, in float32 if it is a real number of a type that gives way to others."""
    x = as_array(name, value)
    real = jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer)
    return lax.convert_element_type(x, np.float32) if real and gives_way(value) else x


def _fits(scale: Sequence[int], shape: Sequence[int], runs: int) -> bool:
    if not scale:
        return True
    if not 2 <= len(scale) <= len(shape):
        return False
    allowed = [*({1, n} for n in shape[-len(scale) : -2]), {1}, {1}]
    allowed[runs] = {1, shape[runs]}
    return all(n in known for n, known in zip(scale, allowed, strict=True))


def most_terms(operands: Sequence[np.dtype]) -> int:
    """How many products of integers of these types a sum in int32 holds, whatever their values."""
    return _MOST_SUM // prod(max(-int(jnp.iinfo(x).min), int(jnp.iinfo(x).max)) for x in operands)


def _check_sums(function: str, operands: Sequence[np.dtype], k: int) -> None:
    """ValueError if sums in int32 may wrap: scales multiply numbers, not numbers modulo 2^32."""
    if not all(jnp.issubdtype(x, jnp.integer) for x in operands):
        return
    most = most_terms(operands)
    if not isinstance(k, int):
        raise ValueError(
            f"{function}: sums of k = {k} products may pass what int32 holds; with scales, k must be known"
        )
    if k > most:
        raise ValueError(
            f"{function}: sums of {k} products of {operands[0]} and {operands[1]} may pass what int32 holds; "
            f"with scales, k is {most} at most"
        )


def scaled_result(given: DTypeLike | None, function: str = "gemm") -> np.dtype:
    """The type of a scaled product, by default float32; TypeError if it is no floating-point type of 8 bits or more."""
    called = f"{function}: out_dtype of a scaled product"
    out = float_result(called, given, np.dtype(np.float32))
    if jnp.finfo(out).bits < 8:
        raise TypeError(f"{called} must have 8 bits or more, got {out.name}")
    return out


def scaled(product: jax.Array, scales: Iterable[jax.Array], dtype: np.dtype) -> jax.Array:
    """The product, converted to ``dtype``, times its scales."""
    x = product.astype(dtype)
    for scale in scales:
        x = x * lax.broadcast_to_rank(scale, x.ndim)  # as jax.numpy_rank_promotion may ask
    return x
