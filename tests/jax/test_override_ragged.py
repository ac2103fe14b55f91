"""override: a ragged product becomes a dense one of a kernel of ours, or stays and says why."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxprs import equations
from meshes import mesh
from routing import close, count, total

import jaxgemm
from jaxgemm.override import override
from jaxgemm.select import resolve

Numbers = lax.RaggedDotDimensionNumbers

#: name: (shapes of lhs and rhs, group sizes, dimension numbers)
MODES = {
    "rows": ((5, 8), (2, 8, 3), [3, 2], Numbers((((1,), (1,)), ((), ())), [0], [0])),
    "rows of no group": ((5, 8), (3, 8, 3), [3, 0, 1], Numbers((((1,), (1,)), ((), ())), [0], [0])),
    "rows, transposed weights": ((8, 5), (3, 2, 8), [3, 2], Numbers((((0,), (2,)), ((), ())), [1], [1])),
    "rows of batches": (
        (4, 5, 8),
        (4, 2, 8, 3),
        [[3, 1], [0, 5], [5, 0], [2, 3]],
        Numbers((((2,), (2,)), ((0,), (0,))), [1], [1]),
    ),
    "rows of batches, alike": ((4, 5, 8), (4, 2, 8, 3), [3, 1], Numbers((((2,), (2,)), ((0,), (0,))), [1], [1])),
    "rows below another axis": (
        (2, 3, 5, 8),
        (2, 2, 8, 3),
        [[[3, 1], [0, 5], [5, 0]], [[1, 1], [4, 1], [0, 0]]],
        Numbers((((3,), (2,)), ((0,), (0,))), [2], [1]),
    ),
    "contracted": ((6, 8), (6, 3), [2, 0, 3], Numbers((((0,), (0,)), ((), ())), [0], [])),
    "contracted, batches": (
        (8, 4, 6),
        (3, 6, 4),
        [[2, 0, 3], [6, 0, 0], [0, 0, 0], [1, 2, 3]],
        Numbers((((2,), (1,)), ((1,), (2,))), [2], []),
    ),
    "batches": ((4, 5, 8), (4, 8, 3), [3, 1], Numbers((((2,), (1,)), ((0,), (0,))), [0], [])),
}


def ragged(function, *args):
    """Ragged products in the function's jaxpr."""
    return sum(eqn.primitive.name == "ragged_dot_general" for eqn in equations(function, *args))


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.standard_normal((7, 8)))


@pytest.fixture
def w(rng):
    return jnp.asarray(rng.standard_normal((3, 8, 8)) / 4)


SIZES = jnp.array([3, 0, 4])


@pytest.mark.parametrize("mode", MODES)
def test_every_mode(mode, rng):
    x, y, sizes, numbers = MODES[mode]
    x, y, sizes = jnp.asarray(rng.standard_normal(x)), jnp.asarray(rng.standard_normal(y)), jnp.asarray(sizes)

    def function(x, y):
        return lax.ragged_dot_general(x, y, sizes, numbers)

    ours = override(function, kernel="host")
    assert (count(ours, x, y), ragged(ours, x, y)) == ((1, 0), 0)
    close(jax.jit(ours)(x, y), function(x, y))
    if mode in ("rows", "rows of no group", "rows, transposed weights"):  # lax differentiates no other
        gradient = [jax.jit(jax.grad(total(f), (0, 1))) for f in (ours, function)]
        close(gradient[0](x, y), gradient[1](x, y))


def test_sizes_that_are_computed(x, w):
    def function(x, w, which):
        sizes = jnp.bincount(which, length=3).astype(jnp.int32)
        return lax.ragged_dot(x[jnp.argsort(which)], w, sizes)

    ours = override(function, kernel="host")
    for which in ([0, 1, 2, 2, 1, 0, 0], [1] * 7, [2, 0, 2, 0, 2, 0, 2]):
        close(jax.jit(ours)(x, w, jnp.array(which)), function(x, w, jnp.array(which)))


