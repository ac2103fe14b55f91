"""Overlapped products: what the plain collective and a product give, in chunks, with gradients."""

from __future__ import annotations

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from meshes import assert_close, mesh, traffic

import jaxgemm
from jaxgemm.sharding.overlap import all_gather_matmul, matmul_reduce_scatter

SIZES = (1, 2, 3, 4, 8)


def plain_all_gather_matmul(x, w, *, axis_name, axis=-2, **_):
    return lax.all_gather(x, axis_name, axis=axis % x.ndim, tiled=True) @ w


def plain_matmul_reduce_scatter(x, w, *, axis_name, axis=-2, **_):
    return lax.psum_scatter(x @ w, axis_name, scatter_dimension=axis % x.ndim, tiled=True)


OURS = all_gather_matmul, matmul_reduce_scatter
PLAIN = plain_all_gather_matmul, plain_matmul_reduce_scatter


def mlp(size, pair, kernel="host", check_vma=True):
    """A tensor-parallel MLP block on sequence shards."""
    gather, scatter = pair

    def body(x, up, down):
        hidden = jnp.tanh(gather(x, up, axis_name="t", kernel=kernel))
        return scatter(hidden, down, axis_name="t", kernel=kernel)

    specs = (P(None, "t"), P(None, "t"), P("t"))
    on = mesh((size,), ("t",))
    return jax.shard_map(body, mesh=on, in_specs=specs, out_specs=P(None, "t"), check_vma=check_vma)


@cache
def operands():
    rng = np.random.default_rng(3)
    return tuple(array(rng.standard_normal(s)) for s in ((2, 24, 6), (6, 48), (48, 6)))


def value_and_grads(f):
    return jax.value_and_grad(lambda *args: jnp.sum(jnp.sin(f(*args))), (0, 1, 2))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_block_and_gradients(size, check_vma):
    got = jax.jit(value_and_grads(mlp(size, OURS, check_vma=check_vma)))(*operands())
    assert_close(got, jax.jit(value_and_grads(lambda x, up, down: jnp.tanh(x @ up) @ down))(*operands()), rtol=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_forward_mode(size):
    def tangents(pair):
        f = mlp(size, pair)
        return jax.jit(lambda *x: jax.jvp(f, x, x))(*operands())

    assert_close(tangents(OURS), tangents(PLAIN), rtol=1e-12)


def test_second_derivatives():
    x, up, down = operands()
    check_grads(jax.jit(mlp(2, OURS)), (x[:1, :4], up[:, :4], down[:4]), order=2, modes=["fwd", "rev"])


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_chunks_are_sent_one_by_one(size):
    """As many bytes as the collective would have sent, and nothing is gathered or reduced at once."""
    ours = traffic(value_and_grads(mlp(size, OURS)), *operands())
    plain = traffic(value_and_grads(mlp(size, PLAIN)), *operands())
    assert not ours.calls["all-gather"]
    assert not ours.calls["reduce-scatter"]
    assert ours.calls["collective-permute"] == 4 * (size - 1)
    assert ours.total <= plain.total


def test_the_next_chunk_is_on_its_way_during_a_product():
    """No transfer of a gather waits for a product, and no product of a scatter for a transfer."""
    text = jax.jit(mlp(4, OURS)).lower(*operands()).as_text()
    order = re.findall(r"stablehlo\.(collective_permute)|custom_call @(jaxgemm_gemm)", text)
    gather, scatter = order[:7], order[7:]
    assert [kind or "product" for kind, _ in gather] == ["collective_permute"] * 3 + ["product"] * 4
    assert [kind or "product" for kind, _ in scatter] == ["product", "collective_permute"] * 3 + ["product"]


def test_partial_sums_are_rounded_once():
    x, w = (jnp.ones(s, jnp.bfloat16) for s in ((8, 8), (8, 4)))
    x = x.at[:, 0].set(256)  # to which no later part of 1 would add anything in this type
    specs = P(None, "t"), P("t")

    def body(x, w):
        return matmul_reduce_scatter(x, w, axis_name="t", kernel="host")

    got = jax.jit(jax.shard_map(body, mesh=mesh((8,), ("t",)), in_specs=specs, out_specs=P("t")))(x, w)
    np.testing.assert_array_equal(got.astype(np.float32), np.asarray(jnp.float32(263).astype(jnp.bfloat16), np.float32))


@pytest.mark.parametrize("pair", range(2))
@pytest.mark.parametrize("axis", [0, 1, -2, -3])
def test_axis(pair, axis, rng):
    x, w = (array(rng.standard_normal(s)) for s in ((8, 8, 5), (5, 3)))
    spec = P(*("t" if i == axis % 3 else None for i in range(3)))

    def program(function):
        def body(x, w):
            return function(x, w, axis_name="t", axis=axis)

        on = mesh((4,), ("t",))
        in_specs, out = ((spec, P()), P()) if pair == 0 else ((P(None, None, "t"), P("t")), spec)
        return jax.jit(jax.shard_map(body, mesh=on, in_specs=in_specs, out_specs=out, check_vma=False))

    if pair == 1:
        x, w = jnp.tile(x, 4)[..., :8], jnp.tile(w, (4, 1))[:8]
    assert_close(program(OURS[pair])(x, w), program(PLAIN[pair])(x, w), rtol=1e-12)


def test_over_two_mesh_axes_and_beside_a_third(rng):
    on = mesh((2, 2, 2), ("d", "x", "y"))
    x, w = (array(rng.standard_normal(s)) for s in ((4, 8, 5), (5, 12)))

    def loss(x, w):
        def body(x, w):
            return all_gather_matmul(x, w, axis_name=("x", "y"))

        specs = P("d", ("x", "y")), P(None, ("x", "y"))
        f = jax.shard_map(body, mesh=on, in_specs=specs, out_specs=P("d", None, ("x", "y")))
        return jnp.sum(jnp.sin(f(x, w)))

    expected = jax.grad(lambda x, w: jnp.sum(jnp.sin(x @ w)), (0, 1))(x, w)
    assert_close(jax.jit(jax.grad(loss, (0, 1)))(x, w), expected, rtol=1e-12)


def test_narrow_types():
    x, up, down = (v.astype(jnp.bfloat16) for v in operands())
    exact = jnp.tanh(x.astype(jnp.float64) @ up.astype(jnp.float64)) @ down.astype(jnp.float64)
    got = mlp(8, OURS)(x, up, down)
    assert got.dtype == jnp.bfloat16
    assert_close(got, exact, rtol=5e-2)


def test_preferred_element_type():
    x, up, _ = (v.astype(jnp.bfloat16) for v in operands())

    def body(x, w):
        return all_gather_matmul(x, w, axis_name="t", preferred_element_type=jnp.float32)

    def loss(x, w):
        specs = P(None, "t"), P(None, "t")
        f = jax.shard_map(body, mesh=mesh((4,), ("t",)), in_specs=specs, out_specs=P(None, None, "t"))
        return jnp.sum(f(x, w)), f(x, w)

    (dx, dw), out = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, up)
    assert out.dtype == jnp.float32
    assert dx.dtype == dw.dtype == jnp.bfloat16


