"""Layers with weights of 8 bits, for inference: what linen's and nnx's have in common.

Weights have a scale for each feature. Inputs have a scale for each row, and are quantized in every call. flax's forward
pass is inherited here too: its weights are the values of 8 bits, and its product is one that knows their scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxgemm import api
from jaxgemm.flax import _shared
from jaxgemm.problem import DimensionNumbers
from jaxgemm.products.quantization import quantize

#: The types of values, by what a layer's ``quantize`` says.
TYPES = {"int8": "int8", "fp8": "float8_e4m3fn"}


class Weights(NamedTuple):
    """Values of 8 bits, of the weights' shape, and float32 scales of shape (1, n), n being the product of features.

    In a stack of layers both have its axes before these.
    """

    values: jax.Array
    scales: jax.Array


def check(layer: Any, given: Sequence[str], promote_dtype: Callable[..., Any]) -> None:
    """Errors for a ``quantize`` that the layer cannot have.

    ``given`` names arguments that replace our product; ``promote_dtype`` is flax's, which ours stands in for.
    """
    if layer.quantize is None:
        return
    name = type(layer).__name__
    if layer.quantize not in [*TYPES]:  # which is no error for what has no hash
        raise ValueError(f"{name}: quantize must be one of {', '.join(TYPES)} or None, got {layer.quantize!r}")
    if given:
        raise ValueError(f"{name}: quantize={layer.quantize!r} needs our product, but {given[0]} replaces it")
    if layer.promote_dtype is not promote_dtype:
        raise ValueError(f"{name}: quantize={layer.quantize!r} promotes types itself, but promote_dtype is given")
    if getattr(layer, "batch_axis", None) or getattr(layer, "batch_dims", None):
        raise ValueError(f"{name}: quantize={layer.quantize!r} is for layers without batch axes")


def split(layer: Any, shape: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """The parts of a weights' shape, or of what else has an element an axis: of stacks, of summed axes, of features.

    ValueError for a shape of fewer axes than the layer's.
    """
    summed, kept = (
        len(axes) if isinstance(axes, tuple | list) else 1
        for axes in (getattr(layer, "axis", -1), getattr(layer, "out_features", getattr(layer, "features", 1)))
    )
    if len(shape) < summed + kept:
        raise ValueError(f"{type(layer).__name__}: expected a kernel of {summed + kept} axes, got {tuple(shape)}")
    stacked = len(shape) - summed - kept
    return tuple(shape[:stacked]), tuple(shape[stacked : stacked + summed]), tuple(shape[stacked + summed :])


def quantized(layer: Any, weights: jax.Array) -> Weights:
    """The values and scales of a layer's weights, or of each layer's in a stack."""
    check_floating(layer, weights)
    stack, summed, kept = split(layer, weights.shape)
    values, scales = quantize(jnp.reshape(weights, (*stack, prod(summed), prod(kept))), TYPES[layer.quantize], "column")
    return Weights(jnp.reshape(values, weights.shape), scales)


def check_floating(layer: Any, weights: jax.Array) -> None:
    """TypeError for weights that are no floating-point numbers, as those of a quantized layer."""
    if not jnp.issubdtype(weights.dtype, jnp.floating) or weights.dtype.itemsize == 1:
        raise TypeError(
            f"{type(layer).__name__}: expected a kernel of a floating-point type above 8 bits, got {weights.dtype}; "
            "quantize a layer before values of 8 bits are loaded into it"
        )


def check_weights(layer: Any, weights: Weights) -> None:
    """ValueError for arrays, as of a checkpoint, that are not those of one layer."""
    kinds = jnp.dtype(TYPES[layer.quantize]), jnp.dtype("float32")
    for what, array, kind in zip(("values", "scales"), weights, kinds, strict=True):
        got = getattr(array, "dtype", type(array).__name__)
        if got != kind:
            raise ValueError(f"{type(layer).__name__}: quantize={layer.quantize!r} needs {what} of {kind}, got {got}")
    check_one(layer, weights.values)
    _, _, kept = split(layer, weights.values.shape)
    if weights.scales.shape != (1, prod(kept)):
        raise ValueError(
            f"{type(layer).__name__}: values of shape {weights.values.shape} have scales of shape (1, {prod(kept)}), "
            f"got {weights.scales.shape}"
        )


def check_one(layer: Any, weights: jax.Array) -> None:
    """ValueError for the weights of a stack of layers, of which a call needs one."""
    stack, _, _ = split(layer, weights.shape)
    if stack:
        raise ValueError(
            f"{type(layer).__name__}: kernel of shape {weights.shape} is a stack of layers {stack}: call it inside of "
            "scan or vmap over these axes"
        )


def promoting(layer: Any) -> Callable[..., tuple[Any, Any, Any]]:
    """What stands in for flax's ``promote_dtype``: it leaves the values of weights as they are.

    nnx gives inputs, weights and bias in a tuple, linen one by one.
    """

    def promote(*given: Any, dtype: Any) -> tuple[Any, Any, Any]:
        inputs, values, bias = given[0] if len(given) == 1 else given
        inputs = jnp.asarray(inputs)
        others = [layer.param_dtype, *([] if bias is None else [bias])]
        kind = jnp.result_type(inputs, *others) if dtype is None else jnp.dtype(dtype)
        return jnp.asarray(inputs, kind), values, None if bias is None else jnp.asarray(bias, kind)

    return promote


@dataclass(frozen=True, eq=False, kw_only=True)
class QuantizedProduct(_shared.PendingProduct):
    """A product of inputs, which are quantized when it runs, and of values with these scales."""

    scales: jax.Array

    def finish(self, activation: str | None) -> jax.Array:
        """The result."""
        (summed, kept), _ = self.dims
        k, n = prod(self.rhs.shape[i] for i in kept), self.scales.shape[-1]
        last = jnp.moveaxis(self.lhs, summed, range(-len(summed), 0))
        rows = prod(last.shape[: last.ndim - len(summed)])
        inputs, scales = quantize(jnp.reshape(last, (rows, k)), self.rhs.dtype, "row")
        out = api.gemm(
            inputs,
            jnp.reshape(self.rhs, (k, n)),
            a_scale=scales,
            b_scale=self.scales,
            bias=None if self.bias is None else jnp.reshape(self.bias, -1).astype(self.dtype),
            activation=activation,
            out_dtype=self.dtype,
            precision=self.precision,
            kernel=self.kernel,
        )
        return jnp.reshape(out, self.shape)


def pend(
    lhs: jax.Array, rhs: jax.Array, dimension_numbers: DimensionNumbers, *, scales: jax.Array, **given: Any
) -> QuantizedProduct:
    """As :func:`jaxgemm.flax._shared.pend`, of inputs and of what the values ``rhs`` stand for.

    Raises:
        TypeError: as lax's product of these shapes does.
        ValueError: ``out_sharding`` is given.
    """
    if given.get("out_sharding") is not None:
        raise ValueError("out_sharding is not for quantized layers")
    operands = (jax.ShapeDtypeStruct(x.shape, lhs.dtype) for x in (lhs, rhs))
    jax.eval_shape(partial(lax.dot_general, dimension_numbers=dimension_numbers), *operands)
    given.setdefault("preferred_element_type", lhs.dtype)
    return QuantizedProduct(**vars(_shared.pend(lhs, rhs, dimension_numbers, **given)), scales=scales)
