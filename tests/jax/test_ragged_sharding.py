"""Products of groups of rows over several devices: right, and with no more communication than lax's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from grouped import GROUPS, SIZES, SUMS, K, M, N, arrays, bounds, by_rows, by_sums, gradient
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_close, assert_no_more, mesh, put, traffic

import jaxgemm

Numbers = lax.RaggedDotDimensionNumbers
TRANSPOSED = Numbers((((1,), (2,)), ((), ())), [0], [0])
BATCH = Numbers((((2,), (2,)), ((0,), (0,))), [1], [1])
NONE: dict[str, int] = {}


def jitted(function, on, *specs):
    """With results sharded as asked for; without specs, however they come."""
    found = tuple(NamedSharding(on, spec) for spec in specs)
    return jax.jit(function, out_shardings=(found if len(found) > 1 else found[0]) if found else None)


@dataclass(frozen=True)
class Case:
    """Shardings of a product, and what is sent.

    Attributes:
        lhs, rhs: of the operands.
        out: that the result is asked for in; None: whatever comes out.
        calls: collectives of the product; None: no more than lax's.
    """

    lhs: P
    rhs: P
    out: P | None = None
    calls: dict[str, int] | None = None


ROWS = {
    "rows": Case(P("x"), P(), calls=NONE),
    "rows over all devices": Case(P(("x", "y")), P(), calls=NONE),
    "columns": Case(P(), P(None, None, "x"), calls=NONE),
    "rows and columns": Case(P("x"), P(None, None, "y"), calls=NONE),
    "contracted": Case(P(None, "x"), P(None, "x"), calls={"all-reduce": 1}),
    "contracted, rows": Case(P("x", "y"), P(None, "y"), calls={"all-reduce": 1}),
    "contracted and scattered": Case(P(None, "x"), P(None, "x"), P("x")),
    "contracted, one operand whole": Case(P(None, "x"), P()),
    "groups": Case(P(), P("x"), calls={"all-reduce": 1}),
    "groups over all devices": Case(P(), P(("y", "x")), calls={"all-reduce": 1}),
    "groups and columns": Case(P(), P("x", None, "y"), calls={"all-reduce": 1}),
    "groups and rows": Case(P("y"), P("x"), calls={"all-reduce": 1}),
    "groups, contracted": Case(P(None, "y"), P("x", "y"), calls={"all-reduce": 1}),
    "groups, scattered": Case(P(), P("x"), P("x")),
    "groups by the rows' axis": Case(P("x"), P("x"), P("x")),
    "groups by the contracted axis": Case(P(None, "x"), P("x")),
    "columns by the rows' axis": Case(P("x"), P(None, None, "x")),
}
cases = pytest.mark.parametrize("name", ROWS)


@cases
def test_rows(name, rng):
    case, on = ROWS[name], mesh()
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    program, plain = (jitted(f, on, *[case.out] * bool(case.out)) for f in (jaxgemm.ragged_dot, lax.ragged_dot))
    for sizes in SIZES.values():
        operands = put(x, on, case.lhs), put(w, on, case.rhs), array(sizes, np.int32)
        got = program(*operands)
        assert_close(got, by_rows(x, w, sizes))
    if case.out is not None:
        assert got.sharding.is_equivalent_to(NamedSharding(on, case.out), 2)
    sent = traffic(program, *operands)
    assert_no_more(sent, traffic(plain, *operands))
    assert case.calls is None or sent.calls == case.calls


@cases
def test_gradients(name, rng):
    """Sharded as the operands are, as an optimizer asks for them."""
    case, on = ROWS[name], mesh()
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    operands = put(x, on, case.lhs), put(w, on, case.rhs), array(SIZES["fewer"], np.int32)
    program, plain = (jitted(gradient(f), on, case.lhs, case.rhs) for f in (jaxgemm.ragged_dot, lax.ragged_dot))
    assert_close(program(*operands), gradient(partial(by_rows, sizes=SIZES["fewer"]))(x, w))
    assert_no_more(traffic(program, *operands), traffic(plain, *operands))


@pytest.mark.parametrize("name", ["rows", "contracted", "groups and columns", "groups by the rows' axis"])
def test_second_derivatives(name, rng):
    case, on = ROWS[name], mesh()
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    operands = put(x, on, case.lhs), put(w, on, case.rhs)
    twice = [
        jax.grad(lambda x, w, f=f: sum(jnp.sum(v**2) for v in gradient(f)(x, w)), (0, 1))
        for f in (
            lambda x, w: jaxgemm.ragged_dot(x, w, jnp.asarray(SIZES["all"])),
            partial(by_rows, sizes=SIZES["all"]),
        )
    ]
    assert_close(jax.jit(twice[0])(*operands), twice[1](x, w), rtol=1e-4)


SUMMED = {
    "rows": Case(P("x"), P("x"), calls={"all-reduce": 1}),
    "rows over all devices": Case(P(("x", "y")), P(("x", "y")), calls={"all-reduce": 1}),
    "rows, one operand whole": Case(P("x"), P(), calls={"all-reduce": 1}),
    "rows and columns": Case(P("x"), P("x", "y"), calls={"all-reduce": 1}),
    "columns of either": Case(P(None, "x"), P(None, "y"), calls=NONE),
    "groups": Case(P(), P(), P("x"), calls=NONE),
    "groups and columns": Case(P(None, "y"), P(), P("x", "y"), calls=NONE),
    "groups, from rows by their axis": Case(P("x"), P("x"), P("x"), calls={"reduce-scatter": 1}),
    "groups, from rows by another axis": Case(P("y"), P("y"), P("x"), calls={"all-reduce": 1}),
    "groups, from columns by their axis": Case(P(None, "x"), P(), P("x")),
}


@pytest.mark.parametrize("name", SUMMED)
def test_sums(name, rng):
    case, on = SUMMED[name], mesh()
    x, y = arrays(rng, (M, K), (M, N))
    program, plain = (
        jitted(partial(f, ragged_dot_dimension_numbers=SUMS), on, *[case.out] * bool(case.out))
        for f in (jaxgemm.ragged_dot_general, lax.ragged_dot_general)
    )
    back = jax.jit(gradient(partial(jaxgemm.ragged_dot_general, ragged_dot_dimension_numbers=SUMS)))
    for sizes in SIZES.values():
        operands = put(x, on, case.lhs), put(y, on, case.rhs), array(sizes, np.int32)
        got = program(*operands)
        assert_close(got, by_sums(x, y, sizes))
        assert_close(back(*operands), gradient(partial(by_sums, sizes=sizes))(x, y))
    if case.out is not None:
        assert got.sharding.is_equivalent_to(NamedSharding(on, case.out), 3)
    sent = traffic(program, *operands)
    assert_no_more(sent, traffic(plain, *operands))
    assert case.calls is None or sent.calls == case.calls


#: Shardings of both operands and of sizes, and collectives.
BATCHES = (
    ((P("x"), P("x"), P("x")), NONE),
    ((P("x"), P("x", None, None, "y"), P()), NONE),
    ((P("x", "y"), P("x"), P("x")), NONE),
    ((P("x"), P("x", "y"), P("x")), {"all-reduce": 1}),
    ((P(None, "x"), P(None, "y"), P()), {"all-reduce": 1}),
)


@pytest.mark.parametrize("case", range(len(BATCHES)))
@pytest.mark.parametrize("each", [True, False])
def test_batches(case, each, rng):
    """As by vmap: a batch is sharded in all operands, or in those that have it. Cases take turns with the rest."""
    on, (specs, calls) = mesh(), BATCHES[case]
    x, w = arrays(rng, (4, M, K), (4, GROUPS, K, N))
    sizes = np.asarray([SIZES["all"], SIZES["fewer"], SIZES["more"], SIZES["all"]])[slice(None) if each else 1]
    spec = specs[2] if each else P()
    operands = put(x, on, specs[0]), put(w, on, specs[1]), put(sizes.astype(np.int32), on, spec)
    program = jax.jit(jax.vmap(jaxgemm.ragged_dot, (0, 0, 0 if each else None)))
    rows = [sizes[i] if each else sizes for i in range(4)]

    def expected(x, w):
        return jnp.stack([by_rows(*one) for one in zip(x, w, rows, strict=True)])

    assert_close(program(*operands), expected(x, w))
    assert traffic(program, *operands).calls == calls
    if case % 2 == each:
        assert_close(jax.jit(gradient(program))(*operands), gradient(expected)(x, w))
    else:
        general = partial(jaxgemm.ragged_dot_general, ragged_dot_dimension_numbers=BATCH)
        assert_close(jax.jit(general)(*operands), expected(x, w))


def test_weights_that_all_of_a_batch_share(rng):
    on = mesh()
    x, w = arrays(rng, (4, M, K), (GROUPS, K, N))
    operands = put(x, on, P("x")), put(w, on, P("y"))
    program = jax.jit(jax.vmap(lambda x, w: jaxgemm.ragged_dot(x, w, jnp.asarray(SIZES["fewer"])), (0, None)))

    def expected(x, w):
        return jnp.stack([by_rows(one, w, SIZES["fewer"]) for one in x])

    assert_close(program(*operands), expected(x, w))
    assert traffic(program, *operands).calls == {"all-reduce": 1}
    assert_close(jax.jit(gradient(program))(*operands), gradient(expected)(x, w))


@pytest.mark.parametrize("name", ["groups and columns", "groups by the rows' axis", "contracted, rows", "columns"])
def test_weights_in_rows_along_k(name, rng):
    case, on = ROWS[name], mesh()
    x, w = arrays(rng, (M, K), (GROUPS, N, K))
    g, k, n = (*case.rhs, None, None, None)[:3]
    operands = put(x, on, case.lhs), put(w, on, P(g, n, k)), array(SIZES["all"], np.int32)
    program, plain = (
        jax.jit(partial(f, ragged_dot_dimension_numbers=TRANSPOSED))
        for f in (jaxgemm.ragged_dot_general, lax.ragged_dot_general)
    )
    assert_close(program(*operands), by_rows(x, w.swapaxes(1, 2), SIZES["all"]))
    assert_no_more(traffic(program, *operands), traffic(plain, *operands))


@pytest.mark.parametrize("offset", [0, 3, -2, 9, 2**31 - 1])
def test_weights_of_some_groups(offset, rng):
    """Four of eight, and each device has one of them."""
    on = mesh()
    x, w = arrays(rng, (M, K), (4, K, N))
    operands = put(x, on, P("y")), put(w, on, P("x"))

    def product(x, w, offset):
        return jaxgemm.ragged_dot(x, w, jnp.asarray(SIZES["all"]), group_offset=offset)

    given = array([offset])
    expected = partial(by_rows, sizes=SIZES["all"], offset=offset)
    assert_close(jax.jit(product)(*operands, given), expected(x, w))
    assert traffic(product, *operands, given).calls == {"all-reduce": 1}
    assert_close(jitted(gradient(product), on, P("y"), P("x"))(*operands, given), gradient(expected)(x, w))


@pytest.mark.parametrize("name", ["rows", "groups", "groups by the rows' axis", "groups and columns"])
def test_groups_are_isolated(name, rng):
    """A sum over devices does not bring one group's NaN or infinity to the rows of others."""
    case, on = ROWS[name], mesh()
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    sizes = SIZES["fewer"]
    expected = np.array(by_rows(x, w, sizes))
    begin, end = bounds(sizes, M)[2]
    x[begin:end], x[sum(sizes) :] = np.inf, np.nan
    w[0], w[3] = np.nan, np.inf
    got = np.asarray(jax.jit(jaxgemm.ragged_dot)(put(x, on, case.lhs), put(w, on, case.rhs), array(sizes)))
    spoilt = np.zeros(M, bool)
    spoilt[begin:end] = spoilt[:1] = True
    np.testing.assert_array_equal(np.isnan(got).any(1) | np.isinf(got).any(1), spoilt)
    assert_close(got[~spoilt], expected[~spoilt])


