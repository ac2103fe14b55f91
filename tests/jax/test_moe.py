"""The mixture of experts of flax.linen and flax.nnx: results, gradients and losses in float64 and by devices."""

from __future__ import annotations

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jaxprs import equations
from layers import close, same_bits
from meshes import assert_close

from jaxgemm import UnsupportedError

pytest.importorskip("flax")

from flax import linen as nn
from flax import nnx
from mixtures import (
    LAYERS,
    SIZES,
    E,
    F,
    H,
    apply,
    by_nnx,
    choice,
    densely,
    expected,
    initial,
    is_grouped,
    linen,
    objective,
    tokens,
)

import jaxgemm.flax.linen as our_linen
import jaxgemm.flax.nnx as our_nnx
from jaxgemm.flax import _moe

# --- Against dense products ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients(name, rng):
    options = LAYERS[name]
    params, x = initial(rng, **options), tokens(rng, 3, 7)
    got = apply(options, params, x)
    assert got[0].dtype == got[1].dtype == jnp.float32
    chosen = choice(params, x, options["top_k"])
    assert_close(got, expected(options, params, x), 1e-5)
    gradient = jax.jit(jax.grad(objective(partial(apply, options)), (0, 1)))(params, x)
    plain = jax.jit(jax.grad(objective(lambda p, x: densely(options, p, x, chosen)), (0, 1)))(params, x)
    assert_close(gradient, plain, 2e-5)


@pytest.mark.parametrize("name", ["top 1, before", "top 2", "not gated", "no bias"])
def test_nnx_is_linen(name, rng):
    options = LAYERS[name]
    params, x = initial(rng, **options), tokens(rng, 9)
    layer = nnx.merge(*nnx.split(by_nnx(options, params)))
    same_bits(nnx.to_pure_dict(nnx.state(layer)), params)
    close(nnx.jit(lambda m, x: m(x))(layer, x), apply(options, params, x))
    gradient = nnx.jit(nnx.grad(lambda m, x: objective(lambda _, x: m(x))(None, x)))(layer, x)
    close(nnx.to_pure_dict(gradient), jax.jit(jax.grad(objective(partial(apply, options))))(params, x))


def test_the_orders_of_the_softmax_differ_by_what_is_not_chosen(rng):
    params, x = initial(rng, top_k=2), tokens(rng, 9)
    after, before = (apply(LAYERS[n], params, x)[0] for n in ("top 2", "top 2, before"))
    odds = np.exp(np.asarray(x, np.float64) @ np.asarray(params["router"], np.float64))
    chosen = np.take_along_axis(odds, choice(params, x, 2), 1)
    share = chosen.sum(1, keepdims=True) / odds.sum(1, keepdims=True)
    assert share.min() < 0.9
    assert_close(before, after * share, 1e-5)


@pytest.mark.parametrize("types", [{"dtype": "bfloat16"}, {"dtype": "bfloat16", "param_dtype": "bfloat16"}])
@pytest.mark.parametrize("name", ["top 2", "not gated"])
def test_bf16(types, name, rng):
    options = LAYERS[name]
    params, x = initial(rng, **options, **types), tokens(rng, 40)
    want = jnp.dtype(types.get("param_dtype", "float32"))
    assert {k: v.dtype for k, v in params.items()} == {k: jnp.float32 if k == "router" else want for k in params}
    y, loss = apply({**options, **types}, params, x)
    assert (y.dtype, loss.dtype) == (jnp.bfloat16, jnp.float32)
    exact, exact_loss = expected(options, params, x)
    assert_close(y, exact, 2e-2)
    # The router sees the inputs before they are rounded.
    assert_close(loss, exact_loss, 1e-6)


def test_copies_are_added_up_in_float32(rng):
    """Eight equal copies, weighed by an eighth each, are the copy: in bf16 their sum would be rounded on the way."""
    params = initial(rng, top_k=E, dtype="bfloat16")
    params = {k: jnp.zeros_like(v) if k == "router" else v.at[:].set(v[0]) for k, v in params.items()}
    x = tokens(rng, 40)
    y, loss = apply({"top_k": E, "dtype": "bfloat16"}, params, x)
    alone = our_linen.MoE(F, H, 1, 1, dtype="bfloat16")
    one = {k: v[:, :1] if k == "router" else v[:1] for k, v in params.items()}
    same_bits(y, alone.apply({"params": one}, x))
    assert_close(loss, jnp.float32(1), 1e-6)


def test_float64(rng):
    options = {"top_k": 2, "dtype": "float64", "param_dtype": "float64"}
    params, x = initial(rng, **options), array(tokens(rng, 9), np.float64)
    # The weights are float32 and nothing else is: with one expert a token they are 1.
    one = {**options, "top_k": 1}
    assert_close(apply(one, params, x)[0], expected(one, params, x)[0], 1e-13)
    assert_close(apply(options, params, x)[0], expected(options, params, x)[0], 1e-6)


