"""Numbers as values of 8 bits and scales, as ``jaxgemm.gemm`` multiplies them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jaxgemm.products.arguments import as_array

#: What numbers become.
TYPES = ("int8", "float8_e4m3fn", "float8_e5m2")
#: The axes that have one scale, by what has one. None: all.
_AXES = {"tensor": None, "row": -1, "column": -2}
#: The least scale but for 0: the smallest normal number, as a GPU may take smaller ones for 0.
_LEAST = 2.0**-126


def quantize(x: ArrayLike, dtype: DTypeLike, scaling: str = "tensor") -> tuple[jax.Array, jax.Array]:
    """Values of 8 bits and scales in float32, whose products are about ``x``.

    A scale is the largest finite magnitude over the largest value of ``dtype`` (127 for int8, of which -128 stays
    unused), and at least 2^-126; where all numbers are 0 it is 1. Values are x / scale, rounded to nearest, ties to
    even. In fp8 NaN stays NaN, and infinity stays infinity, or becomes NaN in a type without one. In int8 either makes
    the scale NaN, and so every product with it.

    If ``jax.jit`` divides an axis over devices, a scale is of the whole axis; inside of ``jax.shard_map`` it is of what
    a device has.

    Args:
        x: floating-point numbers of shape (..., m, n), or of any shape for ``scaling="tensor"``.
        dtype: "int8", "float8_e4m3fn" or "float8_e5m2".
        scaling: "tensor" for one scale of shape (), "row" for scales of shape (..., m, 1), as ``gemm``'s ``a_scale`` of
            rows that are multiplied along n; "column" for (..., 1, n), as its ``b_scale``.

    Returns:
        The values, of x's shape, and the scales.

    Raises:
        TypeError: x is of no floating-point type, or is differentiated: rounding has no derivative.
        ValueError: there is no such type or scaling, or x has no rows and columns.
    """
    array = as_array("quantize: x", x)
    kind = _type_of(dtype)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"quantize: x must be of a floating-point type, got {array.dtype}")
    if scaling not in _AXES:
        raise ValueError(f"quantize: scaling must be one of {', '.join(_AXES)}, got {scaling!r}")
    if scaling != "tensor" and array.ndim < 2:
        raise ValueError(f"quantize: scaling {scaling!r} is for shapes (..., m, n), got {array.shape}")
    values, scales = _quantized(array, kind, scaling)
    return values, scales


def _type_of(dtype: DTypeLike) -> np.dtype:
    try:
        kind = np.dtype(jnp.dtype(dtype))
    except TypeError:  # a name that nobody knows
        kind = None
    if kind is None or kind.name not in TYPES:
        got = repr(dtype) if kind is None else kind.name
        raise ValueError(f"quantize: dtype must be one of {', '.join(TYPES)}, got {got}")
    return kind


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _quantized(x: jax.Array, dtype: np.dtype, scaling: str) -> tuple[jax.Array, jax.Array]:
    x = x.astype(np.float32)
    axis = _AXES[scaling]
    integer = jnp.issubdtype(dtype, jnp.integer)
    most = float(np.iinfo(dtype).max if integer else jnp.finfo(dtype).max)
    finite = jnp.isfinite(x)
    largest = jnp.max(jnp.where(finite, abs(x), 0.0), axis=axis, keepdims=axis is not None, initial=0.0)
    scale = jnp.where(largest == 0, np.float32(1), jnp.maximum(largest / np.float32(most), np.float32(_LEAST)))
    if not integer:
        return (x / scale).astype(dtype), scale
    values = jnp.clip(jnp.round(jnp.where(finite, x, 0.0) / scale), -most, most).astype(dtype)
    all_finite = jnp.all(finite, axis=axis, keepdims=axis is not None)
    return values, jnp.where(all_finite, scale, np.float32(np.nan))


@_quantized.defjvp
def _not_differentiable(_dtype: np.dtype, _scaling: str, _primals: Any, _tangents: Any) -> Any:
    raise TypeError("quantize is not differentiable: apply jax.lax.stop_gradient to x, or differentiate around it")
