"""Mixtures of experts whose experts are spread over devices."""

from __future__ import annotations

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from meshes import assert_close, mesh

pytest.importorskip("flax")

from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from mixtures import LAYERS, apply, by_nnx, initial, objective, tokens


#: By the parameter's name: experts along the first axis, and a router that is the same on all.
def specs(params):
    return {name: P() if name == "router" else P("x") for name in params}


def sharded(options, params, check_vma, devices):
    on = mesh((devices,), ("x",))
    return jax.shard_map(
        partial(apply, {**options, "axis_name": "x"}),
        mesh=on,
        in_specs=(specs(params), P("x")),
        out_specs=(P("x"), P()),
        check_vma=check_vma,
    )


@cache
def on_one_device(name):
    """The gradients."""
    return jax.jit(jax.grad(objective(partial(apply, LAYERS[name])), (0, 1)))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["top 1, before", "top 2", "not gated"])
def test_sharded_experts(check_vma, name, rng):
    options, devices = LAYERS[name], 4 if name == "top 2" else 8
    params, x = initial(rng, **options), tokens(rng, 24)
    function = sharded(options, params, check_vma, devices)
    assert_close(jax.jit(function)(params, x), apply(options, params, x), 1e-5)
    gradient = jax.jit(jax.grad(objective(function), (0, 1)))(params, x)
    assert_close(gradient, on_one_device(name)(params, x), 1e-5)


def test_gradients_inside_of_shard_map(rng):
    """As a training step takes them: the router's is summed over the devices, a shard's is the device's own."""
    options = LAYERS["top 2"]
    params, x = initial(rng, **options), tokens(rng, 24)

    def total(params, x):
        y, loss = apply({**options, "axis_name": "x"}, params, x)
        return jax.lax.psum(jnp.sum(jnp.sin(y.astype(jnp.float64))), "x") + 3 * loss

    step = jax.shard_map(
        jax.grad(total), mesh=mesh((8,), ("x",)), in_specs=(specs(params), P("x")), out_specs=specs(params)
    )
    assert_close(jax.jit(step)(params, x), on_one_device("top 2")(params, x)[0], 1e-5)


def test_sharded_experts_of_nnx(rng):
    options = LAYERS["top 2"]
    params, x = initial(rng, **options), tokens(rng, 3, 8, 2)
    graph, state = nnx.split(by_nnx(options, params, axis_name="x"))
    placed = nnx.map_state(lambda path, _: P() if path[-1] == "router" else P("x"), state)
    function = jax.shard_map(
        lambda state, x: nnx.merge(graph, state)(x),
        mesh=mesh((8,), ("x",)),
        in_specs=(placed, P(None, "x")),
        out_specs=(P(None, "x"), P()),
    )
    assert_close(jax.jit(function)(state, x), apply(options, params, x), 1e-5)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_experts_that_xla_divides(kind, rng):
    """Weights stay where they lie, and so do their gradients."""
    options = LAYERS["top 2"]
    params, x = initial(rng, **options), tokens(rng, 24)
    on = mesh((8,), ("x",), kind)

    def step(params, x):
        function = partial(apply, options)
        result, gradient = function(params, x), jax.grad(objective(function))(params, x)
        return result, jax.tree.map(jnp.subtract, params, gradient)

    placed = {name: NamedSharding(on, spec) for name, spec in specs(params).items()}
    with jax.set_mesh(on):
        given = jax.device_put(params, placed), jax.device_put(x, NamedSharding(on, P("x")))
        divided = step
        if kind == "Explicit":
            divided = jax.sharding.auto_axes(step, out_sharding=((P("x"), P()), specs(params)))
        compiled = jax.jit(divided).lower(*given).compile()
        got = compiled(*given)
    assert_close(got, step(params, x), 1e-5)
    for name, value in got[1].items():
        assert value.sharding.is_equivalent_to(placed[name], value.ndim), name
    gathered = re.findall(r"= \(?(\w+\[[\d,]*\])\S* all-gather\(", compiled.as_text())
    weights = {str(v.aval.str_short(short_dtypes=True)) for v in params.values() if v.ndim == 3}
    assert gathered
    assert not weights & set(gathered)


def test_no_tokens_on_any_device(rng):
    options = LAYERS["top 2"]
    params, x = initial(rng, **options), tokens(rng, 8, 0)
    y, loss = jax.jit(sharded(options, params, True, 8))(params, x)
    assert (y.shape, loss) == (x.shape, 0)


def test_experts_must_divide(rng):
    params, x = initial(rng, top_k=1), tokens(rng, 24)
    layer = partial(apply, {"top_k": 1, "axis_name": "x"}, params)
    with pytest.raises(ValueError, match="num_experts = 8 over the 3 devices of axis 'x'"):
        jax.shard_map(layer, mesh=mesh((3,), ("x",)), in_specs=P("x"), out_specs=(P("x"), P()))(x)
