"""grouped_gemm: a product for each pair of operands, whatever their shapes, under every transformation."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export, lax
from jax.experimental.jet import jet
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from jaxprs import equations
from meshes import mesh, put

import jaxgemm
from jaxgemm.products.dense import gemm_p
from jaxgemm.products.lists import many_p

#: (m, k, n): ordinary, with an extent of one, and empty in every way.
SHAPES = [(3, 4, 5), (1, 7, 1), (8, 2, 16), (4, 0, 3), (0, 5, 2), (2, 3, 0), (6, 6, 6)]

#: Error relative to the largest element: of operands as given, whose sums are in fp32 or fp64.
EPS = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 2.0**-8, "float16": 2.0**-11}

kernels = pytest.mark.parametrize("kernel", ["auto", "xla", "host"])


def operands(rng, dtype="float64", shapes=SHAPES):
    a = [array(rng.standard_normal((m, k)), dtype) for m, k, _ in shapes]
    return a, [array(rng.standard_normal((k, n)), dtype) for _, k, n in shapes]


def exact(a, b):
    return [np.asarray(x, np.float64) @ np.asarray(y, np.float64) for x, y in zip(a, b, strict=True)]


def check(got, want, eps=1e-13):
    assert len(got) == len(want)
    for z, w in zip(got, want, strict=True):
        assert z.shape == w.shape
        np.testing.assert_allclose(np.asarray(z, np.float64), w, rtol=eps, atol=eps * np.abs(w).max(initial=0))


def total(a, b, kernel="auto"):
    return sum(jnp.sum(jnp.sin(z)) for z in jaxgemm.grouped_gemm(a, b, kernel=kernel))


def dense(a, b):
    return sum(jnp.sum(jnp.sin(x @ y)) for x, y in zip(a, b, strict=True))


def check_trees(got, want, eps=1e-12):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    check(jax.tree.leaves(got), [np.asarray(x, np.float64) for x in jax.tree.leaves(want)], eps)


# --- Values ---------------------------------------------------------------------------------------------------


@kernels
@pytest.mark.parametrize("dtype", EPS)
def test_values(kernel, dtype, rng):
    a, b = operands(rng, dtype)
    got = jax.jit(lambda a, b: jaxgemm.grouped_gemm(a, b, kernel=kernel))(a, b)
    assert all(z.dtype == dtype for z in got)
    check(got, exact(a, b), EPS[dtype])


def test_none_and_one(rng):
    assert jaxgemm.grouped_gemm([], []) == []
    a, b = operands(rng, shapes=[(3, 4, 5)])
    check(jaxgemm.grouped_gemm(tuple(a), iter(b)), exact(a, b))


def test_integers_are_summed_exactly(rng):
    a, b = ([rng.integers(-9, 9, s) for s in shapes] for shapes in ([(3, 4), (2, 5)], [(4, 6), (5, 1)]))
    got = jaxgemm.grouped_gemm(a, b)
    for z, x, y in zip(got, a, b, strict=True):
        np.testing.assert_array_equal(z, x @ y)


def test_result_type(rng):
    a, b = operands(rng, "bfloat16")
    got = jaxgemm.grouped_gemm(a, b, preferred_element_type=jnp.float32)
    assert all(z.dtype == jnp.float32 for z in got)
    check(got, exact(a, b), EPS["float32"])


def test_all_operands_are_promoted_together(rng):
    a, b = operands(rng, "bfloat16", shapes=[(3, 4, 5), (2, 3, 2)])
    mixed = jaxgemm.grouped_gemm([a[0], a[1].astype(jnp.float32)], b)
    assert [z.dtype for z in mixed] == [jnp.float32] * 2
    check(mixed, exact(a, b), EPS["float32"])
    weak = jaxgemm.grouped_gemm([a[0]], [jnp.ones((4, 5), int) * 2])
    assert weak[0].dtype == jnp.bfloat16
    numbers = [jnp.full((2, 2), 1.5), jnp.full((2, 2), 2.0)]
    assert all(z.weak_type for z in jaxgemm.grouped_gemm(numbers, numbers))
    with jax.numpy_dtype_promotion("strict"), pytest.raises(jax.dtypes.TypePromotionError):
        jaxgemm.grouped_gemm([a[0], a[1].astype(jnp.float32)], b)


@kernels
@pytest.mark.parametrize("layout", ["NT", "TN", "TT", "mixed"])
def test_transpositions_are_read_through(kernel, layout, rng):
    """Where all operands of a side are transposed: those of both sides cannot be."""
    a, b = operands(rng)
    turn_a, turn_b = ([letter == "T"] * len(a) for letter in (layout if layout != "mixed" else "NN"))
    if layout == "mixed":
        turn_b[1] = True
    stored = [[x.T if t else x for x, t in zip(*side, strict=True)] for side in ((a, turn_a), (b, turn_b))]

    def f(a, b):
        a, b = ([x.T if t else x for x, t in zip(*side, strict=True)] for side in ((a, turn_a), (b, turn_b)))
        return jaxgemm.grouped_gemm(a, b, kernel=kernel)

    check(jax.jit(f)(*stored), exact(a, b))
    cts = [array(rng.standard_normal(z.shape)) for z in f(*stored)]
    da, db = jax.jit(lambda *x: jax.vjp(f, *x)[1](cts))(*stored)
    check(da, [(ct @ y.T).T if t else ct @ y.T for ct, y, t in zip(cts, b, turn_a, strict=True)])
    check(db, [(x.T @ ct).T if t else x.T @ ct for ct, x, t in zip(cts, a, turn_b, strict=True)])
    found = jaxgemm.explain(f, *stored, platform="cpu").products
    assert found[0].operands == "float64[3,4] x float64[4,5]"
    assert found[0].decision.problem.layout == {"TT": "TN", "mixed": "NN"}.get(layout, layout)


def test_precision_reaches_each_product(rng):
    a, b = operands(rng, "float32")
    program = jax.make_jaxpr(lambda a, b: jaxgemm.grouped_gemm(a, b, precision="highest"))(a, b)
    (eqn,) = program.eqns
    assert eqn.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2


# --- Transformations ------------------------------------------------------------------------------------------


@kernels
def test_gradients(kernel, rng):
    a, b = operands(rng)
    check_trees(jax.jit(jax.grad(lambda a, b: total(a, b, kernel), (0, 1)))(a, b), jax.grad(dense, (0, 1))(a, b))
    check_trees(jax.grad(lambda a: total(a, b, kernel))(a), jax.grad(dense)(a, b))


def test_derivatives_of_every_order(rng):
    a, b = operands(rng, shapes=[(2, 3, 2), (1, 2, 3)])
    check_grads(total, (a, b), order=3, modes=["fwd", "rev"])


def test_backward_passes_stay_together(rng):
    a, b = operands(rng)
    found = [eqn for eqn in equations(jax.grad(total, (0, 1)), a, b) if eqn.primitive in (many_p, gemm_p)]
    assert {eqn.primitive for eqn in found} == {many_p}
    assert sorted(eqn.params["transposed"] for eqn in found) == [(False, False), (False, True), (True, False)]
    second = {eqn.primitive for eqn in equations(jax.grad(lambda a: jax.grad(total)(a, b)[0].sum()), a)}
    assert many_p in second
    assert gemm_p not in second


def test_taylor_mode(rng):
    (a, b), *terms = (operands(rng, shapes=SHAPES[:4]) for _ in range(4))

    def f(multiply):
        return lambda *x: [jnp.sin(z) for z in multiply(x[: len(a)], x[len(a) :])]

    primals, series = (*a, *b), [list(of) for of in zip(*((*da, *db) for da, db in terms), strict=True)]
    got = jet(f(jaxgemm.grouped_gemm), primals, series)
    want = jet(f(lambda a, b: [x @ y for x, y in zip(a, b, strict=True)]), primals, series)
    check_trees(got, want)


def test_operands_that_do_not_move(rng):
    a, b = operands(rng)
    da, db = operands(rng)

    def some(x, y):  # one operand of the first product moves, the other of the second, and nothing else
        return jaxgemm.grouped_gemm([x, *a[1:]], [b[0], y, *b[2:]])

    got, tangents = jax.jvp(some, (a[0], b[1]), (da[0], db[1]))
    check(got, exact(a, b))
    want = [np.asarray(da[0]) @ np.asarray(b[0]), np.asarray(a[1]) @ np.asarray(db[1])]
    check(tangents, [*want, *(np.zeros(z.shape) for z in got[2:])])
    cts = [jnp.ones(z.shape) for z in got]
    x, y = jax.vjp(some, a[0], b[1])[1](cts)
    check([x, y], [np.ones(got[0].shape) @ np.asarray(b[0]).T, np.asarray(a[1]).T @ np.ones(got[1].shape)])


def test_gradients_in_the_types_of_operands(rng):
    a, b = operands(rng, "bfloat16")

    def f(a, b):
        return sum(jnp.sum(z) for z in jaxgemm.grouped_gemm(a, b, preferred_element_type=jnp.float32))

    da, db = jax.grad(f, (0, 1))(a, b)
    ones = [np.ones((x.shape[0], y.shape[1])) for x, y in zip(a, b, strict=True)]
    check(da, [ct @ np.asarray(y, np.float64).T for ct, y in zip(ones, b, strict=True)], 1e-2)
    check(db, [np.asarray(x, np.float64).T @ ct for ct, x in zip(ones, a, strict=True)], 1e-2)
    assert {x.dtype for x in (*da, *db)} == {jnp.dtype("bfloat16")}


@kernels
def test_vmap(kernel, rng):
    a, b = operands(rng)
    several = [jnp.stack([x, 2 * x, -x]) for x in a]

    def f(a, b):
        return jaxgemm.grouped_gemm(a, b, kernel=kernel)

    want = [np.stack([z, 2 * z, -z]) for z in exact(a, b)]
    check(jax.vmap(f, (0, None))(several, b), want)
    # One product's a along its last axis, and no other operand.
    axes = [2, *[None] * (len(a) - 1)]
    moved = [jnp.moveaxis(several[0], 0, 2), *a[1:]]
    got = jax.vmap(f, (axes, None))(moved, b)
    check(got, [want[0], *(np.stack([z] * 3) for z in exact(a, b)[1:])])
    both = jax.vmap(f)(several, [jnp.stack([y, y, 3 * y]) for y in b])
    check(both, [np.stack([z, 2 * z, -3 * z]) for z in exact(a, b)])


@kernels
def test_scan(kernel, rng):
    a, b = operands(rng, shapes=[(3, 3, 3), (2, 2, 2)])
    steps = [jnp.stack([y, 2 * y, -y]) for y in b]

    def f(a, steps):
        return jax.lax.scan(lambda a, b: (jaxgemm.grouped_gemm(a, b, kernel=kernel), None), a, steps)[0]

    want = [x @ y @ y @ y * -2 for x, y in zip(a, b, strict=True)]
    check(jax.jit(f)(a, steps), want, 1e-12)
    found = jaxgemm.explain(f, a, steps, platform="cpu").products
    assert [p.trips for p in found] == [3, 3]
    total = jax.grad(lambda steps: sum(jnp.sum(z) for z in f(a, steps)))(steps)
    for i, (x, y, got) in enumerate(zip(a, b, total, strict=True)):
        want = jax.grad(lambda s, x=x: jnp.sum(x @ s[0] @ s[1] @ s[2]))(steps[i])
        check([got], [np.asarray(want)], 1e-12)
        assert got.shape == (3, *y.shape)


@kernels
def test_export(kernel, rng):
    a, b = operands(rng, "float32")
    check_custom_call = export.DisabledSafetyCheck.custom_call("jaxgemm_gemm")
    function = jax.jit(lambda a, b: jaxgemm.grouped_gemm(a, b, kernel=kernel))
    again = export.deserialize(export.export(function, disabled_checks=[check_custom_call])(a, b).serialize())
    check(again.call(a, b), exact(a, b), EPS["float32"])


def test_export_of_any_number_of_rows(rng):
    a, b = operands(rng, "float32", shapes=[(3, 4, 5), (2, 3, 2)])
    rows = [jax.ShapeDtypeStruct(export.symbolic_shape("m, 4"), "float32"), a[1]]
    check(export.export(jax.jit(jaxgemm.grouped_gemm))(rows, b).call(a, b), exact(a, b), EPS["float32"])


def test_checkpoint_keeps_products(rng):
    a, b = operands(rng)

    def count(policy):
        function = jax.checkpoint(total, policy=policy)
        return sum(eqn.primitive is many_p for eqn in equations(jax.grad(function), a, b))

    assert count(jaxgemm.checkpoint_policies.dots_saveable) == 2
    assert count(jax.checkpoint_policies.nothing_saveable) == 3


def test_policies_see_both_operands_of_a_product():
    """Those of the first, as there is one primitive for all."""
    seen = []

    def policy(primitive, *args, **_):
        if primitive is lax.dot_general_p:
            seen.append([x.shape for x in args])
        return False

    a, b = operands(np.random.default_rng(0))
    f = jax.checkpoint(
        lambda *x: sum(z.sum() for z in jaxgemm.grouped_gemm(*x)),
        policy=jaxgemm.checkpoint_policies.with_products(policy),
    )
    jax.make_jaxpr(jax.grad(f))(a, b)
    assert [a[0].shape, b[0].shape] in seen


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
@kernels
def test_several_devices(types, kernel, rng):
    a, b = operands(rng, shapes=[(8, 4, 5), (16, 3, 2)])
    over = mesh((8,), ("x",), types)

    def program(a, b):
        return jax.value_and_grad(lambda a: total(a, b, kernel))(a)

    want = jax.value_and_grad(dense)(a, b)
    with jax.set_mesh(over):
        placed = [put(x, over, P("x")) for x in a], [put(y, over, P()) for y in b]
        check_trees(jax.jit(program)(*placed), want)


@kernels
def test_inside_of_a_shard_map(kernel, rng):
    a, b = operands(rng, shapes=[(8, 4, 5), (16, 3, 2)])

    def f(a, b):
        return jaxgemm.grouped_gemm(a, b, kernel=kernel)

    mapped = jax.shard_map(f, mesh=mesh((8,), ("x",)), in_specs=(P("x"), P()), out_specs=P("x"))
    check(jax.jit(mapped)(a, b), exact(a, b))
    grads = jax.grad(lambda b: sum(jnp.sum(z) for z in mapped(a, b)))(b)
    check_trees(grads, jax.grad(lambda b: sum(jnp.sum(x @ y) for x, y in zip(a, b, strict=True)))(b))


# --- Errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        ([(2, 3)], [], ValueError, "got 1 arrays as a and 0 as b"),
        ([(2, 3), (3,)], [(3, 4), (3, 4)], ValueError, "product 1 has operands of shapes (3,) and (3, 4)"),
        ([(2, 3)], [(1, 3, 4)], ValueError, "product 0 has operands of shapes (2, 3) and (1, 3, 4)"),
        ([(2, 3), (4, 5)], [(3, 4), (6, 1)], ValueError, "inner dimensions differ in product 1"),
    ],
)
def test_shapes_that_do_not_fit(a, b, error, message):
    with pytest.raises(error, match=re.escape(message)):
        jaxgemm.grouped_gemm([np.ones(s) for s in a], [np.ones(s) for s in b])


def test_what_is_no_operand():
    with pytest.raises(TypeError, match="expected an array"):
        jaxgemm.grouped_gemm(["x"], [np.ones((2, 2))])
    with pytest.raises(TypeError, match="expected numbers or booleans"):
        jaxgemm.grouped_gemm([jax.random.key(0)], [np.ones((2, 2))])


def test_names_and_options(rng):
    a, b = operands(rng, "bfloat16")
    with pytest.raises(ValueError, match="expected one of auto"):
        jaxgemm.grouped_gemm(a, b, kernel="none")
    with pytest.raises(ValueError, match="need a kernel by name"):
        jaxgemm.grouped_gemm(a, b, tile_m=64)
    with pytest.raises(ValueError, match="has no option tile_q"):
        jaxgemm.grouped_gemm(a, b, kernel="sm90", tile_q=64)
    with pytest.raises(jaxgemm.UnsupportedError, match="kernel 'sm90' runs on cuda"):
        jaxgemm.grouped_gemm(a, b, kernel="sm90")


# --- explain --------------------------------------------------------------------------------------------------


def test_explain(rng):
    a, b = operands(rng, "float32")
    found = jaxgemm.explain(jaxgemm.grouped_gemm, a, b, platform="cpu")
    assert len(found.products) == len(a)
    assert "float32[3,4] x float32[4,5] -> float32" in str(found)
    why = "by itself: no kernel for cpu has a form for many products (no-many-form)"
    assert all(p.many == why for p in found.products)
    by_name = jaxgemm.explain(lambda a, b: jaxgemm.grouped_gemm(a, b, kernel="host"), a, b, platform="cpu")
    assert {p.kernel for p in by_name.products} == {"host"}
    one = jaxgemm.explain(jaxgemm.grouped_gemm, a[2:4], b[2:4], platform="cpu")
    assert all("few-products" in p.many for p in one.products)
