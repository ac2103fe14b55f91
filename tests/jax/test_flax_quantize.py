"""Layers with weights of 8 bits: near flax's, quantized once or in every call, and what they refuse."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax import errors, nnx
from flax import linen as nn

import jaxgemm
import jaxgemm.flax.linen as ours_linen
import jaxgemm.flax.nnx as ours_nnx

#: What rounding may move an element of such sums of normal numbers, over the largest.
NEAR = {"int8": 0.02, "fp8": 0.08}
FORMS = list(NEAR)


@pytest.fixture
def inputs(rng):
    return array(rng.standard_normal((3, 5, 64)), np.float32)


def near(got, want, form):
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    difference = np.max(abs(np.asarray(got, np.float64) - np.asarray(want, np.float64)))
    assert 0 < difference <= NEAR[form] * float(abs(np.asarray(want, np.float64)).max())


def same(a, b):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@nnx.jit
def run(layer, x):
    return layer(x)


@partial(jax.jit, static_argnames=("form", "activation"))
def exact(x, kernel, bias, form, activation=None):
    """By quantize and gemm as a user would write it."""
    kind = {"int8": "int8", "fp8": "float8_e4m3fn"}[form]
    x, x_scale = jaxgemm.quantize(x.reshape(-1, x.shape[-1]), kind, "row")
    w, w_scale = jaxgemm.quantize(kernel, kind, "column")
    return jaxgemm.gemm(x, w, bias=bias, activation=activation, a_scale=x_scale, b_scale=w_scale)


@pytest.mark.parametrize("form", FORMS)
def test_nnx_linear(form, inputs):
    given = {"rngs": nnx.Rngs(0), "bias_init": nnx.initializers.normal()}
    flaxs, layer = nnx.Linear(64, 32, **given), ours_nnx.Linear(64, 32, quantize=form, activation="relu", **given)
    nnx.update(layer, nnx.state(flaxs))
    got = run(layer, inputs)
    near(got, np.maximum(run(flaxs, inputs), 0), form)
    same(np.asarray(got).reshape(-1, 32), exact(inputs, flaxs.kernel[...], flaxs.bias[...], form, "relu"))
    assert ours_nnx.quantize(layer) is layer
    assert layer.kernel.dtype.itemsize == 1
    assert layer.kernel_scale.shape == (1, 32)
    same(layer(inputs), got)
    same(run(layer, inputs), got)
    values = layer.kernel[...]
    same(ours_nnx.quantize(layer).kernel[...], values)  # a second time is none


@pytest.mark.parametrize("form", FORMS)
def test_nnx_models(form, inputs):
    """Layers in a model, of which some are not quantized; their state goes through nnx.split and merge."""

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.into = ours_nnx.Linear(64, 48, quantize=form, rngs=rngs)
            self.out = ours_nnx.Linear(48, 8, rngs=rngs)

        def __call__(self, x):
            return self.out(jax.nn.relu(self.into(x)))

    model = Model(nnx.Rngs(0))
    before = run(model, inputs)
    ours_nnx.quantize(model)
    assert model.into.kernel.dtype.itemsize == 1
    assert model.out.kernel.dtype == np.float32
    graph, state = nnx.split(model)
    same(run(nnx.merge(graph, state), inputs), before)


@pytest.mark.parametrize("form", FORMS)
def test_nnx_linear_general(form, inputs):
    arguments = {"in_features": (5, 64), "out_features": (4, 8), "axis": (-2, -1), "rngs": nnx.Rngs(0)}
    flaxs = nnx.LinearGeneral(**arguments)
    layer = ours_nnx.LinearGeneral(**arguments, quantize=form)
    nnx.update(layer, nnx.state(flaxs))
    got = run(layer, inputs)
    near(got, run(flaxs, inputs), form)
    same(run(ours_nnx.quantize(layer), inputs), got)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_linen_dense(form, dtype, inputs):
    layer = ours_linen.Dense(32, quantize=form, dtype=dtype, bias_init=nn.initializers.normal())
    flaxs = nn.Dense(32, dtype=dtype, bias_init=nn.initializers.normal())
    variables = layer.init(jax.random.key(1), inputs)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, flaxs.init(jax.random.key(1), inputs))
    got = layer.apply(variables, inputs)
    near(got, flaxs.apply(variables, inputs), form)
    also, made = layer.apply(variables, inputs, mutable=["quantized"])
    same(also, got)
    params = {"bias": variables["params"]["bias"]}  # the weights are not needed any more
    same(layer.apply({"params": params, **made}, inputs), got)
    same(jax.jit(layer.apply)({"params": params, **made}, inputs), got)


@pytest.mark.parametrize("form", FORMS)
def test_linen_dense_general(form, inputs):
    arguments = {"features": (4, 8), "axis": (-2, -1), "use_bias": False}
    layer, flaxs = ours_linen.DenseGeneral(**arguments, quantize=form), nn.DenseGeneral(**arguments)
    variables = flaxs.init(jax.random.key(1), inputs)
    got, made = layer.apply(variables, inputs, mutable=["quantized"])
    near(got, flaxs.apply(variables, inputs), form)
    same(layer.apply(made, inputs), got)


def test_no_derivative(inputs):
    layer = ours_nnx.Linear(64, 32, quantize="int8", rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="quantize is not differentiable"):
        jax.grad(lambda x: layer(x).sum())(inputs)


def test_refused():
    rngs = nnx.Rngs(0)
    with pytest.raises(ValueError, match="Linear: quantize must be one of int8, fp8 or None, got 'int4'"):
        ours_nnx.Linear(4, 4, quantize="int4", rngs=rngs)
    with pytest.raises(ValueError, match=r"Linear: quantize must be one of int8, fp8 or None, got \[\]"):
        ours_nnx.Linear(4, 4, quantize=[], rngs=rngs)
    with pytest.raises(ValueError, match="quantize='fp8' needs our product, but dot_general replaces it"):
        ours_nnx.Linear(4, 4, quantize="fp8", dot_general=lambda *_, **__: None, rngs=rngs)
    with pytest.raises(ValueError, match="quantize='int8' is for layers without batch axes"):
        ours_nnx.LinearGeneral(4, 4, batch_axis={0: 2}, quantize="int8", rngs=rngs)
    with pytest.raises(ValueError, match="Dense: quantize must be one of int8, fp8 or None, got 8"):
        ours_linen.Dense(4, quantize=8)
    with pytest.raises(ValueError, match="quantize='int8' is for layers without batch axes"):
        ours_linen.DenseGeneral(4, batch_dims=(0,), quantize="int8")
    with pytest.raises(ValueError, match=r"the model has no layer of jaxgemm.flax.nnx that was made with quantize="):
        ours_nnx.quantize(nnx.Linear(4, 4, rngs=rngs))
    late = ours_nnx.quantize(ours_nnx.Linear(4, 4, quantize="int8", rngs=rngs))
    nnx.update(late, nnx.state(nnx.Linear(4, 4, rngs=rngs)))
    with pytest.raises(ValueError, match=r"Linear: kernel is float.*, but was quantized: load weights before"):
        late(jnp.ones((2, 4)))
    layer = ours_nnx.Linear(4, 4, quantize="int8", rngs=rngs)
    with pytest.raises(ValueError, match="out_sharding is not for quantized layers"):
        layer(jnp.ones((2, 4)), out_sharding=jax.P())
    layer = ours_nnx.Linear(4, 4, quantize="int8", rngs=rngs)
    nnx.update(layer, nnx.state(ours_nnx.quantize(ours_nnx.Linear(4, 4, quantize="int8", rngs=rngs))))
    for call in (partial(layer, jnp.ones((2, 4))), partial(ours_nnx.quantize, layer)):
        with pytest.raises(TypeError, match="expected a kernel of a floating-point type above 8 bits, got int8"):
            call()
    abstract = nnx.eval_shape(lambda: ours_nnx.Linear(4, 4, quantize="int8", rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"Linear.kernel has no values; quantize inside of nnx.eval_shape"):
        ours_nnx.quantize(abstract)


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: ours_nnx.Linear(4, 4, rngs=nnx.Rngs(0), **more),
        lambda **more: ours_nnx.LinearGeneral(4, 4, rngs=nnx.Rngs(0), **more),
        lambda **more: ours_linen.Dense(4, **more),
        lambda **more: ours_linen.DenseGeneral(4, **more),
    ],
)
def test_promote_dtype(make):
    def mine(*given, dtype):
        return [array.astype(dtype) for array in given]

    make(promote_dtype=mine)
    with pytest.raises(ValueError, match="quantize='int8' promotes types itself, but promote_dtype is given"):
        make(promote_dtype=mine, quantize="int8")


# --- Shapes ---------------------------------------------------------------------------------------------------


def raised(function, *given):
    with pytest.raises(Exception, match=r".") as caught:
        jax.eval_shape(function, *given)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("shape", [(2, 5), (2, 3), (8, 2), (5,)])
def test_other_width(shape, once):
    layer = ours_nnx.Linear(4, 6, quantize="int8", rngs=nnx.Rngs(0))
    layer = ours_nnx.quantize(layer) if once else layer
    want = raised(nnx.Linear(4, 6, rngs=nnx.Rngs(0)), jnp.ones(shape))
    assert "contracting dimensions" in want[1]
    assert raised(layer, jnp.ones(shape)) == want


@pytest.mark.parametrize("shape", [(2, 4, 3), (2, 2, 6), (2, 3, 4, 2), (2, 12), (12,)])
def test_other_widths(shape):
    """As many elements, along other axes."""
    arguments = {"in_features": (3, 4), "out_features": (5, 2), "axis": (-2, -1), "rngs": nnx.Rngs(0)}
    layer = ours_nnx.LinearGeneral(**arguments, quantize="int8")
    want = raised(nnx.LinearGeneral(**arguments), jnp.ones(shape))
    assert raised(layer, jnp.ones(shape)) == want
    assert raised(ours_nnx.quantize(layer), jnp.ones(shape)) == want
    linen = ours_linen.DenseGeneral((5, 2), axis=(-2, -1), quantize="int8")
    variables = linen.init(jax.random.key(0), jnp.ones((2, 3, 4)))
    _, made = linen.apply(variables, jnp.ones((2, 3, 4)), mutable=["quantized"])
    if len(shape) > 1:
        for given in (variables, made):
            assert raised(linen.apply, {**variables, **given}, jnp.ones(shape))[0] is errors.ScopeParamShapeError


@pytest.mark.parametrize("shape", [(64,), (0, 64), (2, 0, 64), (2, 3, 4, 64)])
def test_leading_axes(shape):
    x = jnp.ones(shape)
    given = {"rngs": nnx.Rngs(0), "bias_init": nnx.initializers.normal()}
    layer, flaxs = ours_nnx.LinearGeneral(64, (2, 3), quantize="int8", **given), nnx.LinearGeneral(64, (2, 3), **given)
    nnx.update(layer, nnx.state(flaxs))
    got, want = layer(x), flaxs(x)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, atol=0.1)
    same(ours_nnx.quantize(layer)(x), got)


def test_nothing_to_sum():
    layer = ours_nnx.Linear(0, 3, quantize="int8", kernel_init=nnx.initializers.zeros_init(), rngs=nnx.Rngs(0))
    layer.bias[...] = jnp.arange(3.0, dtype=np.float32)
    for each in (layer, ours_nnx.quantize(layer)):
        same(each(jnp.ones((2, 0), np.float32)), np.tile(np.arange(3, dtype=np.float32), (2, 1)))


def test_lists():
    """flax takes them."""
    layer = ours_nnx.Linear(2, 3, quantize="int8", rngs=nnx.Rngs(0), dtype=np.float32)
    same(layer([[1.0, 2.0]]), layer(jnp.array([[1.0, 2.0]])))
