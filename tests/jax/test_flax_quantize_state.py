"""Layers with weights of 8 bits: stacks of them, and what they are restored from and saved as."""

import copy
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax import errors, nnx, serialization
from flax import linen as nn
from flax.core import freeze
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from layers import same_bits

import jaxgemm.flax.linen as ours_linen
import jaxgemm.flax.nnx as ours_nnx

FORMS = ["int8", "fp8"]


@pytest.fixture
def inputs(rng):
    return array(rng.standard_normal((3, 5, 64)), np.float32)


# --- Stacks ---------------------------------------------------------------------------------------------------


def stacked(layers, make, out_axes=0):
    return nnx.split_rngs(splits=layers)(nnx.vmap(make, out_axes=out_axes))(nnx.Rngs(0))


def linear(k, n, form):
    return lambda rngs: ours_nnx.Linear(k, n, quantize=form, bias_init=nnx.initializers.normal(), rngs=rngs)


def general(form):
    return lambda rngs: ours_nnx.LinearGeneral((4, 16), (16, 4), axis=(-2, -1), quantize=form, rngs=rngs)


@partial(nnx.vmap, in_axes=(0, None))
def each(layer, x):
    return layer(x)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [partial(linear, 64, 64), general])
def test_nnx_stack(make, form, inputs):
    """Each layer has scales of its own, as if it stood alone."""
    layers = stacked(3, make(form))
    x = inputs if layers.kernel.ndim == 3 else inputs.reshape(3, 5, 4, 16)
    apart = [ours_nnx.quantize(nnx.merge(graph, jax.tree.map(lambda a, i=i: a[i], state)))
             for graph, state in [nnx.split(layers)] for i in range(3)]  # fmt: skip
    before = each(layers, x)
    ours_nnx.quantize(layers)
    same_bits(layers.kernel[...], jnp.stack([layer.kernel[...] for layer in apart]))
    same_bits(layers.kernel_scale[...], jnp.stack([layer.kernel_scale[...] for layer in apart]))
    same_bits(each(layers, x), before)
    np.testing.assert_allclose(before, jnp.stack([layer(x) for layer in apart]), atol=1e-5)
    with pytest.raises(ValueError, match=r"is a stack of layers \(3,\): call it inside of scan or vmap"):
        layers(x)


def test_nnx_scan(inputs):
    layers = stacked(3, linear(64, 64, "int8"))
    axes = nnx.StateAxes({(nnx.Param, ours_nnx.Quantized): 0})
    run_all = nnx.scan(lambda layer, x: layer(x), in_axes=(axes, nnx.Carry), out_axes=nnx.Carry)
    before = run_all(layers, inputs)
    same_bits(run_all(ours_nnx.quantize(layers), inputs), before)


def test_nnx_stack_of_stacks(inputs):
    layers = stacked(2, nnx.split_rngs(splits=3)(nnx.vmap(linear(64, 8, "int8"))))
    run_all = nnx.vmap(each, in_axes=(0, None))
    before = run_all(layers, inputs)
    ours_nnx.quantize(layers)
    assert layers.kernel_scale.shape == (2, 3, 1, 8)
    same_bits(run_all(layers, inputs), before)


def test_nnx_stack_along_other_axes(inputs):
    layers = stacked(3, linear(64, 8, "int8"), out_axes=1)
    run_all = nnx.vmap(lambda layer, x: layer(x), in_axes=(1, None))
    before = run_all(layers, inputs)
    with pytest.raises(ValueError, match=r"kernel of shape \(64, 3, 8\) is no stack of \(64,\) x \(8,\)"):
        ours_nnx.quantize(layers)
    nnx.vmap(lambda layer: ours_nnx.quantize(layer) and None, in_axes=1)(layers)
    same_bits(run_all(layers, inputs), before)


