"""Products inside of shard_map, where each device's program is written out, and with shardings that are types."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_close, assert_no_more, mesh, put, traffic

import jaxgemm

kernels = pytest.mark.parametrize("kernel", ["auto", "host"])
A, B = (64, 48), (48, 32)
MATRIX = (((1,), (0,)), ((), ()))


def arrays(rng, *shapes):
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def exact(*args):
    return [array(x, np.float64) for x in args]


def loss(f):
    return lambda *args: jnp.sum(jnp.sin(f(*args)))


# --- shard_map over all axes ---


@kernels
@pytest.mark.parametrize("check_vma", [True, False])
def test_data_parallel(kernel, check_vma, rng):
    """Weights that every device has and rows that each has its own of: their types differ where types are checked."""
    x, w, bias = arrays(rng, A, B, (32,))

    def f(product):
        def body(x, w, bias):
            return product(x, w, bias)

        return jax.shard_map(
            body, mesh=mesh(), in_specs=(P(("x", "y")), P(), P()), out_specs=P(("x", "y")), check_vma=check_vma
        )

    ours = f(lambda x, w, bias: jaxgemm.gemm(x, w, bias=bias, activation="tanh", kernel=kernel))
    theirs = f(lambda x, w, bias: jnp.tanh(x @ w + bias))
    assert_close(jax.jit(ours)(x, w, bias), theirs(*exact(x, w, bias)))
    assert_close(ours(x, w, bias), theirs(*exact(x, w, bias)))
    ours, theirs = (jax.jit(jax.grad(loss(g), (0, 1, 2))) for g in (ours, theirs))
    assert_close(ours(x, w, bias), theirs(*exact(x, w, bias)))
    assert_no_more(traffic(ours, x, w, bias), traffic(theirs, x, w, bias))


@kernels
def test_tensor_parallel(kernel, rng):
    x, up, down = arrays(rng, (64, 32), (32, 128), (128, 32))

    def f(product):
        def body(x, up, down):
            return lax.psum(product(jax.nn.gelu(product(x, up)), down), "y")

        specs = (P("x"), P(None, "y"), P("y"))
        return jax.jit(jax.grad(loss(jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P("x"))), (0, 1, 2)))

    ours, theirs = f(lambda a, b: jaxgemm.gemm(a, b, kernel=kernel)), f(jnp.dot)
    assert_close(ours(x, up, down), theirs(*exact(x, up, down)))
    assert_no_more(traffic(ours, x, up, down), traffic(theirs, x, up, down))


@kernels
def test_operands_that_differ_along_different_axes(kernel, rng):
    x, w, c = arrays(rng, A, B, (64, 32))

    def f(product):
        return jax.shard_map(product, mesh=mesh(), in_specs=(P("x"), P(None, "y"), P("x", "y")), out_specs=P("x", "y"))

    ours = f(lambda x, w, c: jaxgemm.gemm(x, w, c, beta=2.0, kernel=kernel))
    theirs = f(lambda x, w, c: x @ w + 2 * c)
    program, plain = (jax.jit(jax.grad(loss(g), (0, 1, 2))) for g in (ours, theirs))
    assert_close(program(x, w, c), jax.grad(loss(lambda x, w, c: x @ w + 2 * c), (0, 1, 2))(*exact(x, w, c)))
    assert_no_more(traffic(program, x, w, c), traffic(plain, x, w, c))


@kernels
def test_vmap_and_scan_inside(kernel, rng):
    x, ws = arrays(rng, (8, 16, 12), (3, 12, 12))

    def f(product):
        def body(x, ws):
            step = jax.vmap(lambda x, w: jnp.tanh(product(x, w)), in_axes=(0, None))
            return lax.scan(lambda x, w: (step(x, w), None), x, ws)[0]

        specs = (P("x", "y"), P())
        return jax.jit(jax.grad(loss(jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P("x", "y"))), (0, 1)))

    ours, theirs = f(lambda a, b: jaxgemm.matmul(a, b, kernel=kernel)), f(jnp.matmul)
    assert_close(ours(x, ws), theirs(*exact(x, ws)))
    assert_no_more(traffic(ours, x, ws), traffic(theirs, x, ws))


# --- shard_map over some axes ---


def _partly(product, on=None):
    def body(x, w):
        return lax.psum(product(x, w), "x")

    specs = {"mesh": on or mesh(), "in_specs": (P(None, "x"), P("x")), "out_specs": P()}
    return jax.jit(jax.shard_map(body, **specs, axis_names={"x"}))


def test_partly_manual_is_xlas(rng):
    """XLA divides its own product over the axes that are not manual; nothing is gathered."""
    x, w = arrays(rng, A, B)
    sharded = put(x, mesh(), P()), put(w, mesh(), P(None, "y"))
    program = _partly(jaxgemm.gemm)
    assert_close(program(*sharded), x.astype(np.float64) @ w)
    assert_no_more(traffic(program, *sharded), traffic(_partly(jnp.dot), *sharded))


@pytest.mark.parametrize("how", [{"kernel": "host"}, {"batch_invariant": True}], ids=["kernel", "batch_invariant"])
@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_partly_manual_refuses_a_kernel(types, how, rng):
    x, w = arrays(rng, A, B)
    on = mesh(types=types)
    wanted = "batch_invariant" if "batch_invariant" in how else "kernel 'host'"
    with jax.set_mesh(on):
        x, w = put(x, on, P(None, "x")), put(w, on, P("x", "y"))
        with pytest.raises(jaxgemm.UnsupportedError, match=f"{wanted} inside of a shard_map over some of the mesh's"):
            _partly(lambda x, w: jaxgemm.gemm(x, w, **how), on)(x, w)
        assert_close(_partly(jaxgemm.gemm, on)(x, w), np.asarray(x, np.float64) @ np.asarray(w))


@pytest.mark.parametrize("how", [{"kernel": "host"}, {"batch_invariant": True}], ids=["kernel", "batch_invariant"])
def test_a_gated_pair_is_as_on_one_device(how, rng):
    """Products that no other device adds to are as wide as they are on one device, and so have the same bits."""
    x, gate, up = (array(v, jnp.bfloat16) for v in arrays(rng, A, B, B))
    pair = partial(jaxgemm.gated_gemm, **how)
    mapped = jax.shard_map(pair, mesh=mesh(), in_specs=(P(("x", "y")), P(), P()), out_specs=P(("x", "y")))
    np.testing.assert_array_equal(jax.jit(mapped)(x, gate, up), jax.jit(pair)(x, gate, up))


# --- Shardings that are types ---


EXPLICIT = {
    "data parallel": (P("x"), P(), None),
    "columns": (P(), P(None, "x"), None),
    "rows and columns": (P("x"), P(None, "y"), None),
    "contracted": (P(None, "x"), P("x"), P()),
    "contracted over both": (P(None, ("x", "y")), P(("x", "y")), P()),
    "contracted and scattered": (P(None, "x"), P("x"), P("x")),
    "contracted, rows": (P("y", "x"), P("x"), P("y")),
}


@kernels
@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit(name, kernel, rng):
    a, b = arrays(rng, A, B)
    a_spec, b_spec, out = EXPLICIT[name]
    on = mesh(types="Explicit")
    with jax.set_mesh(on):
        sharded = put(a, on, a_spec), put(b, on, b_spec)

        def ours(a, b):
            return jaxgemm.dot_general(a, b, MATRIX, out_sharding=out, kernel=kernel)

        def theirs(a, b):
            return lax.dot_general(a, b, MATRIX, out_sharding=out and NamedSharding(jax.typeof(a).sharding.mesh, out))

        for f, g in ((ours, theirs), (jax.grad(loss(ours), (0, 1)), jax.grad(loss(theirs), (0, 1)))):
            got, expected = jax.jit(f)(*sharded), jax.jit(g)(*sharded)
            assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)
            assert_close(got, expected)
            assert_no_more(traffic(f, *sharded), traffic(g, *sharded))
        assert_close(ours(*sharded), a.astype(np.float64) @ b)


@kernels
def test_explicit_epilogue_batch_and_vmap(kernel, rng):
    a, b, bias = arrays(rng, (8, 6, 12), (12, 20), (20,))
    on = mesh(types="Explicit")
    expected = np.tanh(a.astype(np.float64) @ b + bias)

    def f(a, b, bias):
        return jaxgemm.gemm(a, b, bias=bias, activation="tanh", kernel=kernel)

    def theirs(a, b, bias):
        return jnp.tanh(a @ b + bias)

    with jax.set_mesh(on):
        sharded = put(a, on, P("x")), put(b, on, P(None, "y")), put(bias, on, P("y"))
        for g in (f, jax.vmap(f, (0, None, None))):
            got = jax.jit(g)(*sharded)
            assert jax.typeof(got).sharding.spec == P("x", None, "y")
            assert_close(got, expected)
            assert_no_more(traffic(g, *sharded), traffic(theirs, *sharded))
        got = jax.jit(jax.grad(loss(f), (0, 1, 2)))(*sharded)
        assert_no_more(*(traffic(jax.grad(loss(g), (0, 1, 2)), *sharded) for g in (f, theirs)))
        assert [jax.typeof(x).sharding.spec for x in got] == [P("x", None, None), P(None, "y"), P("y")]
    assert_close(got, jax.grad(loss(theirs), (0, 1, 2))(*exact(a, b, bias)))


def test_explicit_is_as_ambiguous_as_jnp(rng):
    """Where a contracted axis is sharded, both ask the caller what the result is to be sharded as."""
    a, b = arrays(rng, A, B)
    on = mesh(types="Explicit")
    with jax.set_mesh(on):
        sharded = put(a, on, P(None, "x")), put(b, on, P("x"))
        messages = []
        for f in (jnp.dot, jaxgemm.gemm):
            with pytest.raises(Exception, match="out_sharding") as error:
                jax.jit(f)(*sharded)
            messages.append((error.type, str(error.value)))
    assert messages[0] == messages[1]
