"""Products of groups of rows inside of shard_map, where each device's program is written out."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped import GROUPS, SIZES, SUMS, K, M, N, arrays, by_rows, by_sums, gradient
from jax import lax
from jax.sharding import PartitionSpec as P
from meshes import assert_close, mesh, put, traffic

import jaxgemm

checked = pytest.mark.parametrize("check_vma", [True, False])


@checked
def test_rows_of_each_device(check_vma, rng):
    """Each device has rows and sizes of its own; weights are the same on all, and so their gradient is a sum."""
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    sizes = rng.integers(0, 4, (8, GROUPS)).astype(np.int32)

    def local(x, w, sizes):
        return jaxgemm.ragged_dot(x, w, sizes[0])

    specs = P(("x", "y")), P(), P(("x", "y"))
    mapped = jax.shard_map(local, mesh=mesh(), in_specs=specs, out_specs=specs[0], check_vma=check_vma)

    def expected(x, w):
        return jnp.concatenate([by_rows(x[8 * i : 8 * i + 8], w, sizes[i]) for i in range(8)])

    assert_close(jax.jit(mapped)(x, w, sizes), expected(x, w))
    assert_close(mapped(x, w, sizes), expected(x, w))
    assert_close(jax.jit(gradient(mapped))(x, w, sizes), gradient(expected)(x, w))


@checked
def test_experts_of_each_device(check_vma, rng):
    """Each device says by group_offset which experts it has, and adds up what it and the others found."""
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    sizes = jnp.asarray(SIZES["fewer"], jnp.int32)

    def local(x, w, sizes):
        first = lax.axis_index("x") * w.shape[0]
        return lax.psum(jaxgemm.ragged_dot(x, w, sizes, group_offset=first[None], activation="silu"), "x")

    mapped = jax.shard_map(local, mesh=mesh(), in_specs=(P("y"), P("x"), P()), out_specs=P("y"), check_vma=check_vma)

    def expected(x, w):
        halves = [by_rows(half, w, SIZES["fewer"]) for half in (x[: M // 2], x[M // 2 :])]
        return jax.nn.silu(jnp.concatenate(halves))

    assert_close(jax.jit(mapped)(x, w, sizes), expected(x, w))
    assert_close(jax.jit(gradient(mapped))(x, w, sizes), gradient(expected)(x, w))
    assert traffic(mapped, x, w, sizes).calls == {"all-reduce": 1}


@checked
def test_sums_of_each_device(check_vma, rng):
    x, y = arrays(rng, (M, K), (M, N))
    sizes = rng.integers(0, 4, (8, GROUPS)).astype(np.int32)

    def local(x, y, sizes):
        return lax.psum(jaxgemm.ragged_dot_general(x, y, sizes[0], SUMS), ("x", "y"))

    specs = (P(("x", "y")),) * 3
    mapped = jax.shard_map(local, mesh=mesh(), in_specs=specs, out_specs=P(), check_vma=check_vma)

    def expected(x, y):
        return sum(by_sums(x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8], sizes[i]) for i in range(8))

    assert_close(jax.jit(mapped)(x, y, sizes), expected(x, y))
    assert_close(jax.jit(gradient(mapped))(x, y, sizes), gradient(expected)(x, y))


@checked
def test_vmap_and_scan_inside(check_vma, rng):
    x, w = arrays(rng, (8, 6, 12), (3, 5, 12, 12))
    sizes = jnp.asarray([1, 0, 2, 2, 0], jnp.int32)

    def layers(product, x, w):
        step = jax.vmap(lambda x, w: jnp.tanh(product(x, w)), in_axes=(0, None))
        return lax.scan(lambda x, w: (step(x, w), None), x, w)[0]

    mapped = jax.shard_map(
        partial(layers, lambda x, w: jaxgemm.ragged_dot(x, w, sizes)),
        mesh=mesh(),
        in_specs=(P("x"), P()),
        out_specs=P("x"),
        check_vma=check_vma,
    )

    def expected(x, w):
        for each in w:
            x = jnp.stack([jnp.tanh(by_rows(one, each, sizes)) for one in x])
        return x

    assert_close(jax.jit(mapped)(x, w), expected(x, w))
    assert_close(jax.jit(gradient(mapped))(x, w), gradient(expected)(x, w))


def test_partly_manual(rng):
    """Experts by hand, and columns by XLA."""
    on = mesh()
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    sizes = jnp.asarray(SIZES["all"], jnp.int32)

    def local(x, w):
        first = lax.axis_index("x") * w.shape[0]
        return lax.psum(jaxgemm.ragged_dot(x, w, sizes, group_offset=first), "x")

    mapped = jax.shard_map(local, mesh=on, in_specs=(P(), P("x")), out_specs=P(), axis_names={"x"})
    operands = put(x, on, P()), put(w, on, P("x", None, "y"))
    assert_close(jax.jit(mapped)(*operands), by_rows(x, w, SIZES["all"]))
    sent = traffic(mapped, *operands)
    assert sent.calls == {"all-reduce": 1}
