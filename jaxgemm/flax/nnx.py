"""flax.nnx layers whose product is jaxgemm's, with the bias and an activation fused into it.

Each is a drop-in for flax's layer of the same name: arguments, parameters, initial values and state are the same.
Two keywords are added: ``activation`` and ``kernel``, as :func:`jaxgemm.gemm` takes them. The latter is kept as
``gemm_kernel``, because a layer's ``kernel`` is its weights. :class:`MoE` is a layer that flax does not have.

:class:`Linear` and :class:`LinearGeneral` also take ``quantize``, "int8" or "fp8", for inference with weights and
inputs of 8 bits, which have a scale for each feature and for each row. Every call quantizes the weights, until
:func:`quantize` has done so for a whole model, after its weights were loaded. Such layers have no derivative.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax.sharding import PartitionSpec

from jaxgemm.flax import _moe, _quantized, _shared


class _Fused(nnx.Module):
    activation: str | None
    gemm_kernel: str

    def __init__(self, *arguments: Any, activation: str | None = None, kernel: str = "auto", **keywords: Any):
        self.activation = activation
        self.gemm_kernel = kernel
        super().__init__(*arguments, **keywords)
        _shared.check(type(self).__name__, self.activation, self.gemm_kernel, _given(self))


class _Quantized(_Fused):
    quantize: str | None

    def __init__(self, *arguments: Any, quantize: str | None = None, **keywords: Any):
        self.quantize = quantize
        super().__init__(*arguments, **keywords)
        _quantized.check(self, _given(self), promote_dtype)


class Linear(_Quantized, nnx.Linear):
    """``flax.nnx.Linear`` with a fused bias, ``gemm``'s ``activation`` and ``kernel``, and ``quantize``."""

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """``activation(inputs @ kernel + bias)``, of shape (..., out_features) for inputs (..., in_features)."""
        return _shared.finish(nnx.Linear.__call__(_seen(self), inputs, out_sharding), self.activation)


class LinearGeneral(_Quantized, nnx.LinearGeneral):
    """``flax.nnx.LinearGeneral`` with a fused bias, ``gemm``'s ``activation`` and ``kernel``, and ``quantize``."""

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """``activation(inputs · kernel + bias)``, along the axes ``axis``."""
        return _shared.finish(nnx.LinearGeneral.__call__(_seen(self), inputs, out_sharding), self.activation)


class Einsum(_Fused, nnx.Einsum):
    """``flax.nnx.Einsum`` with a fused bias, and ``activation`` and ``kernel`` of :func:`jaxgemm.gemm`."""

    def __call__(self, inputs: jax.Array, einsum_str: str | None = None, out_sharding: Any = None) -> jax.Array:
        """``activation(einsum(inputs, kernel) + bias)``; ``einsum_str`` here or in the constructor."""
        return _shared.finish(nnx.Einsum.__call__(_seen(self), inputs, einsum_str, out_sharding), self.activation)


