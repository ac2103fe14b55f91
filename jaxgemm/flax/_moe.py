"""A dropless mixture of experts as plain functions: routing, dispatch, experts and combination.

The layers of linen and nnx hold the parameters; :class:`Options` says what there is to compute, :func:`forward` does.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.linen.initializers import lecun_normal, zeros_init
from jax import lax
from jax.typing import DTypeLike

from jaxgemm import api
from jaxgemm import precision as prec
from jaxgemm.flax import _shared
from jaxgemm.ragged.api import ragged_dot, ragged_gated

Initializer = Callable[..., Any]

#: When the router's logits become weights: after the experts are chosen, or before.
SOFTMAX = ("after", "before")


_KERNEL_INIT, _BIAS_INIT = lecun_normal(), zeros_init()


@dataclass(eq=False)  # layers inherit this, and compare as flax's do
class Options:
    """The arguments of a layer, which are its attributes; ``jaxgemm.flax.nnx.MoE`` describes them."""

    features: int
    hidden: int
    num_experts: int
    top_k: int
    gated: bool = True
    activation: str | None = "silu"
    use_bias: bool = False
    softmax: str = "after"
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: prec.Precision = None
    # By factories, as a function that is a class's attribute would be a method of its instances.
    kernel_init: Initializer = field(default_factory=lambda: _KERNEL_INIT)
    bias_init: Initializer = field(default_factory=lambda: _BIAS_INIT)
    axis_name: str | None = None
    kernel: str = "auto"


class Parameter(NamedTuple):
    """What a parameter starts as: ``init(key, shape, dtype)``."""

    init: Initializer
    shape: tuple[int, ...]
    dtype: DTypeLike


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        experts: shape (tokens, top_k), of integers.
        weights: shape (tokens, top_k), float32.
        probabilities: shape (tokens, experts), float32: of all experts, chosen or not.
    """

    experts: jax.Array
    weights: jax.Array
    probabilities: jax.Array


def check(options: Options) -> None:
    """ValueError or TypeError for arguments that are wrong or do not fit together."""
    for name in ("features", "hidden", "num_experts", "top_k"):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"MoE: {name} must be an integer, got {value!r}")
        if value < 1:
            raise ValueError(f"MoE: {name} must be at least 1, got {value}")
    if options.top_k > options.num_experts:
        raise ValueError(f"MoE: top_k = {options.top_k} of num_experts = {options.num_experts}")
    if options.softmax not in SOFTMAX:
        raise ValueError(f"MoE: softmax: got {options.softmax!r}, expected one of {', '.join(SOFTMAX)}")
    if options.gated and options.use_bias:
        raise ValueError("MoE: use_bias=True needs gated=False; gated experts have no bias")
    _shared.check("MoE", options.activation, options.kernel)


def held_experts(options: Options) -> int:
    """How many experts this device holds: all, or its share of those along ``axis_name``."""
    if options.axis_name is None:
        return options.num_experts
    size = lax.axis_size(options.axis_name)
    if options.num_experts % size:
        raise ValueError(
            f"MoE: num_experts = {options.num_experts} over the {size} devices of axis {options.axis_name!r}: "
            "each must hold as many"
        )
    return options.num_experts // size


def shapes(options: Options, held: int) -> dict[str, tuple[int, ...]]:
    """The parameters' shapes by name, with ``held`` experts."""
    wide, narrow = (held, options.features, options.hidden), (held, options.hidden, options.features)
    found: dict[str, tuple[int, ...]] = {"router": (options.features, options.num_experts)}
    if options.gated:
        found["w_gate"] = wide
    found |= {"w_up": wide, "w_down": narrow}
    if options.use_bias:
        found |= {"b_up": wide[::2], "b_down": narrow[::2]}
    return found


def parameters(options: Options, held: int) -> dict[str, Parameter]:
    """The parameters by name, with ``held`` experts."""
    weights = partial(_for_each_expert, options.kernel_init)

    def parameter(name: str, shape: tuple[int, ...]) -> Parameter:
        if name == "router":
            return Parameter(options.kernel_init, shape, jnp.float32)
        return Parameter(weights if name.startswith("w_") else options.bias_init, shape, options.param_dtype)

    return {name: parameter(name, shape) for name, shape in shapes(options, held).items()}


def check_shapes(options: Options, wanted: Mapping[str, tuple[int, ...]], given: Mapping[str, jax.Array]) -> None:
    """ValueError for parameters that are not those of the experts which this device holds."""
    for name, shape in wanted.items():
        if given[name].shape != shape:
            where = "" if options.axis_name is None else f" on each device of axis {options.axis_name!r}"
            raise ValueError(f"MoE: expected {name} of shape {shape}{where}, got {given[name].shape}")