@pytest.mark.parametrize("in_axes", [(0, None, None), (None, 0, 0), (0, 0, 0)])
def test_vmap(in_axes):
    args = [x if d is None else jnp.stack([x, 2 * x]) for x, d in zip(operands(), in_axes, strict=True)]
    got = jax.jit(value_and_grads(jax.vmap(mlp(2, OURS), in_axes)))(*args)
    assert_close(got, jax.jit(value_and_grads(jax.vmap(mlp(2, PLAIN), in_axes)))(*args), rtol=1e-12)


def test_inside_of_scan_and_checkpoint():
    x, up, down = operands()

    def program(pair):
        block = jax.checkpoint(mlp(2, pair), policy=jaxgemm.checkpoint_policies.dots_saveable)

        def loss(ups, downs):
            return jnp.sum(lax.scan(lambda x, w: (x + block(x, *w), None), x, (ups, downs))[0])

        return jax.jit(jax.grad(loss, (0, 1)))(jnp.stack([up, -up]), jnp.stack([down, down]))

    assert_close(program(OURS), program(PLAIN), rtol=1e-12)


def test_refusals():
    x, up, _ = operands()

    sharded = P(None, "t")

    def under(call, spec=sharded):
        return lambda: jax.shard_map(call, mesh=mesh((8,), ("t",)), in_specs=(spec, P()), out_specs=P("t"))(x, up)

    with pytest.raises(ValueError, match=r"axis -3 of x has 2 elements, which 8 devices along 't' do not divide"):
        under(lambda x, w: matmul_reduce_scatter(x, w, axis_name="t", axis=-3), P())()
    with pytest.raises(ValueError, match="not the last, got 2"):
        under(lambda x, w: all_gather_matmul(x, w, axis_name="t", axis=2))()
    with pytest.raises(ValueError, match="w exactly 2, got shapes"):
        under(lambda x, w: all_gather_matmul(x, w[0], axis_name="t"))()
    with pytest.raises(ValueError, match="has k = 6"):
        under(lambda x, w: all_gather_matmul(x, w.T, axis_name="t"))()
    with pytest.raises(TypeError, match="floating types, got int32"):
        under(lambda x, w: all_gather_matmul(x.astype(jnp.int32), w.astype(jnp.int32), axis_name="t"))()
    with pytest.raises(ValueError, match="expected one of auto"):
        under(lambda x, w: all_gather_matmul(x, w, axis_name="t", kernel="nonesuch"))()
    with pytest.raises(NameError, match="t"):
        all_gather_matmul(x, up, axis_name="t")