def test_precision(rng):
    params, x = initial(rng, top_k=2), tokens(rng, 9)
    for precision, given in ((None, None), ("highest", (jax.lax.Precision.HIGHEST,) * 2)):
        found = equations(partial(apply, {"top_k": 2, "precision": precision}), params, x)
        assert {e.params["precision"] for e in found if is_grouped(e)} == {given}


def test_load_balancing_by_hand():
    sizes, mean = array([3, 1, 0, 0]), array([0.5, 0.25, 0.25, 0.0])
    assert _moe.load_balancing(sizes, mean) == 4 * (0.75 * 0.5 + 0.25 * 0.25)


# --- What a mixture must bear ---------------------------------------------------------------------------------


@pytest.mark.parametrize("favourite", [0, E - 1])
def test_experts_without_tokens(favourite, rng):
    """All tokens at one expert: no capacity is exceeded, and the others' gradients are 0."""
    options = {"top_k": 1, "softmax": "before"}
    params, x = initial(rng, **options), jnp.abs(tokens(rng, 31)) + 0.1
    params["router"] = params["router"].at[:, favourite].set(9.0)
    got = apply(options, params, x)
    assert_close(got, expected(options, params, x), 1e-5)
    assert got[1] > 0.9 * E
    gradient = jax.jit(jax.grad(objective(partial(apply, options))))(params, x)
    idle = np.arange(E) != favourite
    for name in ("w_gate", "w_up", "w_down"):
        assert not np.any(gradient[name][idle])
        assert np.any(gradient[name][favourite])


@pytest.mark.parametrize(("name", "bad"), [("top 2", np.nan), ("top 2, before", np.inf), ("not gated", np.nan)])
def test_a_bad_token_spoils_no_other(name, bad, rng):
    options = LAYERS[name]
    params, x = initial(rng, **options), tokens(rng, 11)
    spoilt = x.at[4, 2].set(bad)
    y, _ = apply(options, params, spoilt)
    rest = np.arange(11) != 4
    assert_close(y[rest], expected(options, params, x)[0][rest], 1e-5)
    assert not np.all(np.isfinite(y[4]))
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(apply(options, params, x)[0]))))
    assert_close(gradient(spoilt)[rest], gradient(x)[rest], 1e-5)


def test_no_tokens_and_one(rng):
    options = {"top_k": 2}
    params = initial(rng, **options)
    same_bits(apply(options, params, tokens(rng, 3, 0)), (jnp.zeros((3, 0, F), jnp.float32), jnp.float32(0)))
    x = tokens(rng)
    assert_close(apply(options, params, x), expected(options, params, x), 1e-5)


def test_vmap_and_forward_mode(rng):
    options = {"top_k": 2}
    params, x = initial(rng, **options), tokens(rng, 3, 5)
    run = partial(apply, options)
    each = [run(params, v) for v in x]
    assert_close(jax.jit(jax.vmap(run, (None, 0)))(params, x), jax.tree.map(lambda *v: jnp.stack(v), *each), 1e-5)
    function, direction = objective(run), tokens(rng, 3, 5)
    _, tangent = jax.jit(lambda *x: jax.jvp(partial(function, params), x[:1], x[1:]))(x, direction)
    assert_close(tangent, jnp.vdot(jax.jit(jax.grad(function, 1))(params, x), direction), 1e-5)


# --- Parameters and arguments ---------------------------------------------------------------------------------


def test_initial_values():
    """As wide as one expert's matrix has them; the number of experts does not count as fan-in."""
    layer = our_nnx.MoE(64, 128, E, 1, rngs=nnx.Rngs(0))
    for name, fan_in in (("router", 64), ("w_gate", 64), ("w_up", 64), ("w_down", 128)):
        assert np.std(getattr(layer, name)[...]) == pytest.approx(fan_in**-0.5, rel=0.1)
    assert np.any(layer.w_up[0] != layer.w_up[1])

    def threes(_key, shape, dtype):
        assert len(shape) == 2
        return jnp.full(shape, 3, dtype)

    given = {"kernel_init": threes, "bias_init": nnx.initializers.ones, "gated": False, "use_bias": True}
    made = linen(top_k=1, **given).init(jax.random.key(0), jnp.zeros(F))
    layer = our_nnx.MoE(**SIZES, top_k=1, **given, rngs=nnx.Rngs(0))
    same_bits(made, {"params": nnx.to_pure_dict(nnx.state(layer))})
    assert {k: (v.min(), v.max()) for k, v in made["params"].items()} == {
        **dict.fromkeys(("router", "w_up", "w_down"), (3, 3)),
        **dict.fromkeys(("b_up", "b_down"), (1, 1)),
    }


