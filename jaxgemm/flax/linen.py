"""flax.linen layers whose product is jaxgemm's, with the bias and an activation fused into it.

Each is a drop-in for flax's layer of the same name: arguments, parameters, initial values and checkpoints are the
same. Two fields come after flax's: ``activation`` and ``kernel``, as :func:`jaxgemm.gemm` takes them.
:class:`MoE` is a layer that flax does not have.

:class:`Dense` and :class:`DenseGeneral` also have ``quantize``, "int8" or "fp8", for inference with weights and inputs
of 8 bits, which have a scale for each feature and for each row. Every call quantizes the weights, unless the collection
"quantized" holds them, which is made once; the parameter ``kernel`` is not read any more then::

    _, made = model.apply(variables, x, mutable=["quantized"])
    y = model.apply({**variables, **made}, x)

Its arrays are ``kernel`` and ``kernel_scale``. ``nn.scan`` and ``nn.vmap`` see it if ``variable_axes`` has "quantized",
as in ``variable_axes={"params": 0, "quantized": 0}``; without, nothing is made, and every call quantizes.

Such layers have no derivative.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.errors import ScopeParamShapeError
from flax.linen.dtypes import promote_dtype
from flax.linen.module import merge_param

from jaxgemm.flax import _moe, _quantized, _shared

# flax wraps methods in bookkeeping (scopes, interceptors) that our own methods get as well; once is enough.
_dense = inspect.unwrap(nn.Dense.__call__)
_dense_general = inspect.unwrap(nn.DenseGeneral.__call__)


def _given(layer: Any) -> list[str]:
    """The fields in which the user gave a product of their own."""
    return [name for name in ("dot_general_cls", "dot_general") if getattr(layer, name, None) is not None]


def _seen(layer: Any) -> Any:
    """The layer with our product in place of flax's, unless the user gave one."""
    if _given(layer):
        return layer
    if layer.quantize is not None:
        return _seen_quantized(layer)
    return _shared.Seen(layer, dot_general=partial(_shared.pend, kernel=layer.kernel))


#: The collection of values and scales of weights, and their names in it.
_COLLECTION, _NAMES = "quantized", ("kernel", "kernel_scale")


def _seen_quantized(layer: Any) -> Any:
    """The layer with values of 8 bits as its weights, and our product of these."""
    seen = _shared.Seen(layer, promote_dtype=_quantized.promoting(layer))

    def param(name: str, *how: Any) -> Any:
        if name != "kernel":
            return layer.param(name, *how)
        if layer.has_variable(_COLLECTION, name):
            weights = _held(layer, how[1])
        else:
            weights = _quantized.quantized(layer, layer.param(name, *how))
            if layer.is_mutable_collection(_COLLECTION) and not layer.is_initializing():
                for each, array in zip(_NAMES, weights, strict=True):
                    layer.put_variable(_COLLECTION, each, array)
        seen.replace(dot_general=partial(_quantized.pend, kernel=layer.kernel, scales=weights.scales))
        return weights.values

    seen.replace(param=param)
    return seen


def _held(layer: Any, shape: tuple[int, ...]) -> _quantized.Weights:
    """What the collection has as a layer's weights of this shape, for which flax's error is that of a parameter."""
    weights = _quantized.Weights(*(layer.get_variable(_COLLECTION, each) for each in _NAMES))
    held = getattr(weights.values, "shape", shape)
    if held != shape:
        raise ScopeParamShapeError(f"{_COLLECTION}/kernel", layer.scope.path_text, held, shape)
    _quantized.check_weights(layer, weights)
    return weights


class _Fused(nn.Module):
    activation: str | None = None
    kernel: str = "auto"

    def __post_init__(self) -> None:
        _shared.check(type(self).__name__, self.activation, self.kernel, _given(self))
        super().__post_init__()


class _Quantized(_Fused):
    quantize: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _quantized.check(self, _given(self), promote_dtype)


class Dense(_Quantized, nn.Dense):
    """``flax.linen.Dense`` with a fused bias, ``gemm``'s ``activation`` and ``kernel``, and ``quantize``."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """``activation(inputs @ kernel + bias)``, of shape (..., features) for inputs of shape (..., k)."""
        return _shared.finish(_dense(_seen(self), inputs), self.activation)


class DenseGeneral(_Quantized, nn.DenseGeneral):
    """``flax.linen.DenseGeneral`` with a fused bias, ``gemm``'s ``activation`` and ``kernel``, and ``quantize``."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """``activation(inputs · kernel + bias)``, along the axes ``axis``."""
        return _shared.finish(_dense_general(_seen(self), inputs), self.activation)


class Einsum(_Fused, nn.Einsum):
    """``flax.linen.Einsum`` with a fused bias, and ``activation`` and ``kernel`` of :func:`jaxgemm.gemm`."""

    # flax's forward pass has no place for another product, so this one is written out.
    @nn.compact
    def __call__(self, inputs: jax.Array, einsum_str: str | None = None) -> jax.Array:
        """``activation(einsum(inputs, kernel) + bias)``; ``einsum_str`` here or in the constructor."""
        equation = merge_param("einsum_str", self.einsum_str, einsum_str).replace(" ", "")
        _shared.check_equation(equation)
        weights = self.param("kernel", self.kernel_init, self.shape, self.param_dtype)
        bias, row = None, None
        if self.use_bias:
            shape, row = self._get_bias_shape(equation, inputs, weights)
            bias = self.param("bias", self.bias_init, shape, self.param_dtype)
        x, w, bias = self.promote_dtype(inputs, weights, bias, dtype=self.dtype)
        assert x is not None
        assert w is not None
        out = _shared.pend_einsum(
            equation,
            x,
            w,
            precision=self.precision,
            preferred_element_type=self.preferred_element_type,
            kernel=self.kernel,
        )
        if bias is not None:
            out += jnp.reshape(bias, row)
        return _shared.finish(out, self.activation)


class MoE(_moe.Options, nn.Module):
    """A dropless mixture of experts: each token goes through the ``top_k`` experts that a router chooses for it.

    The layer of Shazeer et al. (2017). Attributes, parameters and their shapes and types are those of
    :class:`jaxgemm.flax.nnx.MoE`. The loss for load balancing, of Fedus et al. (2021), is sown into the collection
    "losses" as "load_balancing". ``init`` sows none, makes the parameters of all experts and needs no ``axis_name``.

    Raises:
        TypeError, ValueError: as for :class:`jaxgemm.flax.nnx.MoE`.
    """

    def __post_init__(self) -> None:
        _moe.check(self)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The sum of the chosen experts' results for each token of ``inputs``.

        Args:
            inputs: shape (..., features), with any leading dimensions, empty ones too.

        Returns:
            The result, shaped as ``inputs``.

        Raises:
            ValueError, UnsupportedError: as for :class:`jaxgemm.flax.nnx.MoE`; for a parameter of another shape flax
                has an error of its own.
        """
        initializing = self.is_initializing()
        held = self.num_experts if initializing else _moe.held_experts(self)
        given = {name: self.param(name, *parameter) for name, parameter in _moe.parameters(self, held).items()}
        result, loss = _moe.forward(self, given, inputs, None if initializing else self.axis_name)
        if not initializing:  # else it would be among the variables, and later ones beside it
            self.sow("losses", "load_balancing", loss)
        return result
