"""Layers with weights of 8 bits: near flax's, quantized once or in every call, and what they refuse."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax import linen as nn
from flax import nnx

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