EQUAL = {
    "Linear": lambda **how: our_nnx.Linear(F, F, **how),
    "LinearGeneral": lambda **how: our_nnx.LinearGeneral(F, F, **how),
    "Einsum": lambda **how: our_nnx.Einsum("ab,bc->ac", (F, F), None, **how),
    "MoE": lambda **how: our_nnx.MoE(F, H, 2, 1, **how),
    "MoE with biases": lambda **how: our_nnx.MoE(F, H, 2, 1, gated=False, use_bias=True, **how),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_nnx_layers_are_equal(name, rng):
    """An initializer is equal to itself alone, so a layer keeps none: one of a model's layers is traced for all."""
    initializers = nnx.initializers.normal, nnx.initializers.zeros_init
    layers = [
        EQUAL[name](kernel_init=initializers[0](0.02), bias_init=initializers[1](), rngs=nnx.Rngs(seed))
        for seed in range(2)
    ]
    first, second = (nnx.split(layer)[0] for layer in layers)
    assert first == second
    assert hash(first) == hash(second)
    traces = []

    @nnx.jit
    def call(layer, x):
        traces.append(layer)
        return layer(x)

    x = tokens(rng, 3)
    results = [call(layer, x) for layer in layers]
    assert len(traces) == 1
    for layer, result in zip(layers, results, strict=True):
        jax.tree.map(np.testing.assert_array_equal, call(pickle.loads(pickle.dumps(layer)), x), result)
    assert len(traces) == 1


def test_init_returns_parameters_alone():
    assert {*linen(top_k=1).init(jax.random.key(0), jnp.zeros((2, F)))} == {"params"}
    assert {*linen(top_k=1, axis_name="x").init(jax.random.key(0), jnp.zeros((2, F)))} == {"params"}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ({"top_k": 9}, ValueError, "top_k = 9 of num_experts = 8"),
        ({"top_k": 1.5}, TypeError, "top_k must be an integer, got 1.5"),
        ({"top_k": True}, TypeError, "top_k must be an integer, got True"),
        ({"num_experts": 0}, ValueError, "num_experts must be at least 1"),
        ({"features": -1}, ValueError, "features must be at least 1"),
        ({"hidden": "2"}, TypeError, "hidden must be an integer"),
        ({"softmax": "during"}, ValueError, "softmax: got 'during', expected one of after, before"),
        ({"use_bias": True}, ValueError, "use_bias=True needs gated=False"),
        ({"activation": "softplus"}, ValueError, "MoE: activation: got 'softplus'"),
        ({"kernel": "none"}, ValueError, "none"),
    ],
)
def test_wrong_arguments(wrong, error, message):
    arguments = {**SIZES, "top_k": 1, **wrong}
    with pytest.raises(error, match=message):
        our_linen.MoE(**arguments)
    with pytest.raises(error, match=message):
        our_nnx.MoE(**arguments, rngs=nnx.Rngs(0))


def test_initial_values_without_metadata():
    init = nnx.initializers.lecun_normal()
    with pytest.raises(TypeError, match="kernel_init must return arrays, got Partitioned"):
        linen(top_k=1, kernel_init=nn.with_partitioning(init, (None, "x"))).init(jax.random.key(0), jnp.zeros((1, F)))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_strict_promotion(dtype, rng):
    params, x = initial(rng, top_k=2), tokens(rng, 5)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        y, loss = apply({"top_k": 2, "dtype": dtype}, params, x if dtype is None else x.astype(dtype))
    assert (y.dtype, loss.dtype) == (jnp.dtype(dtype or "float32"), jnp.float32)


def test_wrong_inputs(rng):
    for shape in ((3, F + 1), ()):
        with pytest.raises(ValueError, match=r"expected inputs \(\.\.\., 12\), got shape"):
            by_nnx({"top_k": 1}, {})(jnp.zeros(shape))
    x = tokens(rng, 3)
    layer = our_nnx.MoE(**SIZES, top_k=1, rngs=nnx.Rngs(0))
    layer.w_up = nnx.Param(jnp.zeros((E + 1, F, H)))
    with pytest.raises(ValueError, match=r"expected w_up of shape \(8, 12, 20\), got \(9, 12, 20\)"):
        layer(x)
    with pytest.raises(UnsupportedError, match="simt"):
        apply({"top_k": 1, "kernel": "simt"}, initial(rng, top_k=1), x)


def test_kernel(rng):
    params, x = initial(rng, top_k=2), tokens(rng, 9)
    found = [*equations(partial(apply, {"top_k": 2, "kernel": "xla"}), params, x)]
    assert {e.params["kernel"] for e in found if is_grouped(e)} == {"xla"}
    same_bits(apply({"top_k": 2, "kernel": "xla"}, params, x), apply({"top_k": 2}, params, x))