def _for_each_expert(init: Initializer, key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """One matrix after the other: an initializer that scales by fan-in would count the experts in."""
    made = jax.eval_shape(lambda k: init(k, shape[1:], dtype), key)
    if not isinstance(made, jax.ShapeDtypeStruct):
        raise TypeError(
            f"MoE: kernel_init must return arrays, got {type(made).__name__}: it makes the matrix of one expert, and "
            "metadata of partitioning would say nothing of the axis of experts; place the parameters by their sharding"
        )
    weights: jax.Array = jax.vmap(lambda k: init(k, shape[1:], dtype))(jax.random.split(key, shape[0]))
    return weights


def forward(
    options: Options, given: Mapping[str, jax.Array], inputs: jax.Array, axis_name: str | None
) -> tuple[jax.Array, jax.Array]:
    """The layer's result, shaped as ``inputs``, and the loss for load balancing, a float32 scalar.

    With ``axis_name``, along which experts are sharded, the experts' parameters and the inputs are a device's own.
    """
    if inputs.ndim == 0 or inputs.shape[-1] != options.features:
        raise ValueError(f"MoE: expected inputs (..., {options.features}), got shape {inputs.shape}")
    names = [name for name in given if name != "router"]
    tokens = inputs.reshape(-1, options.features)
    routing = route(options, tokens, given["router"])
    tokens, *rest = promote_dtype(tokens, *(given[name] for name in names), dtype=options.dtype)
    held = dict(zip(names, rest, strict=True))
    if tokens.shape[0] == 0:
        return jnp.zeros(inputs.shape, tokens.dtype), jnp.zeros((), jnp.float32)
    chosen, weights, sizes = routing.experts, routing.weights, group_sizes(options, routing.experts)
    mean = jnp.sum(routing.probabilities, axis=0) / tokens.shape[0]
    offset = None
    if axis_name is not None:
        # A device routes its own tokens alone, so that all agree where a token goes.
        tokens, chosen, weights = (lax.all_gather(v, axis_name, tiled=True) for v in (tokens, chosen, weights))
        sizes, mean = lax.psum(sizes, axis_name), lax.pmean(mean, axis_name)
        offset = (lax.axis_index(axis_name) * held["w_up"].shape[0])[None]
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    rows = run_experts(options, held, dispatch(tokens, order, options.top_k), sizes, offset)
    result = combine(rows, order, weights)
    if axis_name is not None:
        # Before rounding: a token's copies are added up across devices as they are on one.
        result = lax.psum_scatter(result, axis_name, tiled=True)
    return result.astype(rows.dtype).reshape(inputs.shape), load_balancing(sizes, mean)


def route(options: Options, tokens: jax.Array, router: jax.Array) -> Routing:
    """The experts of each token and their weights, from logits that are computed in float32 throughout."""
    logits = api.dot_general(
        tokens.astype(jnp.float32),
        router.astype(jnp.float32),
        (((1,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    )
    chosen, experts = lax.top_k(logits, options.top_k)
    if options.softmax == "after":
        weights = jax.nn.softmax(chosen)
    else:
        weights = jnp.exp(chosen - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
    return Routing(experts, weights, jax.nn.softmax(logits))


def group_sizes(options: Options, experts: jax.Array) -> jax.Array:
    """How many copies of tokens each expert gets."""
    return jnp.bincount(experts.reshape(-1), length=options.num_experts)


def load_balancing(sizes: jax.Array, mean: jax.Array) -> jax.Array:
    """The number of experts times the sum of each one's share of copies by its mean probability; 1 if balanced."""
    sizes = sizes.astype(jnp.float32)
    shares = sizes / jnp.maximum(jnp.sum(sizes), 1.0)
    return sizes.shape[0] * jnp.sum(shares * mean)


def dispatch(tokens: jax.Array, order: jax.Array, copies: int) -> jax.Array:
    """The copies of tokens as rows in the order of their experts.

    Copies are made before they are permuted: then the gradient permutes and sums, and no row is added to twice.
    """
    return _permute(jnp.repeat(tokens, copies, axis=0), order)


def run_experts(
    options: Options, held: Mapping[str, jax.Array], rows: jax.Array, sizes: jax.Array, offset: jax.Array | None
) -> jax.Array:
    """Each row through its expert; rows whose expert is not held have zeros."""
    how: dict[str, Any] = {"precision": options.precision, "kernel": options.kernel, "group_offset": offset}
    if options.gated:
        hidden = ragged_gated(rows, held["w_gate"], held["w_up"], sizes, activation=options.activation, **how)
    else:
        hidden = ragged_dot(rows, held["w_up"], sizes, bias=held.get("b_up"), activation=options.activation, **how)
    return ragged_dot(hidden, held["w_down"], sizes, bias=held.get("b_down"), **how)


def combine(rows: jax.Array, order: jax.Array, weights: jax.Array) -> jax.Array:
    """Each token's copies, weighed and added up in float32, or in a wider type of the rows."""
    copies = _permute(rows, jnp.argsort(order)).reshape(*weights.shape, rows.shape[-1])
    wide = jnp.float64 if rows.dtype == jnp.float64 else jnp.float32
    return jnp.sum(copies.astype(wide) * weights.astype(wide)[..., None], axis=1)


def _permute(rows: jax.Array, order: jax.Array) -> jax.Array:
    return rows.at[order].get(unique_indices=True, mode="promise_in_bounds")
