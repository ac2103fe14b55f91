"""Numbers as values of 8 bits and scales, as ``jaxgemm.gemm`` multiplies them."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jaxgemm._jax_private import (
    check_for_nans,
    define_taylor_rule,
    explicit_axes,
    is_partly_manual,
    mesh_to_divide_over,
)
from jaxgemm._runtime import QUANTIZE_TARGET
from jaxgemm.products.arguments import as_array

#: What numbers become.
TYPES = ("int8", "float8_e4m3fn", "float8_e5m2")
#: What the kernel makes them of.
_FROM = ("float32", "bfloat16", "float16")
#: What has a scale, in the order of ffi/cuda/quantize/quantize.h.
SCALINGS = ("tensor", "row", "column")
#: The least scale but for 0: the smallest normal number, as a GPU may take smaller ones for 0.
_LEAST = 2.0**-126


def quantize(x: ArrayLike, dtype: DTypeLike, scaling: str = "tensor") -> tuple[jax.Array, jax.Array]:
    """Values of 8 bits and scales in float32, whose products are about ``x``.

    A scale is the largest finite magnitude over the largest value of ``dtype`` (127 for int8, of which -128 stays
    unused), and at least 2^-126; where all numbers are 0 it is 1. Values are x / scale, rounded to nearest, ties to
    even. In fp8 NaN stays NaN, and infinity stays infinity, or becomes NaN in a type without one. In int8 either makes
    the scale NaN, and so every product with it. Numbers of float64 are rounded to float32 first.

    On a GPU that has all of x it is one launch, with the bits of IEEE arithmetic. Elsewhere it is jnp: numbers below
    2^-126 may count as 0, and on a GPU XLA may round the last bit of a quotient otherwise. If ``jax.jit`` divides an
    axis over devices, a scale is of the whole axis; inside of ``jax.shard_map`` it is of what a device has.

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
    if scaling not in SCALINGS:
        raise ValueError(f"quantize: scaling must be one of {', '.join(SCALINGS)}, got {scaling!r}")
    if scaling != "tensor" and array.ndim < 2:
        raise ValueError(f"quantize: scaling {scaling!r} is for shapes (..., m, n), got {array.shape}")
    values, scales = quantize_p.bind(array, dtype=kind, scaling=scaling, lead=0)
    return values, scales


def _type_of(dtype: DTypeLike) -> np.dtype:
    try:
        kind = None if dtype is None else np.dtype(jnp.dtype(dtype))
    except TypeError:  # a name that nobody knows
        kind = None
    if kind is None or kind.name not in TYPES:
        got = repr(dtype) if kind is None else kind.name
        raise ValueError(f"quantize: dtype must be one of {', '.join(TYPES)}, got {got}")
    return kind


def composed(x: jax.Array, *, dtype: np.dtype, scaling: str, lead: int = 0) -> tuple[jax.Array, jax.Array]:
    """In jnp. ``lead``: how many leading axes are mapped, where the rest of x has one scale."""
    x = x.astype(np.float32)
    axes = _sharing(x.ndim, scaling, lead)
    integer = jnp.issubdtype(dtype, jnp.integer)
    most = float(np.iinfo(dtype).max if integer else jnp.finfo(dtype).max)
    finite = jnp.isfinite(x)
    largest = jnp.max(jnp.where(finite, abs(x), 0.0), axis=axes, keepdims=True, initial=0.0)
    # Selections keep XLA from multiplying by a reciprocal, whose last bit differs: of a constant, and of one divisor
    # that a row or column has.
    some, one = largest > 0, np.float32(1)
    scale = jnp.maximum(jnp.where(some, largest, one) / jnp.where(some, np.float32(most), one), np.float32(_LEAST))
    divisor = jnp.where(finite, scale, one)
    if integer:
        values = jnp.clip(jnp.round(jnp.where(finite, x, 0.0) / divisor), -most, most)
        scale = jnp.where(jnp.all(finite, axis=axes, keepdims=True), scale, np.float32(np.nan))
    else:
        values = x / divisor
    return values.astype(dtype), lax.squeeze(scale, axes) if scaling == "tensor" else scale


def _sharing(rank: int, scaling: str, lead: int) -> tuple[int, ...]:
    """The axes along which numbers have the same scale."""
    return tuple(range(lead, rank)) if scaling == "tensor" else (rank - (1 if scaling == "row" else 2),)


def _abstract(x: Any, *, dtype: np.dtype, scaling: str, lead: int) -> list[Any]:
    axes = _sharing(x.ndim, scaling, lead)
    spec = [None if i in axes else part for i, part in enumerate(x.sharding.spec)]
    shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
    if scaling == "tensor":
        spec, shape = spec[:lead], shape[:lead]
    sharding = NamedSharding(x.sharding.mesh, PartitionSpec(*spec))
    scales = x.update(shape=tuple(shape), dtype=np.dtype(np.float32), weak_type=False, sharding=sharding)
    return [x.update(dtype=dtype, weak_type=False), scales]


# --- One launch on a GPU --------------------------------------------------------------------------------------


def _launched(x: jax.Array, *, scales: Any, dtype: np.dtype, scaling: str) -> list[jax.Array]:
    """By the kernel, which has three axes: of matrices, rows and columns. ``scales``: their type."""
    shape = (1, 1, x.size) if scaling == "tensor" else (prod(x.shape[:-2]), *x.shape[-2:])
    results = [jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(scales.shape, scales.dtype)]
    call = jax.ffi.ffi_call(QUANTIZE_TARGET, results)
    values, scale = call(jnp.reshape(x, shape), scaling=np.int64(SCALINGS.index(scaling)))
    return [jnp.reshape(values, x.shape), scale]


def _lower(ctx: Any, x: Any, *, lead: int, **params: Any) -> Any:
    """For a GPU: the kernel, unless XLA divides the program, for which it must see what is computed."""
    (aval,), (_, scales) = ctx.avals_in, ctx.avals_out
    divided = explicit_axes(aval.sharding.mesh) or is_partly_manual(ctx) or mesh_to_divide_over(ctx) is not None
    fits = aval.dtype.name in _FROM and all(isinstance(n, int) for n in aval.shape) and aval.size > 0
    function = partial(composed, lead=lead) if divided or lead or not fits else partial(_launched, scales=scales)
    return mlir.lower_fun(partial(function, **params), multiple_results=True)(ctx, x)


# --- Transformations ------------------------------------------------------------------------------------------


def _not_differentiable(*_: Any, **_params: Any) -> Any:
    raise TypeError("quantize is not differentiable: apply jax.lax.stop_gradient to x, or differentiate around it")


def _batch(args: Any, axes: Any, *, dtype: np.dtype, scaling: str, lead: int) -> Any:
    """Each has scales of its own, as each row and column has."""
    x = jnp.moveaxis(args[0], axes[0], 0)
    return quantize_p.bind(x, dtype=dtype, scaling=scaling, lead=lead + (scaling == "tensor")), (0, 0)


quantize_p = Primitive("jaxgemm_quantize")
quantize_p.multiple_results = True
quantize_p.def_impl(partial(xla.apply_primitive, quantize_p))
quantize_p.def_abstract_eval(_abstract)
ad.primitive_jvps[quantize_p] = _not_differentiable
define_taylor_rule(quantize_p, _not_differentiable)
check_for_nans(quantize_p)
batching.primitive_batchers[quantize_p] = _batch
mlir.register_lowering(quantize_p, mlir.lower_fun(composed, multiple_results=True))
mlir.register_lowering(quantize_p, _lower, platform="cuda")
