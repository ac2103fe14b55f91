"""flax.nnx layers whose product is jaxgemm's, with the bias and an activation fused into it.

Each is a drop-in for flax's layer of the same name: arguments, parameters, initial values and state are the same.
Two keywords are added: ``activation`` and ``kernel``, as :func:`jaxgemm.gemm` takes them. The latter is kept as
``gemm_kernel``, because a layer's ``kernel`` is its weights.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgemm.flax import _shared


class _Fused(nnx.Module):
    activation: str | None
    gemm_kernel: str

    def __init__(self, *arguments: Any, activation: str | None = None, kernel: str = "auto", **keywords: Any):
        self.activation = activation
        self.gemm_kernel = kernel
        super().__init__(*arguments, **keywords)
        _check(self)


class Linear(_Fused, nnx.Linear):
    """``flax.nnx.Linear`` with a fused bias and activation.

    Args:
        *arguments, **keywords: flax's own: ``in_features, out_features`` and so on.
        activation: applied to the result, by name; see :func:`jaxgemm.gemm`.
        kernel: which kernel computes the product; see :func:`jaxgemm.gemm`.
    """

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """``activation(inputs @ kernel + bias)``, along the last axis."""
        return _shared.finish(nnx.Linear.__call__(_seen(self), inputs, out_sharding), self.activation)


class LinearGeneral(_Fused, nnx.LinearGeneral):
    """``flax.nnx.LinearGeneral`` with a fused bias and activation.

    Args:
        *arguments, **keywords: flax's own: ``in_features, out_features`` and so on.
        activation: applied to the result, by name; see :func:`jaxgemm.gemm`.
        kernel: which kernel computes the product; see :func:`jaxgemm.gemm`.
    """

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """``activation(inputs · kernel + bias)``, along the axes ``axis``."""
        return _shared.finish(nnx.LinearGeneral.__call__(_seen(self), inputs, out_sharding), self.activation)


class Einsum(_Fused, nnx.Einsum):
    """``flax.nnx.Einsum`` with a fused bias and activation.

    Args:
        *arguments, **keywords: flax's own: ``einsum_str, kernel_shape, bias_shape`` and so on.
        activation: applied to the result, by name; see :func:`jaxgemm.gemm`.
        kernel: which kernel computes the product; see :func:`jaxgemm.gemm`.
    """

    def __call__(self, inputs: jax.Array, einsum_str: str | None = None, out_sharding: Any = None) -> jax.Array:
        """``activation(einsum(inputs, kernel) + bias)``; ``einsum_str`` here or in the constructor."""
        return _shared.finish(nnx.Einsum.__call__(_seen(self), inputs, einsum_str, out_sharding), self.activation)


#: By the attribute that holds a layer's product: what flax puts there, and what stands in for it.
_PRODUCTS = {
    "dot_general": ((None, jax.lax.dot_general), _shared.pend),
    "dot_general_cls": ((None,), None),
    "einsum_op": ((jnp.einsum,), _shared.pend_einsum),
}


def _given(layer: Any) -> list[tuple[str, Any]]:
    """The attributes in which the user gave a product of their own."""
    found = [(name, getattr(layer, name)) for name in _PRODUCTS if hasattr(layer, name)]
    return [(name, value) for name, value in found if not any(value is x for x in _PRODUCTS[name][0])]


def _check(layer: Any) -> None:
    _shared.check(type(layer).__name__, layer.activation, layer.gemm_kernel, *_given(layer))


def _seen(layer: Any) -> Any:
    """The layer with our product in place of flax's, unless the user gave one."""
    if _given(layer):
        return layer
    ours = {name: partial(x, kernel=layer.gemm_kernel) for name, (_, x) in _PRODUCTS.items() if x is not None}
    return _shared.Seen(layer, **ours)
