"""Products of groups of rows inside of shard_map, and with shardings that are types."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from grouped import GROUPS, SIZES, SUMS, K, M, N, arrays, by_rows, by_sums, gradient
from jax import lax
from jax.sharding import PartitionSpec as P
from meshes import assert_close, mesh, put, traffic

import jaxgemm

#: Of a product of rows, as lax.ragged_dot is one.
BASIC = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])

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
    sizes = array(SIZES["fewer"], np.int32)

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
    sizes = array([1, 0, 2, 2, 0], np.int32)

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
    sizes = array(SIZES["all"], np.int32)

    def local(x, w):
        first = lax.axis_index("x") * w.shape[0]
        return lax.psum(jaxgemm.ragged_dot(x, w, sizes, group_offset=first), "x")

    mapped = jax.shard_map(local, mesh=on, in_specs=(P(), P("x")), out_specs=P(), axis_names={"x"})
    operands = put(x, on, P()), put(w, on, P("x", None, "y"))
    assert_close(jax.jit(mapped)(*operands), by_rows(x, w, SIZES["all"]))
    sent = traffic(mapped, *operands)
    assert sent.calls == {"all-reduce": 1}


# --- Shardings that are types ---------------------------------------------------------------------------------

#: Shardings of lhs, rhs and result; whether it is to be asked for; collectives.
EXPLICIT = {
    "rows": (P("x"), P(), P("x", None), False, {}),
    "columns": (P(), P(None, None, "x"), P(None, "x"), False, {}),
    "rows and columns": (P("x"), P(None, None, "y"), P("x", "y"), False, {}),
    "contracted": (P(None, "x"), P(None, "x"), P(None, None), True, {"all-reduce": 1}),
    "contracted and scattered": (P(None, "x"), P(None, "x"), P("x", None), True, {"reduce-scatter": 1}),
    "groups": (P(), P("x"), P(None, None), True, {"all-reduce": 1}),
    "groups and columns": (P(), P("x", None, "y"), P(None, "y"), True, {"all-reduce": 1}),
    "groups, rows": (P("y"), P("x"), P("y", None), True, {"all-reduce": 1}),
    "groups, scattered": (P("y"), P("x"), P(("y", "x"), None), True, {"reduce-scatter": 1}),
}


@pytest.fixture
def explicit():
    on = mesh(types="Explicit")
    with jax.set_mesh(on):
        yield on


@pytest.mark.parametrize("name", EXPLICIT)
@pytest.mark.parametrize("general", [False, True])
def test_explicit(name, general, rng, explicit):
    lhs, rhs, out, ask, calls = EXPLICIT[name]
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    sizes, operands = array(SIZES["fewer"], np.int32), (put(x, explicit, lhs), put(w, explicit, rhs))

    def product(x, w, **given):
        if general:
            return jaxgemm.ragged_dot_general(x, w, sizes, BASIC, **given)
        return jaxgemm.ragged_dot(x, w, sizes, **given)

    expected = partial(by_rows, sizes=SIZES["fewer"])
    if ask:
        with pytest.raises(Exception, match="out_sharding"):
            jax.jit(product)(*operands)
    for function in (partial(product, out_sharding=out), *[product] * (not ask)):
        got = jax.jit(function)(*operands)
        assert jax.typeof(got).sharding.spec == out
        assert_close(got, expected(x, w))
        assert traffic(function, *operands).calls == calls
        if general and [*EXPLICIT].index(name) % 2:  # those of the others, and of all by ragged_dot
            continue
        back = jax.jit(gradient(function))(*operands)
        assert [jax.typeof(v) for v in back] == [jax.typeof(v) for v in operands]
        assert_close(back, gradient(expected)(x, w))


@pytest.mark.parametrize(
    ("lhs", "rhs", "out", "ask", "calls"),
    [
        (P(None, "x"), P(None, "y"), P(None, "x", "y"), False, {}),
        (P("x"), P("x", "y"), P(None, None, "y"), True, {"all-reduce": 1}),
        (P("x"), P("x"), P("x", None, None), True, None),
        (P(), P(), P("x", None, None), True, {}),
    ],
)
def test_explicit_sums(lhs, rhs, out, ask, calls, rng, explicit):
    x, y = arrays(rng, (M, K), (M, N))
    sizes, operands = array(SIZES["all"], np.int32), (put(x, explicit, lhs), put(y, explicit, rhs))

    def product(x, y):
        return jaxgemm.ragged_dot_general(x, y, sizes, SUMS, out_sharding=out if ask else None)

    got = jax.jit(product)(*operands)
    assert jax.typeof(got).sharding.spec == out
    expected = partial(by_sums, sizes=SIZES["all"])
    assert_close(got, expected(x, y))
    assert calls is None or traffic(product, *operands).calls == calls
    back = jax.jit(gradient(product))(*operands)
    assert [jax.typeof(v) for v in back] == [jax.typeof(v) for v in operands]
    assert_close(back, gradient(expected)(x, y))


#: Shapes and shardings of both operands, sizes, dimension numbers, and what is asked for.
MERGED = {
    "sums of one column": (((2, 16), P()), ((2, 16), P()), (4,), (((1,), (1,)), ((0,), (0,))), [1], [], P("x", "y")),
    "rows, nothing contracted": (
        *(((2, 16), P()), ((4, 2, 8), P()), (4,), (((), ()), ((), ())), [1], [0]),
        P("y", None, None, "x"),
    ),
    "sums, two contracted": (((2, 16), P()), ((2, 16), P()), (2, 4), (((0, 1), (0, 1)), ((), ())), [1], [], P("y")),
    "batches, weights over groups": (
        *(((2, 16, 8), P()), ((4, 2, 8, 16), P("x")), (4,), (((2,), (2,)), ((0,), (1,))), [1], [0]),
        P("y"),
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_explicit_results_of_merged_axes(name, rng, explicit):
    (x, x_spec), (w, w_spec), sizes, dims, ragged, of_groups, out = MERGED[name]
    numbers = lax.RaggedDotDimensionNumbers(dims, ragged, of_groups)
    operands = [put(array, explicit, spec) for array, spec in zip(arrays(rng, x, w), (x_spec, w_spec), strict=True)]
    sizes = jnp.broadcast_to(array([3, 5, 4, 4]), sizes) if len(sizes) == 1 else jnp.full(sizes, 4)
    got, want = (
        jax.jit(lambda *a, of=of: of.ragged_dot_general(*a, sizes, numbers, out_sharding=out))(*operands)
        for of in (jaxgemm, lax)
    )
    assert jax.typeof(got).sharding.spec == jax.typeof(want).sharding.spec
    assert_close(got, want)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_explicit_vmap_of_a_shared_bias(activation, rng, explicit):
    """Its gradient, and that of rows which are mapped along a sharded axis with sizes of their own."""
    x, w, b = arrays(rng, (4, 8, K), (3, K, N), (3, N))
    sizes = array([[1, 2, 3], [4, 4, 0], [0, 0, 0], [8, 0, 0]])

    def total(x, w, b, sizes):
        each = jax.vmap(lambda x, s: jaxgemm.ragged_dot(x, w, s, bias=b, activation=activation))
        return jnp.sum(jnp.sin(each(x, sizes)))

    want = jax.jit(jax.grad(total, (0, 1, 2)))(x, w, b, sizes)
    got = jax.jit(jax.grad(total, (0, 1, 2)))(put(x, explicit, P("y")), w, b, put(sizes, explicit, P("y")))
    assert_close(got, want)
    assert jax.typeof(got[0]).sharding.spec == P("y", None, None)


@pytest.mark.parametrize("rhs", [P(), P(None, None, "y"), P("y")])
def test_explicit_vmap(rhs, rng, explicit):
    """The mapped axis stays sharded, and out_sharding does not mention it; weights are those of the whole batch."""
    x, w = arrays(rng, (4, M, K), (GROUPS, K, N))
    operands = put(x, explicit, P("x")), put(w, explicit, rhs)
    columns = (*rhs, None, None, None)[2]
    given = {"out_sharding": P(None, columns)} if rhs != P() else {}
    sizes = array(SIZES["all"], np.int32)
    product = jax.vmap(lambda x, w: jaxgemm.ragged_dot(x, w, sizes, **given), (0, None))

    def expected(x, w):
        return jnp.stack([by_rows(one, w, SIZES["all"]) for one in x])

    got = jax.jit(product)(*operands)
    assert jax.typeof(got).sharding.spec == P("x", None, columns)
    assert_close(got, expected(x, w))
    back = jax.jit(gradient(product))(*operands)
    assert [jax.typeof(v) for v in back] == [jax.typeof(v) for v in operands]
    assert_close(back, gradient(expected)(x, w))


def test_explicit_epilogue(rng, explicit):
    x, w, bias = arrays(rng, (M, K), (GROUPS, K, N), (GROUPS, N))
    operands = put(x, explicit, P("x")), put(w, explicit, P(None, None, "y")), put(bias, explicit, P(None, "y"))
    sizes = array(SIZES["fewer"], np.int32)
    product = lambda x, w, bias: jaxgemm.ragged_dot(x, w, sizes, bias=bias, activation="tanh")  # noqa: E731
    got = jax.jit(product)(*operands)
    assert jax.typeof(got).sharding.spec == P("x", "y")
    of_row = np.concatenate([np.full(max(n, 0), g) for g, n in enumerate(SIZES["fewer"])])
    rows = np.zeros((M, N), np.float32)
    rows[: len(of_row)] = bias[of_row]
    assert_close(got, jnp.tanh(by_rows(x, w, SIZES["fewer"]) + rows))


def test_explicit_override(rng, explicit):
    """lax has no gradient of such a product."""
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    operands, sizes = (put(x, explicit, P("y")), put(w, explicit, P("x"))), array(SIZES["all"], np.int32)
    routed = jaxgemm.override(lambda x, w: lax.ragged_dot(x, w, sizes, out_sharding=P("y", None)))
    got = jax.jit(routed)(*operands)
    assert jax.typeof(got).sharding.spec == P("y", None)
    assert_close(got, by_rows(x, w, SIZES["all"]))
    assert traffic(routed, *operands).calls == {"all-reduce": 1}
    back = jax.jit(gradient(routed))(*operands)
    assert_close(back, gradient(partial(by_rows, sizes=SIZES["all"]))(x, w))