class MoE(_moe.Options, nnx.Module):
    """A dropless mixture of experts: each token goes through the ``top_k`` experts that a router chooses for it.

    The layer is that of "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer" (Shazeer et
    al., 2017), without noise. An expert is ``(activation(x w_gate) * (x w_up)) w_down``, or without a gate
    ``activation(x w_up + b_up) w_down + b_down``. No expert has a capacity: all tokens that choose it are computed, by
    :func:`jaxgemm.ragged_gated` and :func:`jaxgemm.ragged_dot`. The parameter ``router`` (features, num_experts), the
    logits and the weights that they become are float32 whatever the other types are.

    The loss for load balancing is that of "Switch Transformers: Scaling to Trillion Parameter Models with Simple and
    Efficient Sparsity" (Fedus, Zoph and Shazeer, 2021): the number of experts times the sum, over the experts, of the
    share of all copies of tokens that an expert gets, times its mean probability. It is 1 if all get as many, and 0
    without tokens.

    Args:
        features: of a token, and of its result.
        hidden: features inside of an expert.
        num_experts: how many there are.
        top_k: how many of them each token goes through.
        gated: whether experts have ``w_gate`` (num_experts, features, hidden) beside ``w_up`` of that shape and
            ``w_down`` (num_experts, hidden, features).
        activation: by name, or None; see :func:`jaxgemm.gemm`.
        use_bias: whether experts that are not gated have ``b_up`` (num_experts, hidden) and ``b_down`` (num_experts,
            features).
        softmax: "after": results are weighed by the softmax of the chosen logits, as by Shazeer et al.; "before": by
            the softmax of all logits, of which the chosen ones' sum is below 1, as by Fedus et al.
        dtype: of the experts' products and of the result; by default inputs and parameters are promoted. On a GPU
            bfloat16 and float16 are the fastest: see :func:`jaxgemm.ragged_dot`, ``precision``. A token's copies are
            weighed and added up in float32, or in float64 where they are.
        param_dtype: of the experts' parameters.
        precision: of the experts' products; see :func:`jaxgemm.ragged_dot`.
        kernel_init: gives the router, and the matrices of one expert at a time.
        bias_init: gives the biases.
        axis_name: the axis of the ``shard_map`` around the call along which experts are sharded: the first axis of
            their parameters is divided evenly, ``router`` is the same on all devices, and each has tokens of its own,
            as many as the others. Tokens are gathered, each device computes those of its experts, and a reduce-scatter
            adds up the results.
        kernel: of the experts' products; see :func:`jaxgemm.ragged_dot`.
        rngs: for the parameters.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is below 1, ``top_k`` is above ``num_experts``, a name is unknown, or gated experts are to
            have biases.
    """

    def __init__(self, *arguments: Any, rngs: nnx.Rngs, **keywords: Any):
        super().__init__(*arguments, **keywords)
        _moe.check(self)
        for name, (init, shape, dtype) in _moe.parameters(self, self.num_experts).items():
            setattr(self, name, nnx.Param(init(rngs.params(), shape, dtype)))
        # Functions that are equal to themselves alone: with them equal layers would differ, and none could be pickled.
        del self.kernel_init, self.bias_init

    def __call__(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The sum of the chosen experts' results for each token of ``inputs``, and the loss for load balancing.

        Args:
            inputs: shape (..., features), with any leading dimensions, empty ones too.

        Returns:
            The result, shaped as ``inputs``, and a float32 scalar, with ``axis_name`` the mean over its devices.

        Raises:
            ValueError: ``inputs`` or a parameter has another shape, or the devices of ``axis_name`` cannot hold as many
                experts each.
            UnsupportedError: as for :func:`jaxgemm.ragged_dot`.
        """
        wanted = _moe.shapes(self, _moe.held_experts(self))
        given = {name: getattr(self, name)[...] for name in wanted}
        _moe.check_shapes(self, wanted, given)
        return _moe.forward(self, given, inputs, self.axis_name)


#: By the attribute that holds a layer's product: what flax puts there, and what stands in for it.
_PRODUCTS = {
    "dot_general": ((None, jax.lax.dot_general), _shared.pend),
    "dot_general_cls": ((None,), None),
    "einsum_op": ((jnp.einsum,), _shared.pend_einsum),
}


def _given(layer: Any) -> list[str]:
    """The attributes in which the user gave a product of their own."""
    held = [name for name in _PRODUCTS if hasattr(layer, name)]
    return [name for name in held if not any(getattr(layer, name) is x for x in _PRODUCTS[name][0])]


def _seen(layer: Any) -> Any:
    """The layer with our product in place of flax's, unless the user gave one."""
    if _given(layer):
        return layer
    if getattr(layer, "quantize", None) is not None:
        weights = _weights(layer)
        product = partial(_quantized.pend, kernel=layer.gemm_kernel, scales=weights.scales)
        promote = _quantized.promoting(layer)
        return _shared.Seen(layer, kernel=weights.values, promote_dtype=promote, dot_general=product)
    ours = {name: partial(x, kernel=layer.gemm_kernel) for name, (_, x) in _PRODUCTS.items() if x is not None}
    return _shared.Seen(layer, **ours)


class Quantized(nnx.Variable[jax.Array]):
    """The values of 8 bits that the weights of a quantized layer became, or the scales of these values."""


def _weights(layer: Any) -> _quantized.Weights:
    """The values of a quantized layer, and their scales."""
    kernel = layer.kernel[...]
    if not isinstance(layer.kernel, Quantized):
        _quantized.check_one(layer, kernel)
        return _quantized.quantized(layer, kernel)
    if kernel.dtype.itemsize > 1:
        raise ValueError(
            f"{type(layer).__name__}: kernel is {kernel.dtype}, but was quantized: load weights before "
            "jaxgemm.flax.nnx.quantize"
        )
    weights = _quantized.Weights(kernel, layer.kernel_scale[...])
    _quantized.check_weights(layer, weights)
    return weights


def quantize(model: nnx.Module) -> nnx.Module:
    """Replace the weights of a model's layers that have ``quantize`` by values of 8 bits, once.

    A layer's ``kernel`` then is a :class:`Quantized` variable of values, and ``kernel_scale`` one of their scales, of
    shape (1, n). Both have the ``out_sharding`` of the weights' metadata. A stack of layers, as ``nnx.vmap`` makes it,
    has its axes before these, and is called by ``nnx.scan`` or ``nnx.vmap``, whose filters must take ``Quantized``
    variables as they take parameters. Layers without ``quantize``, and those that are quantized already, stay as they
    are.

    Args:
        model: a module with such layers; it is changed in place.

    Returns:
        The model.

    Raises:
        TypeError: a layer has weights of 8 bits, but was not quantized.
        ValueError: the model has no such layer, or one without values, or a stack whose axes are not the first.

    Nothing is changed then.
    """
    modules = (module for _, module in nnx.iter_modules(model))
    layers: list[Any] = [m for m in modules if isinstance(m, _Quantized) and m.quantize is not None]
    if not layers:
        raise ValueError("quantize: the model has no layer of jaxgemm.flax.nnx that was made with quantize=")
    left = [layer for layer in layers if not isinstance(layer.kernel, Quantized)]
    for layer in left:
        _check_whole(layer)
    for layer in left:
        weights = _quantized.quantized(layer, layer.kernel[...])
        kernel, layer.kernel, layer.kernel_scale = layer.kernel, *map(Quantized, weights)
        _keep_sharding(layer, kernel.get_metadata("out_sharding", None))
    return model


def _check_whole(layer: Any) -> None:
    """Errors for weights that :func:`quantize` cannot take."""
    name, kernel = type(layer).__name__, layer.kernel.get_value()
    if isinstance(kernel, jax.ShapeDtypeStruct):
        raise ValueError(f"quantize: {name}.kernel has no values; quantize inside of nnx.eval_shape")
    _quantized.check_floating(layer, kernel)
    stack, *shape = _quantized.split(layer, kernel.shape)
    features = [x if isinstance(x, tuple) else (x,) for x in (layer.in_features, layer.out_features)]
    if stack and shape != features:
        raise ValueError(
            f"quantize: {name}.kernel of shape {kernel.shape} is no stack of {features[0]} x {features[1]} along "
            "its first axes; quantize inside of nnx.vmap over the axes of layers"
        )


def _keep_sharding(layer: Any, sharding: Any) -> None:
    """Metadata of values as of the weights, and of scales as of their features, which are one axis."""
    if sharding is not None:
        layer.kernel.set_metadata(out_sharding=sharding)
    if isinstance(sharding, tuple | PartitionSpec):
        axes = (*sharding, *[None] * (layer.kernel.ndim - len(sharding)))
        stack, _, kept = _quantized.split(layer, axes)
        layer.kernel_scale.set_metadata(out_sharding=(*stack, None, kept[0] if len(kept) == 1 else None))
