"""Mixtures of experts to test: layers by linen and nnx, their parameters, and the same by dense products in float64."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from arrays import array
from flax import nnx

import jaxgemm.flax.linen as our_linen
import jaxgemm.flax.nnx as our_nnx
from jaxgemm.epilogue import ACTIVATIONS

F, H, E = 12, 20, 8
SIZES = {"features": F, "hidden": H, "num_experts": E}
PLAIN = {"gated": False, "use_bias": True, "activation": "gelu"}
#: Arguments of layers, by name.
LAYERS = {
    "top 1": {"top_k": 1},
    "top 1, before": {"top_k": 1, "softmax": "before"},
    "top 2": {"top_k": 2},
    "top 2, before": {"top_k": 2, "softmax": "before"},
    "all": {"top_k": E},
    "all, before": {"top_k": E, "softmax": "before"},
    "not gated": {"top_k": 2, **PLAIN},
    "not gated, before": {"top_k": 1, "softmax": "before", **PLAIN},
    "no bias": {"top_k": 2, "gated": False, "activation": None},
}


def linen(**options):
    return our_linen.MoE(**SIZES, **options)


def initial(rng, **options):
    """Parameters by name, biases of 0 mean included; drawn by NumPy, which compiles nothing."""
    shapes = jax.eval_shape(linen(**options).init, jax.random.key(0), jnp.zeros((1, F)))["params"]
    return jax.tree.map(lambda s: array(0.4 * rng.standard_normal(s.shape), s.dtype), shapes)


def tokens(rng, *shape):
    return array(rng.standard_normal((*shape, F)), np.float32)


def apply(options, params, x):
    """(result, loss) by linen's layer, compiled."""
    return _compiled(tuple(options.items()))(params, x)


@cache
def _compiled(options):
    def run(params, x):
        y, sown = linen(**dict(options)).apply({"params": params}, x, mutable="losses")
        (loss,) = sown["losses"]["load_balancing"]
        return y, loss

    return jax.jit(run)


def by_nnx(options, params, **more):
    layer = our_nnx.MoE(**SIZES, kernel_init=nnx.initializers.zeros, **options, **more, rngs=nnx.Rngs(1))
    nnx.update(layer, params)
    return layer


def choice(params, x, top_k):
    """Each token's experts, the best one first, by NumPy."""
    logits = np.asarray(x, np.float64).reshape(-1, F) @ np.asarray(params["router"], np.float64)
    return np.argsort(-logits, axis=1, kind="stable")[:, :top_k]


def expected(options, params, x):
    """(result, loss) in float64."""
    return jax.jit(partial(densely, options))(params, x, choice(params, x, options["top_k"]))


def densely(options, params, x, chosen):
    """All tokens through all experts, of whose results those not chosen count nothing; differentiable."""
    params, x = jax.tree.map(lambda v: jnp.asarray(v, jnp.float64), (params, x))
    rows = x.reshape(-1, F)
    odds = jnp.exp(rows @ params["router"])
    odds /= jnp.sum(odds, 1, keepdims=True)
    weights = odds * jnp.any(chosen[:, :, None] == np.arange(E), axis=1)
    if options.get("softmax", "after") == "after":
        weights /= jnp.sum(weights, 1, keepdims=True)
    name = options.get("activation", "silu")
    act = ACTIVATIONS[name] if name else lambda v: v
    up = jnp.einsum("tf,efh->eth", rows, params["w_up"])
    if options.get("gated", True):
        hidden = act(jnp.einsum("tf,efh->eth", rows, params["w_gate"])) * up
    else:
        hidden = act(up + params["b_up"][:, None] if "b_up" in params else up)
    results = jnp.einsum("eth,ehf->etf", hidden, params["w_down"])
    results = results + params["b_down"][:, None] if "b_down" in params else results
    shares = jnp.mean(chosen.reshape(-1, 1) == np.arange(E), 0)
    return jnp.einsum("te,etf->tf", weights, results).reshape(x.shape), E * jnp.sum(shares * jnp.mean(odds, 0))


def is_grouped(equation):
    return equation.primitive.name.startswith("jaxgemm_grouped")


def objective(function):
    """Of parameters and tokens: a number that each result and the loss change."""

    def total(params, x):
        y, loss = function(params, x)
        return jnp.sum(jnp.sin(y.astype(jnp.float64))) + 3 * loss

    return total
