"""Layers with weights of 8 bits, for inference: what linen's and nnx's have in common.

Weights have a scale for each feature. Inputs have a scale for each row, and are quantized in every call. flax's forward
pass is inherited here too: its weights are the values of 8 bits, and its product is one that knows their scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxgemm import api
from jaxgemm.flax import _shared
from jaxgemm.products.quantization import quantize

#: The types of values, by what a layer's ``quantize`` says.
TYPES = {"int8": "int8", "fp8": "float8_e4m3fn"}


class Weights(NamedTuple):
    """Values of 8 bits, of the weights' shape, and float32 scales of shape (1, n), n being the product of features."""

    values: jax.Array
    scales: jax.Array


def check(layer: Any, given: Sequence[str]) -> None:
    """Errors for a ``quantize`` that the layer cannot have; ``given`` names arguments that replace our product."""
    if layer.quantize is None:
        return
    name = type(layer).__name__
    if layer.quantize not in TYPES:
        raise ValueError(f"{name}: quantize must be one of {', '.join(TYPES)} or None, got {layer.quantize!r}")
    if given:
        raise ValueError(f"{name}: quantize={layer.quantize!r} needs our product, but {given[0]} replaces it")
    if getattr(layer, "batch_axis", None) or getattr(layer, "batch_dims", None):
        raise ValueError(f"{name}: quantize={layer.quantize!r} is for layers without batch axes")


def quantized(layer: Any, weights: jax.Array) -> Weights:
    """The values and scales of a layer's weights, whose leading axes are summed over."""
    axis = getattr(layer, "axis", -1)
    summed = len(axis) if isinstance(axis, tuple | list) else 1
    matrix = jnp.reshape(weights, (prod(weights.shape[:summed]), -1))
    values, scales = quantize(matrix, TYPES[layer.quantize], "column")
    return Weights(jnp.reshape(values, weights.shape), scales)


def promoting(layer: Any) -> Callable[..., tuple[Any, Any, Any]]:
    """What stands in for flax's ``promote_dtype``: it leaves the values of weights as they are.

    nnx gives inputs, weights and bias in a tuple, linen one by one.
    """

    def promote(*given: Any, dtype: Any) -> tuple[Any, Any, Any]:
        inputs, values, bias = given[0] if len(given) == 1 else given
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
        (summed, _), _ = self.dims
        k = prod(self.lhs.shape[i] for i in summed)
        last = jnp.moveaxis(self.lhs, summed, range(-len(summed), 0))
        inputs, scales = quantize(
            jnp.reshape(last, (prod(last.shape[: last.ndim - len(summed)]), k)), self.rhs.dtype, "row"
        )
        out = api.gemm(
            inputs,
            jnp.reshape(self.rhs, (k, -1)),
            a_scale=scales,
            b_scale=self.scales,
            bias=None if self.bias is None else jnp.reshape(self.bias, -1).astype(self.dtype),
            activation=activation,
            out_dtype=self.dtype,
            precision=self.precision,
            kernel=self.kernel,
        )
        return jnp.reshape(out, self.shape)


def pend(lhs: jax.Array, rhs: jax.Array, *dims: Any, scales: jax.Array, **given: Any) -> QuantizedProduct:
    """As :func:`jaxgemm.flax._shared.pend`, of inputs and of what the values ``rhs`` stand for."""
    if given.get("out_sharding") is not None:
        raise ValueError("out_sharding is not for quantized layers")
    given.setdefault("preferred_element_type", lhs.dtype)
    return QuantizedProduct(**vars(_shared.pend(lhs, rhs, *dims, **given)), scales=scales)