def test_transformations_from_outside_and_inside(x, w):
    def function(x, w):
        return jnp.tanh(lax.ragged_dot(jnp.sin(x), w, SIZES)) @ w[0]

    ours = override(function, kernel="host")
    close(jax.jvp(ours, (x, w), (x, w)), jax.jvp(function, (x, w), (x, w)))
    # lax has no second derivative of it: by a product a row.
    rowwise = lambda x, w: jnp.tanh(jnp.einsum("mk,mkn->mn", jnp.sin(x), w[jnp.array([0] * 3 + [2] * 4)])) @ w[0]  # noqa: E731
    close(jax.hessian(total(ours))(x, w), jax.hessian(total(rowwise))(x, w))
    close(jax.jit(jax.checkpoint(ours))(x, w), function(x, w))
    xs, ws = jnp.stack([x, -x]), jnp.stack([w, w * w])
    expected = jnp.stack([function(*args) for args in zip(xs, ws, strict=True)])
    close(jax.vmap(ours)(xs, ws), expected)
    gradient = jax.grad(total(function), (0, 1))
    inside = override(gradient, kernel="host")
    close(inside(x, w), gradient(x, w))
    assert ragged(gradient, x, w) == 3
    assert ragged(inside, x, w) == 0

    def layers(x, w):
        return lax.scan(lambda c, _: (jnp.tanh(lax.ragged_dot(c, w, SIZES)), None), x, None, length=3)[0]

    close(jax.jit(override(layers, kernel="host"))(x, w), layers(x, w))


def test_specials_stay_in_their_rows(x, w):
    x = x.at[1, 2].set(jnp.nan)
    got = override(lambda x, w: lax.ragged_dot(x, w, SIZES), kernel="host")(x, w)
    np.testing.assert_array_equal(np.isnan(got).any(1), np.arange(7) == 1)


def test_types_and_precision(x, w):
    narrow = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)

    def function(x, w):
        return lax.ragged_dot(x, w, SIZES, precision="highest", preferred_element_type=jnp.float32)

    (product,) = jaxgemm.explain(override(function, kernel="host"), *narrow).products
    assert product.precision == (lax.Precision.HIGHEST,) * 2
    got = override(function, kernel="host")(*narrow)
    assert got.dtype == jnp.float32
    exact = lax.ragged_dot(*(v.astype(jnp.float64) for v in narrow), SIZES)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_of_shard_map(check_vma, x, w):
    """Experts on every device, rows on their own: as in a layer of experts."""

    def mapped(wrap):
        def body(x, w):
            return wrap(lambda x, w: lax.ragged_dot(x[0], w, SIZES))(x, w)[None]

        on = mesh((2,), ("i",))
        return jax.shard_map(body, mesh=on, in_specs=(P("i"), P()), out_specs=P("i"), check_vma=check_vma)

    xs = jnp.stack([x, 2 - x])
    ours, plain = mapped(lambda f: override(f, kernel="host")), mapped(lambda f: f)
    assert ragged(ours, xs, w) == 0
    close(jax.jit(ours)(xs, w), plain(xs, w))
    close(jax.jit(jax.grad(total(ours), (0, 1)))(xs, w), jax.grad(total(plain), (0, 1))(xs, w))
    around = override(plain, kernel="host")
    close(around(xs, w), plain(xs, w))
    (left,) = jaxgemm.explain(around, xs, w).left
    assert left.why == "it is in a shard_map that override was put around; override the function that is mapped"


# --- What stays -----------------------------------------------------------------------------------------------


def test_auto_leaves_to_xla_what_xla_would_compute(x, w):
    """XLA may have an instruction for it, which needs no masks."""

    def function(x, w):
        return lax.ragged_dot(x, w, SIZES)

    for kernel in ("auto", "xla"):
        assert ragged(override(function, kernel=kernel), x, w) == 1
        close(override(function, kernel=kernel)(x, w), function(x, w))
        (left,) = jaxgemm.explain(override(function, kernel=kernel), x, w).left
        assert left.operands == "float64[7,8] x float64[3,8,8] -> float64"
        assert left.why.startswith("XLA has a ragged product of its own")
    (left,) = jaxgemm.explain(function, x, w).left
    assert left.why.startswith("XLA has a ragged product of its own")


def test_auto_takes_a_kernel_where_it_would_for_the_dense_product(x, w, monkeypatch):
    asked = []

    def choose(problem, device, _):
        asked.append((problem.m, problem.n, problem.k))
        return resolve("host", (), problem, device)

    monkeypatch.setattr("jaxgemm.select._automatic", choose)
    ours = override(lambda x, w: lax.ragged_dot(x, w, SIZES))
    assert ragged(ours, x, w) == 0
    assert set(asked) == {(7, 8, 24)}  # the groups are contracted


def test_what_no_kernel_computes_stays(x, w):
    def function(x, w):
        return lax.ragged_dot(x.astype(complex), w.astype(complex), SIZES)

    ours = override(function, kernel="host")
    close(ours(x, w), function(x, w))
    (left,) = jaxgemm.explain(ours, x, w).left
    assert left.why == "no kernel multiplies complex128 by complex128"
