"""Numbers as values of 8 bits and scales, as ``jaxgemm.gemm`` multiplies them."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jaxgemm._jax_private import explicit_axes, is_partly_manual, mesh_to_divide_over
from jaxgemm._runtime import QUANTIZE_TARGET
from jaxgemm.products.arguments import as_array

#: What numbers become.
TYPES = ("int8", "float8_e4m3fn", "float8_e5m2")
#: What the kernel makes them of.
_FROM = ("float32", "bfloat16", "float16")
#: The axes that have one scale, by what has one, in the order of ffi/cuda/quantize/quantize.h. None: all.
_AXES = {"tensor": None, "row": -1, "column": -2}
#: The least scale but for 0: the smallest normal number, as a GPU may take smaller ones for 0.
_LEAST = 2.0**-126


def quantize(x: ArrayLike, dtype: DTypeLike, scaling: str = "tensor") -> tuple[jax.Array, jax.Array]:
    """Values of 8 bits and scales in float32, whose products are about ``x``.

    A scale is the largest finite magnitude over the largest value of ``dtype`` (127 for int8, of which -128 stays
    unused), and at least 2^-126; where all numbers are 0 it is 1. Values are x / scale, rounded to nearest, ties to
    even. In fp8 NaN stays NaN, and infinity stays infinity, or becomes NaN in a type without one. In int8 either makes
    the scale NaN, and so every product with it.

    On a GPU that has all of x it is one launch, with the bits of IEEE arithmetic. Elsewhere it is jnp, and on a GPU XLA
    may round the last bit of a quotient otherwise. If ``jax.jit`` divides an axis over devices, a scale is of the whole
    axis; inside of ``jax.shard_map`` it is of what a device has.

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
    if explicit_axes(jax.typeof(x).sharding.mesh):  # XLA divides it
        return composed(x, dtype=dtype, scaling=scaling)
    values, scales = quantize_p.bind(x, dtype=dtype, scaling=scaling)
    return values, scales


@_quantized.defjvp
def _not_differentiable(_dtype: np.dtype, _scaling: str, _primals: Any, _tangents: Any) -> Any:
    raise TypeError("quantize is not differentiable: apply jax.lax.stop_gradient to x, or differentiate around it")


def composed(x: jax.Array, *, dtype: np.dtype, scaling: str) -> tuple[jax.Array, jax.Array]:
    """In jnp."""
    x = x.astype(np.float32)
    axis = _AXES[scaling]
    integer = jnp.issubdtype(dtype, jnp.integer)
    most = float(np.iinfo(dtype).max if integer else jnp.finfo(dtype).max)
    finite = jnp.isfinite(x)
    largest = jnp.max(jnp.where(finite, abs(x), 0.0), axis=axis, keepdims=axis is not None, initial=0.0)
    # Two selections: XLA would multiply by the reciprocal of a constant, whose last bit differs.
    some, one = largest > 0, np.float32(1)
    scale = jnp.maximum(jnp.where(some, largest, one) / jnp.where(some, np.float32(most), one), np.float32(_LEAST))
    if not integer:
        return (x / scale).astype(dtype), scale
    values = jnp.clip(jnp.round(jnp.where(finite, x, 0.0) / scale), -most, most).astype(dtype)
    all_finite = jnp.all(finite, axis=axis, keepdims=axis is not None)
    return values, jnp.where(all_finite, scale, np.float32(np.nan))


# --- One launch on a GPU --------------------------------------------------------------------------------------


def _scales_shape(shape: tuple[int, ...], scaling: str) -> tuple[int, ...]:
    one = {"tensor": (), "row": (*shape[:-1], 1), "column": (*shape[:-2], 1, *shape[-1:])}
    return one[scaling]


def _abstract(x: Any, *, dtype: np.dtype, scaling: str) -> list[Any]:
    shape = _scales_shape(x.shape, scaling)
    sharding = x.sharding if len(shape) == x.ndim else NamedSharding(x.sharding.mesh, PartitionSpec())
    scales = x.update(shape=shape, dtype=np.dtype(np.float32), weak_type=False, sharding=sharding)
    return [x.update(dtype=dtype, weak_type=False), scales]


def _launched(x: jax.Array, *, dtype: np.dtype, scaling: str) -> list[jax.Array]:
    """By the kernel, which has three axes: of matrices, rows and columns."""
    shape = (1, 1, x.size) if scaling == "tensor" else (prod(x.shape[:-2]), *x.shape[-2:])
    scales = _scales_shape(x.shape, scaling)
    results = [jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(scales, np.float32)]
    call = jax.ffi.ffi_call(QUANTIZE_TARGET, results)
    values, scale = call(jnp.reshape(x, shape), scaling=np.int64(list(_AXES).index(scaling)))
    return [jnp.reshape(values, x.shape), scale]


def _lower(ctx: Any, x: Any, *, dtype: np.dtype, scaling: str) -> Any:
    """For a GPU: the kernel, unless XLA divides the program, for which it must see what is computed."""
    aval = ctx.avals_in[0]
    whole = not is_partly_manual(ctx) and mesh_to_divide_over(ctx) is None
    fits = aval.dtype.name in _FROM and all(isinstance(n, int) for n in aval.shape) and aval.size > 0
    function = _launched if whole and fits else composed
    return mlir.lower_fun(partial(function, dtype=dtype, scaling=scaling), multiple_results=True)(ctx, x)


def _batch(args: Any, axes: Any, *, dtype: np.dtype, scaling: str) -> Any:
    (x,), (axis,) = args, axes
    if scaling == "tensor":  # each has a scale of its own
        return jax.vmap(partial(composed, dtype=dtype, scaling=scaling), in_axes=axis)(x), (0, 0)
    return quantize_p.bind(jnp.moveaxis(x, axis, 0), dtype=dtype, scaling=scaling), (0, 0)


quantize_p = Primitive("jaxgemm_quantize")
quantize_p.multiple_results = True
quantize_p.def_impl(partial(xla.apply_primitive, quantize_p))
quantize_p.def_abstract_eval(_abstract)
batching.primitive_batchers[quantize_p] = _batch
mlir.register_lowering(quantize_p, mlir.lower_fun(composed, multiple_results=True))
mlir.register_lowering(quantize_p, _lower, platform="cuda")
