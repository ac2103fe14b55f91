"""The flax layers: parameters and checkpoints are flax's, and results too."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from arrays import array
from jax import lax
from layers import close, products, same_bits, shaken

import jaxgemm
from jaxgemm.epilogue import ACTIVATIONS
from jaxgemm.override import override

pytest.importorskip("flax")

from flax import linen as nn
from flax import nnx, serialization

import jaxgemm.flax.linen as our_linen
import jaxgemm.flax.nnx as our_nnx

KERNELS = ("auto", "host")


@pytest.fixture
def x(rng):
    return array(rng.standard_normal((3, 5, 8)), "float32")


# --- linen ----------------------------------------------------------------------------------------------------

#: name: (layer, positional arguments, keywords, whether the bias is fused)
LINEN = {
    "Dense": ("Dense", (16,), {}, True),
    "Dense without bias": ("Dense", (16, False), {}, None),
    "Dense, other initial values": (
        "Dense",
        (6,),
        {"kernel_init": nn.initializers.orthogonal(), "bias_init": nn.initializers.normal(), "name": "named"},
        True,
    ),
    "Dense bf16": ("Dense", (16,), {"dtype": jnp.bfloat16}, True),
    "Dense bf16 parameters": ("Dense", (16,), {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}, True),
    "Dense highest": ("Dense", (16,), {"precision": "highest"}, True),
    "DenseGeneral": ("DenseGeneral", (16,), {}, True),
    "DenseGeneral, two features": ("DenseGeneral", ((2, 4),), {}, False),
    "DenseGeneral, two axes": ("DenseGeneral", (7,), {"axis": (-2, -1)}, True),
    "DenseGeneral, axes apart": ("DenseGeneral", ((2, 3), (0, 2)), {}, False),
    "DenseGeneral, batch": ("DenseGeneral", (7,), {"batch_dims": (0,)}, False),
    "DenseGeneral, no bias": ("DenseGeneral", ((2, 4),), {"use_bias": False}, None),
    "Einsum": ("Einsum", ((8, 6), "abc,cd->abd"), {}, True),
    "Einsum, two features": ("Einsum", ((8, 6, 7), "abc,cde->abde"), {}, False),
    "Einsum, transposed": ("Einsum", ((8, 6), "abc,cd->dab"), {}, False),
    "Einsum, batch": ("Einsum", ((3, 8, 6), "abc,acd->abd"), {}, False),
    "Einsum, ellipsis": ("Einsum", ((8, 6), "...c, cd -> ...d"), {}, True),
    "Einsum, no bias": ("Einsum", ((8, 6), "abc,cd->abd", False), {}, None),
    "Einsum, fp32 result": (
        "Einsum",
        ((8, 6), "abc,cd->abd"),
        {"dtype": jnp.bfloat16, "preferred_element_type": "float32"},
        True,
    ),
}


def linen_pair(name, **more):
    layer, args, keywords, _ = LINEN[name]
    return getattr(nn, layer)(*args, **keywords), getattr(our_linen, layer)(*args, **keywords, **more)


@pytest.mark.parametrize("name", LINEN)
@pytest.mark.parametrize("kernel", KERNELS)
def test_linen_layers(name, kernel, x, rng):
    theirs, ours = linen_pair(name, kernel=kernel)
    params = theirs.init(jax.random.key(1), x)
    same_bits(ours.init(jax.random.key(1), x), params)
    params = shaken(params, rng)
    eps = 2e-2 if "bf16" in name or "fp32 result" in name else 2e-6
    close(ours.apply(params, x), theirs.apply(params, x), eps)
    gradient = [
        jax.jit(jax.grad(lambda p, x, m=m: jnp.sum(jnp.sin(m.apply(p, x).astype(jnp.float32))), (0, 1)))
        for m in (ours, theirs)
    ]
    close(gradient[0](params, x), gradient[1](params, x), 4 * eps)
    epilogues, left = products(ours.apply, params, x)
    assert left == 0
    fused = LINEN[name][3]
    assert [e.has_bias for e in epilogues] == [bool(fused)]


@pytest.mark.parametrize("name", [name for name in LINEN if "bf16" not in name and "fp32 result" not in name])
def test_linen_activations(name, x, rng):
    for activation in ACTIVATIONS if name == "Dense" else ("gelu",):
        for kernel in KERNELS:
            theirs, ours = linen_pair(name, activation=activation, kernel=kernel)
            params = shaken(theirs.init(jax.random.key(1), x), rng)
            close(ours.apply(params, x), ACTIVATIONS[activation](theirs.apply(params, x)))
            epilogues, _ = products(ours.apply, params, x)
            # What a product cannot fuse follows it in jnp.
            fused = LINEN[name][3] is not False and "transposed" not in name
            assert [e.activation for e in epilogues] == [activation if fused else None]


@pytest.mark.parametrize("name", ["Dense", "DenseGeneral, two features", "Einsum"])
def test_linen_checkpoints_are_interchangeable(name, x):
    for theirs, ours in (linen_pair(name), linen_pair(name, activation="relu", kernel="host")):
        a, b = (m.init(jax.random.key(seed), x) for seed, m in ((1, theirs), (2, ours)))
        assert jax.tree.structure(a) == jax.tree.structure(b)
        same_bits(serialization.from_bytes(b, serialization.to_bytes(a)), a)
        same_bits(serialization.from_bytes(a, serialization.to_bytes(b)), b)
        close(ours.copy(activation=None).apply(a, x), theirs.apply(a, x))


def test_linen_fields():
    layer = our_linen.Dense(4, activation="relu", kernel="host", name="a")
    assert repr(layer.clone(kernel="auto")) != repr(layer)
    assert (layer.kernel, layer.activation, layer.features) == ("host", "relu", 4)
    assert layer.clone() == layer
    fields = list(our_linen.Dense.__dataclass_fields__)
    theirs = [f for f in nn.Dense.__dataclass_fields__ if f not in ("parent", "name")]
    assert fields[: len(theirs)] == theirs  # so that positional arguments mean the same


def test_linen_in_a_model(x):
    def model(layers, **dense):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                for i in range(2):
                    x = nn.remat(layers.Dense)(8, name=f"dense_{i}", **dense)(x)
                step = nn.scan(Step, variable_broadcast="params", split_rngs={"params": False})
                _, y = step()(x[:, 0], x.swapaxes(0, 1))
                return y

        class Step(nn.Module):
            @nn.compact
            def __call__(self, carry, x):
                carry = nn.tanh(layers.Dense(8)(carry) + layers.Dense(8, use_bias=False)(x))
                return carry, carry

        return Model()

    theirs, ours = model(nn), model(our_linen)
    params = theirs.init(jax.random.key(0), x)
    same_bits(ours.init(jax.random.key(0), x), params)
    close(jax.jit(ours.apply)(params, x), theirs.apply(params, x))
    _, state = ours.apply(params, x, capture_intermediates=True)
    _, expected = theirs.apply(params, x, capture_intermediates=True)
    close(state, expected)
    assert "Dense" in our_linen.Dense(4).tabulate(jax.random.key(0), x)


def test_linen_partitioning_metadata(x):
    init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
    theirs, ours = (m.Dense(4, kernel_init=init) for m in (nn, our_linen))
    a, b = (m.init(jax.random.key(0), x) for m in (theirs, ours))
    assert nn.get_partition_spec(a) == nn.get_partition_spec(b)
    close(ours.apply(a, x), theirs.apply(a, x))


def test_linen_products_of_the_users_own(x):
    calls = []

    def dot_general(*args, **keywords):
        calls.append(args)
        return lax.dot_general(*args, **keywords)

    for arguments in ({"dot_general": dot_general}, {"dot_general_cls": lambda: dot_general}):
        layer = our_linen.Dense(4, activation="relu", **arguments)
        params = layer.init(jax.random.key(0), x)
        same_bits(layer.apply(params, x), jax.nn.relu(nn.Dense(4).apply(params, x)))
    assert len(calls) == 4
    with pytest.raises(ValueError, match="Dense: kernel='host' picks the kernel of our product, but dot_general"):
        our_linen.Dense(4, dot_general=dot_general, kernel="host")


def test_linen_errors(x):
    with pytest.raises(ValueError, match=r"Dense: activation: got 'swish', expected None or one of relu, .*silu"):
        our_linen.Dense(4, activation="swish")
    with pytest.raises(ValueError, match="kernel: got 'fastest'"):
        our_linen.Einsum((8, 4), "ab,bc->ac", kernel="fastest")
    for equation in ("abc,cd", "abc->abc", "a,b,c->abc"):
        with pytest.raises(ValueError, match="einsum_str: got"):
            our_linen.Einsum((8, 4), equation).init(jax.random.key(0), x)


@pytest.mark.parametrize("kernel", KERNELS)
def test_linen_attention_and_einsum_take_dot_general(kernel, x, rng):
    dot_general = functools.partial(jaxgemm.dot_general, kernel=kernel)
    keywords = {"num_heads": 2, "qkv_features": 8, "deterministic": True}
    theirs = nn.MultiHeadAttention(**keywords)
    ours = nn.MultiHeadAttention(
        **keywords,
        qkv_dot_general=dot_general,
        out_dot_general=dot_general,
        attention_fn=functools.partial(nn.dot_product_attention, einsum_dot_general=dot_general),
    )
    params = shaken(theirs.init(jax.random.key(0), x), rng)
    close(ours.apply(params, x), theirs.apply(params, x))
    epilogues, left = products(ours.apply, params, x)
    assert (len(epilogues), left) == (6, 0)  # q, k, v, scores, values, out
    gradient = [jax.jit(jax.grad(lambda p, m=m: jnp.sum(jnp.sin(m.apply(p, x))))) for m in (ours, theirs)]
    close(gradient[0](params), gradient[1](params), 1e-5)


# Recurrent cells have no argument for the product: override reaches inside of them.
@pytest.mark.parametrize("cell", ["LSTMCell", "OptimizedLSTMCell", "GRUCell"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_linen_recurrent_layers(cell, kernel, x, rng):
    model = nn.RNN(getattr(nn, cell)(6))
    params = shaken(model.init(jax.random.key(0), x), rng)
    ours = override(model.apply, kernel=kernel)
    close(jax.jit(ours)(params, x), model.apply(params, x))
    epilogues, left = products(ours, params, x)
    assert epilogues
    assert left == 0
    gradient = [jax.jit(jax.grad(lambda p, f=f: jnp.sum(f(p, x)))) for f in (ours, model.apply)]
    close(gradient[0](params), gradient[1](params), 1e-5)


# --- nnx ------------------------------------------------------------------------------------------------------

NNX = {
    "Linear": ("Linear", (8, 16), {}, True),
    "Linear without bias": ("Linear", (8, 16), {"use_bias": False}, None),
    "Linear bf16": ("Linear", (8, 16), {"dtype": jnp.bfloat16}, True),
    "Linear, fp32 result": ("Linear", (8, 16), {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}, True),
    "Linear, narrow result": ("Linear", (8, 16), {"preferred_element_type": jnp.bfloat16}, False),
    "Linear, other initial values": (
        "Linear",
        (8, 6),
        {"kernel_init": nnx.initializers.orthogonal(), "bias_init": nnx.initializers.normal(), "precision": "highest"},
        True,
    ),
    "LinearGeneral": ("LinearGeneral", (8, (2, 4)), {}, False),
    "LinearGeneral, two axes": ("LinearGeneral", ((5, 8), 7), {"axis": (-2, -1)}, True),
    "LinearGeneral, batch": ("LinearGeneral", (8, 7), {"batch_axis": {0: 3}}, False),
    "LinearGeneral, no bias": ("LinearGeneral", (8, (2, 4)), {"use_bias": False}, None),
    "Einsum": ("Einsum", ("nta,ab->ntb", (8, 6), (6,)), {}, True),
    "Einsum, two features": ("Einsum", ("nta,hab->nthb", (2, 8, 4), (2, 4)), {}, False),
    "Einsum, no bias": ("Einsum", ("nta,ab->ntb", (8, 6)), {}, None),
}


def nnx_pair(name, **more):
    layer, args, keywords, _ = NNX[name]
    return (
        getattr(nnx, layer)(*args, **keywords, rngs=nnx.Rngs(3)),
        getattr(our_nnx, layer)(*args, **keywords, rngs=nnx.Rngs(3), **more),
    )


def nnx_shake(rng, *modules):
    state = shaken(nnx.state(modules[0]), rng)
    for module in modules:
        nnx.update(module, state)


@pytest.mark.parametrize("name", NNX)
@pytest.mark.parametrize("kernel", KERNELS)
def test_nnx_layers(name, kernel, x, rng):
    theirs, ours = nnx_pair(name, kernel=kernel)
    same_bits(nnx.to_pure_dict(nnx.state(ours)), nnx.to_pure_dict(nnx.state(theirs)))
    nnx_shake(rng, theirs, ours)
    eps = 2e-2 if "bf16" in name or "result" in name else 2e-6
    close(ours(x), theirs(x), eps)
    close(nnx.jit(lambda m, x: m(x))(ours, x), theirs(x), eps)
    loss = nnx.jit(nnx.grad(lambda m, x: jnp.sum(jnp.sin(m(x).astype(jnp.float32)))))
    close(nnx.to_pure_dict(loss(ours, x)), nnx.to_pure_dict(loss(theirs, x)), 4 * eps)
    epilogues, left = products(ours, x)
    assert left == 0
    assert [e.has_bias for e in epilogues] == [bool(NNX[name][3])]


@pytest.mark.parametrize("name", ["Linear", "LinearGeneral", "Einsum", "Einsum, no bias"])
def test_nnx_activations(name, x, rng):
    for activation in ("relu", "gelu"):
        for kernel in KERNELS:
            theirs, ours = nnx_pair(name, activation=activation, kernel=kernel)
            nnx_shake(rng, theirs, ours)
            close(ours(x), ACTIVATIONS[activation](theirs(x)))
            epilogues, _ = products(ours, x)
            assert [e.activation for e in epilogues] == [activation if NNX[name][3] is not False else None]


@pytest.mark.parametrize("name", ["Linear", "LinearGeneral", "Einsum"])
def test_nnx_state_is_interchangeable(name, x, rng):
    theirs, ours = nnx_pair(name, activation="relu", kernel="host")
    assert jax.tree.structure(nnx.state(theirs)) == jax.tree.structure(nnx.state(ours))
    for source, target in ((theirs, ours), (ours, theirs)):
        nnx.update(source, shaken(nnx.state(source), rng))
        saved = nnx.to_pure_dict(nnx.state(source))
        state = nnx.state(target)
        nnx.replace_by_pure_dict(state, saved)
        nnx.update(target, state)
        same_bits(nnx.to_pure_dict(nnx.state(target)), saved)
    graph, state = nnx.split(ours)
    close(nnx.merge(graph, state)(x), jax.nn.relu(theirs(x)))
    assert (ours.activation, ours.gemm_kernel) == ("relu", "host")
    assert ours.kernel.shape == theirs.kernel.shape


def test_nnx_products_of_the_users_own(x):
    calls = []

    def dot_general(*args, **keywords):
        calls.append(args)
        return lax.dot_general(*args, **keywords)

    def einsum(*args, **keywords):
        calls.append(args)
        return jnp.einsum(*args, **keywords)

    modules = [
        our_nnx.Linear(8, 4, activation="relu", dot_general=dot_general, rngs=nnx.Rngs(0)),
        our_nnx.LinearGeneral(8, 4, activation="relu", dot_general=dot_general, rngs=nnx.Rngs(0)),
        our_nnx.LinearGeneral(8, 4, activation="relu", dot_general_cls=lambda: dot_general, rngs=nnx.Rngs(0)),
        our_nnx.Einsum("abc,cd->abd", (8, 4), activation="relu", einsum_op=einsum, rngs=nnx.Rngs(0)),
    ]
    for i, module in enumerate(modules):
        assert jnp.min(module(x)) == 0
        assert len(calls) == i + 1
    our_nnx.Linear(8, 4, dot_general=lax.dot_general, kernel="host", rngs=nnx.Rngs(0))  # flax's own default
    with pytest.raises(ValueError, match="Linear: kernel='host' picks the kernel of our product, but dot_general"):
        our_nnx.Linear(8, 4, dot_general=dot_general, kernel="host", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="Einsum: activation: got 'swish'"):
        our_nnx.Einsum("abc,cd->abd", (8, 4), activation="swish", rngs=nnx.Rngs(0))


@pytest.mark.parametrize("kernel", KERNELS)
def test_nnx_attention_takes_dot_general(kernel, x):
    dot_general = functools.partial(jaxgemm.dot_general, kernel=kernel)
    modules = [
        nnx.MultiHeadAttention(
            num_heads=2, in_features=8, qkv_features=8, decode=False, rngs=nnx.Rngs(0), deterministic=True, **given
        )
        for given in ({}, {"qkv_dot_general": dot_general, "out_dot_general": dot_general})
    ]
    close(modules[1](x), modules[0](x))
    epilogues, left = products(modules[1], x)
    assert (len(epilogues), left) == (4, 2)  # nnx takes no product for scores and values
    ours = override(modules[0], kernel=kernel)
    close(ours(x), modules[0](x))
    assert products(ours, x)[1] == 0


@pytest.mark.parametrize("cell", ["LSTMCell", "OptimizedLSTMCell", "GRUCell"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_nnx_recurrent_layers(cell, kernel, x):
    model = nnx.RNN(getattr(nnx, cell)(8, 6, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1))
    graph, state = nnx.split(model)

    def apply(state, x):
        return nnx.merge(graph, state)(x)

    ours = override(apply, kernel=kernel)
    close(ours(state, x), apply(state, x))
    epilogues, left = products(ours, state, x)
    assert epilogues
    assert left == 0


def test_nnx_explicit_shardings(x):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        theirs, ours = nnx_pair("Linear", activation="relu", kernel="host")
        spec = jax.sharding.PartitionSpec(None, None, "i")
        got = ours(x, out_sharding=spec)
        close(got, jax.nn.relu(theirs(x, out_sharding=spec)))
        assert jax.typeof(got).sharding.spec == spec


# --- Importing ------------------------------------------------------------------------------------------------


def test_flax_is_imported_only_when_asked_for():
    code = "import sys, jaxgemm; assert 'flax' not in sys.modules; assert 'jaxgemm.flax' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_without_flax_the_error_names_the_extra():
    code = """
import sys
sys.modules["flax"] = None
try:
    import jaxgemm.flax.linen
except ImportError as error:
    assert "pip install 'jaxgemm[flax]'" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