@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [(P("x"), P()), (P(), P("x")), (P("x"), P("x")), (P("y", "x"), P(None, "x")), (P(), P("x", None, "y"))],
)
def test_extents_that_do_not_divide(lhs, rhs, rng):
    """A constraint inside of a program may cut an axis into uneven parts."""
    on = mesh()
    rows, sizes = 30, array([7, 3, 0, 9, 4, 6])
    x, w = arrays(rng, (rows, 10), (5, 10, 21))

    def product(x, w):
        x = lax.with_sharding_constraint(x, NamedSharding(on, lhs))
        w = lax.with_sharding_constraint(w, NamedSharding(on, rhs))
        return jaxgemm.ragged_dot(x, w, sizes, group_offset=0)

    def constrained(x, w):
        found = gradient(product)(x, w)
        return [lax.with_sharding_constraint(v, NamedSharding(on, s)) for v, s in zip(found, (lhs, rhs), strict=True)]

    expected = partial(by_rows, sizes=sizes)
    assert_close(jax.jit(product)(x, w), expected(x, w))
    assert_close(jax.jit(constrained)(x, w), [*gradient(expected)(x, w)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int32", "bool"])
@pytest.mark.parametrize("name", ["contracted", "groups", "groups, scattered"])
def test_types(dtype, name, rng):
    """Integers wrap around, and booleans are joined by "or", in sums over devices too."""
    case, on = ROWS[name], mesh()
    x, w = (array(20 * v).astype(dtype) for v in arrays(rng, (M, K), (GROUPS, K, N)))
    operands = put(x, on, case.lhs), put(w, on, case.rhs), array(SIZES["fewer"], np.int32)
    got = jitted(jaxgemm.ragged_dot, on, *[case.out] * bool(case.out))(*operands)
    assert got.dtype == x.dtype
    expected = by_rows(x, w, SIZES["fewer"])
    if jnp.issubdtype(x.dtype, jnp.floating):
        assert_close(got, expected, 1e-2 if x.dtype.itemsize == 2 else 1e-12)
    else:
        exact = np.asarray(expected, np.int64)
        np.testing.assert_array_equal(got, exact != 0 if dtype == "bool" else exact.astype(dtype))


def test_narrow_types_travel_narrow(rng):
    """Partial sums are sent as the result's type, as lax's are; XLA widens bfloat16 on the CPU."""
    on = mesh()
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    sizes = array(SIZES["all"], np.int32)
    for case in (ROWS["contracted"], ROWS["groups"]):
        wide = put(x, on, case.lhs), put(w, on, case.rhs), sizes
        narrow = *(v.astype(jnp.float16) for v in wide[:2]), sizes
        sent, all_of = (traffic(jaxgemm.ragged_dot, *operands).total for operands in (narrow, wide))
        assert 2 * sent == all_of
        assert traffic(jaxgemm.ragged_dot, *narrow).total <= traffic(lax.ragged_dot, *narrow).total


def test_a_layer_of_experts_in_training(rng):
    """Two products of rows with a nonlinearity between them; weights are sharded over experts and features."""
    on = mesh()
    x, up, down = arrays(rng, (M, K), (GROUPS, K, N), (GROUPS, N, K))
    specs = P("y"), P("x", None, "y"), P("x", "y")
    operands = [put(v, on, spec) for v, spec in zip((x, up, down), specs, strict=True)]

    def step(product):
        def loss(weights, x):
            return jnp.mean(product(jax.nn.gelu(product(x, weights[0])), weights[1]) ** 2)

        def update(x, *weights):
            return tuple(w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, x), strict=True))

        return update

    sizes = array(SIZES["fewer"], np.int32)
    ours, theirs = (
        jitted(step(lambda x, w, f=f: f(x, w, sizes)), on, *specs[1:]) for f in (jaxgemm.ragged_dot, lax.ragged_dot)
    )
    exact = [array(v, np.float64) for v in (x, up, down)]
    assert_close(ours(*operands), step(partial(by_rows, sizes=SIZES["fewer"]))(*exact))
    assert_no_more(traffic(ours, *operands), traffic(theirs, *operands))


def test_eager(rng):
    on = mesh()
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    got = jaxgemm.ragged_dot(put(x, on, P("x")), put(w, on, P(None, None, "y")), array(SIZES["all"]))
    assert_close(got, by_rows(x, w, SIZES["all"]))
    assert got.sharding.is_equivalent_to(NamedSharding(on, P("x", "y")), 2)


def test_exported_programs(rng):
    """They may run in another process, where the partitioner cannot ask for a rule."""
    on = mesh()
    x, w = arrays(rng, (M, K), (GROUPS, K, N))
    operands = put(x, on, P("y")), put(w, on, P("x")), array(SIZES["all"], np.int32)
    exported = export.deserialize(export.export(jax.jit(jaxgemm.ragged_dot))(*operands).serialize())
    assert_close(jax.jit(exported.call)(*operands), by_rows(x, w, SIZES["all"]))
