"""What override makes part of a product: a bias and an activation right after it, read by nothing else; and pairs."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxprs import equations
from meshes import mesh, put, traffic
from routing import check, close, total

import jaxgemm
from jaxgemm.epilogue import ACTIVATIONS, Epilogue
from jaxgemm.override import override
from jaxgemm.products.dense import gemm_p
from jaxgemm.products.gated import gated_p

PLAIN, BIAS = Epilogue(), Epilogue(has_bias=True)


@pytest.fixture
def b(rng):
    return array(rng.standard_normal(8))


def products(primitive, function, *args, **options):
    """Parameters of the products in the jaxpr of the function with its products routed."""
    return [eqn.params for eqn in equations(override(function, **options), *args) if eqn.primitive is primitive]


def epilogues(function, *args, **options):
    return [params["epilogue"] for params in products(gemm_p, function, *args, **options)]


def pairs(function, *args, **options):
    return [params["activation"] for params in products(gated_p, function, *args, **options)]


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("biased", [False, True])
def test_what_follows_a_product_is_taken_up(activation, biased, x, w, b):
    apply = ACTIVATIONS.get(activation, lambda z: z)
    f = (lambda x, w, b: apply(x @ w + b)) if biased else (lambda x, w, _b: apply(x @ w))
    check(f, x, w, b, products=1)
    for kernel in ("auto", "host"):
        assert epilogues(f, x, w, b, kernel=kernel) == [Epilogue(has_bias=biased, activation=activation)]


WRITTEN = {
    "bias first": lambda x, w, b: b + x @ w,
    "one row": lambda x, w, b: x @ w + b[None],
    "reshaped": lambda x, w, b: x @ w + jnp.reshape(b, (1, -1)),
    "repeated": lambda x, w, b: x @ w + jnp.broadcast_to(b, (5, 8)),
    "repeated, then reshaped": lambda x, w, b: x[None] @ w + jnp.broadcast_to(b, (5, 8)).reshape(1, 5, 8),
    "more axes": lambda x, w, b: x[:, None] @ w + b,
    "one column": lambda x, w, b: x @ w[:, :1] + b[:1],
    "in jit": lambda x, w, b: jax.jit(lambda x: x @ w + b)(x),
    "in scan": lambda x, w, b: lax.scan(lambda c, _: (c @ w + b, None), x, None, length=2)[0],
    "in checkpoint": lambda x, w, b: jax.checkpoint(lambda x: x @ w + b)(x),
    "bias made later": lambda x, w, b: (lambda z: z + jnp.sin(b))(x @ w),
    "bias read elsewhere": lambda x, w, b: (x @ w + b) * b,
    "vmap": lambda x, w, b: jax.vmap(lambda row: row @ w + b)(x),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_bias_however_it_is_written(name, x, w, b):
    check(WRITTEN[name], x, w, b, products=1)
    assert epilogues(WRITTEN[name], x, w, b) == [BIAS]


@jax.custom_jvp
@jax.jit
def relu(x):
    return jnp.maximum(x, 0)


@relu.defjvp
def jvp(primals, tangents):  # as the rule of jax.nn.relu is called
    return relu(*primals), tangents[0]


def _read_elsewhere(x, w, b):
    z = x @ w
    return z + b, jnp.sum(z)


def _other_settings(x, w, b):
    z = x @ w + b
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        return jnp.tanh(z)


LEFT = {
    "a bias along rows": (lambda x, w, b: x @ w + b[:5, None], PLAIN),
    "a bias along rows of as many": (lambda _x, w, b: w @ w + b[:, None], PLAIN),
    "one that is repeated": (lambda _x, w, b: w @ w + lax.broadcast_in_dim(b, (8, 8), (0,)), PLAIN),
    "a matrix": (lambda x, w, _b: x @ w + x, PLAIN),
    "a reshaped matrix": (lambda x, w, _b: x[None] @ w + x.reshape(1, 5, 8), PLAIN),
    "a repeated matrix": (lambda x, w, _b: jnp.stack([x, x]) @ w + x[None], PLAIN),
    "a number": (lambda x, w, b: x @ w + b[0], PLAIN),
    "another type": (lambda x, w, b: (x @ w).astype(jnp.float32) + b.astype(jnp.float32), PLAIN),
    "a difference": (lambda x, w, b: x @ w - b, PLAIN),
    "a product read elsewhere": (_read_elsewhere, PLAIN),
    "a product that is a result": (lambda x, w, _b: (lambda z: (z, jnp.tanh(z)))(x @ w), PLAIN),
    "a sum that is a result": (lambda x, w, b: (lambda z: (z, jnp.tanh(z)))(x @ w + b), BIAS),
    "twice the product": (lambda x, w, _b: (lambda z: z + z)(x @ w), PLAIN),
    "another function": (lambda x, w, b: jnp.sin(x @ w + b), BIAS),
    "a function with a rule of its own": (lambda x, w, b: relu(x @ w + b), BIAS),
    "what is traced under other settings": (_other_settings, PLAIN),
    "half of a gelu": (lambda x, w, b: (lambda z: z * (1 + jnp.tanh(z)))(x @ w + b), BIAS),
}


@pytest.mark.parametrize("name", LEFT)
def test_the_rest_stays(name, x, w, b):
    function, expected = LEFT[name]
    check(function, x, w, b, products=1)
    assert epilogues(function, x, w, b) == [expected]


def test_a_derivative_keeps_what_it_needs(x, w, b):
    def gradient(x, w, b):
        return jax.grad(total(lambda *args: jax.nn.silu(args[0] @ args[1] + args[2])), (0, 1, 2))(x, w, b)

    close(override(gradient)(x, w, b), gradient(x, w, b))
    assert BIAS in epilogues(gradient, x, w, b)
    assert not any(e.activation for e in epilogues(gradient, x, w, b))


def test_what_xla_is_asked_for_is_left_as_it_is(x, w, b):
    assert epilogues(lambda x, w, b: jnp.tanh(x @ w + b), x, w, b, kernel="xla") == [PLAIN]


def test_a_kernel_that_cannot_is_not_asked_to(x, w, b):
    f = lambda x, w, b: jnp.tanh(lax.dot_general(x, w, (((1,), (0,)), ((), ()))) + b)  # noqa: E731
    integers = jnp.ones((5, 8), jnp.int8), jnp.ones((8, 8), jnp.int8), jnp.ones(8, jnp.int32)
    g = lambda x, w, b: lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32) + b  # noqa: E731
    assert epilogues(g, *integers) == [PLAIN]
    # One axis of columns is what kernels add a bias along; of more, the last.
    h = lambda x, w, b: jnp.einsum("ab,bcd->acd", x, w.reshape(8, 2, 4)) + b[:4]  # noqa: E731
    assert epilogues(h, x, w, b, kernel="host") == [PLAIN]
    check(h, x, w, b, products=1)
    assert epilogues(f, x, w, b, kernel="host") == [Epilogue(has_bias=True, activation="tanh")]


def test_an_unmodified_layer(rng):
    x = array(rng.standard_normal((3, 4, 6)), jnp.bfloat16)
    layer = nn.Dense(8, dtype=jnp.bfloat16)
    variables = layer.init(jax.random.key(0), x)
    f = lambda v, x: nn.gelu(layer.apply(v, x))  # noqa: E731
    assert epilogues(f, variables, x) == [Epilogue(has_bias=True, activation="gelu")]
    np.testing.assert_array_equal(jax.jit(override(f))(variables, x), jax.jit(f)(variables, x))
    assert "gelu(a b + bias)" in str(jaxgemm.explain(override(f), variables, x))


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_on_a_mesh(types, rng):
    on = mesh((8,), ("x",), types=types)
    x, w, b = (rng.standard_normal(s) for s in ((16, 8), (8, 24), (24,)))
    f = lambda x, w, b: jax.nn.silu(x @ w + b)  # noqa: E731
    expected = f(x, w, b)
    with jax.set_mesh(on):
        sharded = [jax.device_put(v, jax.NamedSharding(on, s)) for v, s in ((x, P("x")), (w, P()), (b, P()))]
        for kernel in ("auto", "host"):
            close(np.asarray(jax.jit(override(f, kernel=kernel))(*sharded)), np.asarray(expected))


@pytest.mark.parametrize("kernel", ["auto", "host"])
def test_inside_of_shard_map(kernel, rng):
    x, w, b = (array(rng.standard_normal(s)) for s in ((16, 8), (8, 24), (24,)))
    specs = {"mesh": mesh((8,), ("x",)), "in_specs": (P("x"), P(), P()), "out_specs": P("x")}
    f = jax.shard_map(lambda x, w, b: jnp.tanh(x @ w + b), **specs)
    ours = override(f, kernel=kernel)
    close(jax.jit(ours)(x, w, b), jax.jit(f)(x, w, b))
    close(*(jax.jit(jax.grad(total(g), argnums=(0, 1, 2)))(x, w, b) for g in (ours, f)))


# --- Gated pairs ----------------------------------------------------------------------------------------------

GATED = {
    "silu": lambda x, g, u: jax.nn.silu(x @ g) * (x @ u),
    "gelu": lambda x, g, u: jax.nn.gelu(x @ g) * (x @ u),
    "relu": lambda x, g, u: jax.nn.relu(x @ g) * (x @ u),
    "the other first": lambda x, g, u: (x @ u) * jax.nn.silu(x @ g),
    "more axes": lambda x, g, u: (lambda x: jax.nn.silu(x @ g) * (x @ u))(x[:, None]),
    "one row": lambda x, g, u: (lambda x: jax.nn.silu(x @ g) * (x @ u))(x[0]),
    "in scan": lambda x, g, u: lax.scan(lambda c, _: (jax.nn.silu(c @ g) * (c @ u), None), x, None, length=2)[0],
    "in checkpoint": jax.checkpoint(lambda x, g, u: jax.nn.silu(x @ g) * (x @ u)),
    "vmap": jax.vmap(lambda x, g, u: jax.nn.silu(x @ g) * (x @ u), (0, None, None)),
}


@pytest.fixture
def u(rng):
    return array(rng.standard_normal((8, 8)) / 4)


@pytest.mark.parametrize("name", GATED)
def test_a_gated_layer_is_a_pair(name, x, w, u):
    function = GATED[name]
    assert pairs(function, x, w, u) == [name if name in ACTIVATIONS else "silu"]
    assert epilogues(function, x, w, u) == []
    ours = override(function)
    close(ours(x, w, u), function(x, w, u))
    close(*(jax.jit(jax.grad(total(f), argnums=(0, 1, 2)))(x, w, u) for f in (ours, function)))


def _gated_with_other_settings(x, g, u):
    gate, up = x @ g, x @ u
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        return jax.nn.silu(gate) * up


NO_PAIR = {
    "other rows": lambda x, g, u: jax.nn.silu(x @ g) * (jnp.sin(x) @ u),
    "other columns": lambda x, g, u: jax.nn.silu(x @ g) * (x @ u[:, :1]),
    "weights the other way": lambda x, g, u: jax.nn.silu(x @ g.T) * (x @ u.T),
    "rows that are weights": lambda x, g, u: jax.nn.silu(u @ g) * (x[0] @ u),
    "no activation": lambda x, g, u: (x @ g) * (x @ u),
    "two activations": lambda x, g, u: jax.nn.silu(x @ g) * jnp.tanh(x @ u),
    "a bias": lambda x, g, u: jax.nn.silu(x @ g + x[0]) * (x @ u),
    "a sum": lambda x, g, u: jax.nn.silu(x @ g) + (x @ u),
    "once more": lambda x, g, u: (lambda z: (jax.nn.silu(x @ g) * z, z))(x @ u),
    "its square": lambda x, g, _: (lambda z: z * z)(jax.nn.silu(x @ g)),
    "by a number": lambda x, g, _: jax.nn.silu(x @ g) * 2.0,
    "what is traced under other settings": _gated_with_other_settings,
    "another precision": lambda x, g, u: jax.nn.silu(x @ g) * jnp.matmul(x, u, precision="highest"),
}


@pytest.mark.parametrize("name", NO_PAIR)
def test_no_pair(name, x, w, u):
    assert pairs(NO_PAIR[name], x, w, u) == []
    close(override(NO_PAIR[name])(x, w, u), NO_PAIR[name](x, w, u))


def test_products_that_stay_are_no_pair():
    """Extents that are not known yet have no kernel."""
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), jnp.float32)
    weights = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 2
    assert pairs(GATED["silu"], x, *weights) == []
    assert len(jaxgemm.explain(override(GATED["silu"]), x, *weights).left) == 2


def test_kernels_by_name_compute_products_of_their_own(x, w, u):
    for kernel in ("host", "xla"):
        assert pairs(GATED["silu"], x, w, u, kernel=kernel) == []
    assert epilogues(GATED["silu"], x, w, u, kernel="host") == [Epilogue(activation="silu"), PLAIN]


def test_an_unmodified_gated_layer(rng):
    class Gated(nn.Module):
        @nn.compact
        def __call__(self, x):
            gate, up = (nn.Dense(8, use_bias=False, dtype=jnp.bfloat16, name=name) for name in ("gate", "up"))
            return nn.silu(gate(x)) * up(x)

    x = array(rng.standard_normal((3, 6)), np.float32)  # which each of the two converts
    layer = Gated()
    variables = layer.init(jax.random.key(0), x)
    assert pairs(layer.apply, variables, x) == ["silu"]
    np.testing.assert_array_equal(jax.jit(override(layer.apply))(variables, x), jax.jit(layer.apply)(variables, x))


def test_a_pair_on_a_mesh(rng):
    on = mesh((8,), ("x",))
    arrays = [rng.standard_normal(s).astype(np.float16) for s in ((16, 8), (8, 24), (8, 24))]
    sharded = [put(v, on, s) for v, s in zip(arrays, (P(None, "x"), P("x"), P("x")), strict=True)]
    f = GATED["silu"]
    assert pairs(f, *sharded) == ["silu"]
    np.testing.assert_allclose(jax.jit(override(f))(*sharded), jax.jit(f)(*sharded), rtol=2e-3, atol=2e-3)
    assert traffic(override(f), *sharded) == traffic(f, *sharded)