class Body(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        return ours_linen.Dense(64, quantize="int8", name="dense")(x), None


def test_linen_stack(inputs):
    axes = {"variable_axes": {"params": 0, "quantized": 0}, "split_rngs": {"params": True}}
    scan = nn.scan(Body, length=3, **axes)()
    vmap = nn.vmap(ours_linen.Dense, in_axes=None, axis_size=3, **axes)(64, quantize="int8")
    for model, given in ((scan, (inputs, None)), (vmap, (inputs,))):
        variables = model.init(jax.random.key(0), *given)
        before, made = model.apply(variables, *given, mutable=["quantized"])
        assert sorted(a.shape for a in jax.tree.leaves(made)) == [(3, 1, 64), (3, 64, 64)]
        without = jax.tree.map(lambda a: a if a.ndim == 2 else jnp.full_like(a, np.nan), variables)  # no kernel is read
        same_bits(model.apply({**without, **made}, *given), before)
    unseen = nn.scan(Body, length=3, variable_axes={"params": 0}, split_rngs={"params": True})()
    assert unseen.apply(scan.init(jax.random.key(0), inputs, None), inputs, None, mutable=["quantized"])[1] == {}


# --- Checkpoints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_linen_restored(form, inputs):
    layer = ours_linen.Dense(32, quantize=form)
    variables = layer.init(jax.random.key(1), inputs)
    want, made = layer.apply(variables, inputs, mutable=["quantized"])
    whole = {**variables, **made}
    restored = serialization.msgpack_restore(serialization.to_bytes(whole))
    for given in (freeze(whole), jax.tree.map(np.asarray, whole), restored):
        same_bits(layer.apply(given, inputs), want)
    other = ours_linen.Dense(32, quantize=next(f for f in FORMS if f != form))
    with pytest.raises(ValueError, match=r"Dense: quantize='\w+' needs values of \w+, got \w+"):
        other.apply(whole, inputs)


def test_linen_wrong_collections(inputs):
    layer = ours_linen.Dense(32, use_bias=False, quantize="int8")
    variables = layer.init(jax.random.key(1), inputs)
    values, scales = jnp.ones((64, 32), np.int8), jnp.ones((1, 32), np.float32)

    def apply(**held):
        layer.apply({**variables, "quantized": held}, inputs)

    apply(kernel=values, kernel_scale=scales)
    for wrong, message in (
        ({"kernel": values.astype(np.float32), "kernel_scale": scales}, "needs values of int8, got float32"),
        ({"kernel": {"values": values}, "kernel_scale": scales}, "needs values of int8, got dict"),
        ({"kernel": values}, "needs scales of float32, got NoneType"),
        ({"kernel": values, "kernel_scale": scales.astype(jnp.bfloat16)}, "needs scales of float32, got bfloat16"),
        ({"kernel": values, "kernel_scale": scales[0]}, r"have scales of shape \(1, 32\), got \(32,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            apply(**wrong)
    for other in ((64, 16), (32, 32), (2, 64, 32)):
        with pytest.raises(errors.ScopeParamShapeError, match="quantized/kernel"):
            apply(kernel=jnp.ones(other, np.int8), kernel_scale=scales)


def test_nnx_restored(inputs):
    def make(form="int8", seed=0):
        return ours_nnx.quantize(ours_nnx.Linear(64, 32, quantize=form, rngs=nnx.Rngs(seed)))

    layer, restored = make(), make(seed=1)
    want, state = layer(inputs), nnx.state(restored)
    nnx.replace_by_pure_dict(state, jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(layer))))
    nnx.update(restored, state)
    graph, _ = nnx.split(nnx.eval_shape(make))
    for same_layer in (
        restored,
        nnx.merge(graph, nnx.state(layer)),
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
    ):
        same_bits(same_layer(inputs), want)
    nnx.update(restored, nnx.state(make("fp8")))
    with pytest.raises(ValueError, match="quantize='int8' needs values of int8, got float8_e4m3fn"):
        restored(inputs)
    nnx.update(restored, nnx.state(layer))
    nnx.update(restored, {"kernel_scale": jnp.ones(32, np.float32)})
    with pytest.raises(ValueError, match=r"have scales of shape \(1, 32\), got \(32,\)"):
        restored(inputs)


# --- Sharding -------------------------------------------------------------------------------------------------


def specs(layer):
    state = nnx.get_partition_spec(nnx.state(layer))
    return [state[name].get_value() for name in ("kernel", "kernel_scale")]


def test_sharding_is_kept(inputs):
    """Where the weights said that they lie, with no mesh at hand when they are quantized."""
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "x"))
    with jax.set_mesh(jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))):
        layer = ours_nnx.Linear(64, 32, quantize="int8", kernel_init=init, rngs=nnx.Rngs(0))
        general = partial(ours_nnx.LinearGeneral, 64, (8, 4), quantize="int8", rngs=nnx.Rngs(0))
        layers = [general(kernel_metadata={"out_sharding": spec}) for spec in [P(None, "x"), P("x")]]
    before = layer(inputs)
    same_bits(ours_nnx.quantize(layer)(inputs), before)
    assert layer.kernel[...].sharding.spec == P(None, "x")
    assert specs(layer) == [P(None, "x"), P(None, "x")]
    for other, spec in zip(layers, [P(None, "x"), P("x")], strict=True):
        assert specs(ours_nnx.quantize(other)) == [spec, P(None, None)]
