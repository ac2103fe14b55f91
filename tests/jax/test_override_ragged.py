"""override: a ragged product becomes a grouped one, or stays and says why."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxprs import equations
from meshes import mesh
from routing import close, count, total

import jaxgemm
from jaxgemm.override import override
from jaxgemm.ragged.product import grouped_p

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


def counted(function, *args):
    """(grouped products, ragged ones of lax) in the function's jaxpr."""
    found = [eqn.primitive.name for eqn in equations(function, *args)]
    return found.count("jaxgemm_grouped"), found.count("ragged_dot_general")


@pytest.fixture
def x(rng):
    return array(rng.standard_normal((7, 8)))


@pytest.fixture
def w(rng):
    return array(rng.standard_normal((3, 8, 8)) / 4)


SIZES = array([3, 0, 4])


@pytest.mark.parametrize("mode", MODES)
def test_every_mode(mode, rng):
    x, y, sizes, numbers = MODES[mode]
    x, y, sizes = array(rng.standard_normal(x)), array(rng.standard_normal(y)), array(sizes)

    def function(x, y):
        return lax.ragged_dot_general(x, y, sizes, numbers)

    ours = override(function)
    assert counted(function, x, y) == (0, 1)
    assert counted(ours, x, y) == ((0, 0) if mode == "batches" else (1, 0))
    assert count(ours, x, y) == ((1, 0) if mode == "batches" else (0, 0))
    close(jax.jit(ours)(x, y), function(x, y))
    if mode in ("rows", "rows of no group", "rows, transposed weights"):  # lax differentiates no other
        gradient = [jax.jit(jax.grad(total(f), (0, 1))) for f in (ours, function)]
        close(gradient[0](x, y), gradient[1](x, y))


def test_sizes_that_are_computed(x, w):
    def function(x, w, which):
        sizes = jnp.bincount(which, length=3).astype(jnp.int32)
        return lax.ragged_dot(x[jnp.argsort(which)], w, sizes)

    ours = override(function)
    for which in ([0, 1, 2, 2, 1, 0, 0], [1] * 7, [2, 0, 2, 0, 2, 0, 2]):
        close(jax.jit(ours)(x, w, array(which)), function(x, w, array(which)))


def test_transformations_from_outside_and_inside(x, w):
    def function(x, w):
        return jnp.tanh(lax.ragged_dot(jnp.sin(x), w, SIZES)) @ w[0]

    ours = override(function)
    close(jax.jvp(ours, (x, w), (x, w)), jax.jvp(function, (x, w), (x, w)))
    # lax has no second derivative of it: by a product a row.
    rowwise = lambda x, w: jnp.tanh(jnp.einsum("mk,mkn->mn", jnp.sin(x), w[jnp.array([0] * 3 + [2] * 4)])) @ w[0]  # noqa: E731
    close(jax.hessian(total(ours))(x, w), jax.hessian(total(rowwise))(x, w))
    close(jax.jit(jax.checkpoint(ours))(x, w), function(x, w))
    xs, ws = jnp.stack([x, -x]), jnp.stack([w, w * w])
    expected = jnp.stack([function(*args) for args in zip(xs, ws, strict=True)])
    close(jax.vmap(ours)(xs, ws), expected)
    gradient = jax.grad(total(function), (0, 1))
    inside = override(gradient)
    close(inside(x, w), gradient(x, w))
    assert counted(gradient, x, w) == (0, 3)
    assert counted(inside, x, w) == (3, 0)

    def layers(x, w):
        return lax.scan(lambda c, _: (jnp.tanh(lax.ragged_dot(c, w, SIZES)), None), x, None, length=3)[0]

    close(jax.jit(override(layers))(x, w), layers(x, w))


def test_specials_stay_in_their_groups(x, w):
    x, w = x.at[1, 2].set(jnp.nan), w.at[1].set(jnp.inf)
    got = override(lambda x, w: lax.ragged_dot(x, w, SIZES))(x, w)
    np.testing.assert_array_equal(np.isnan(got).any(1), np.arange(7) == 1)
    assert not np.isinf(got).any()


def test_types_and_precision(x, w):
    narrow = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)

    def function(x, w, precision="highest"):
        return lax.ragged_dot(x, w, SIZES, precision=precision, preferred_element_type=jnp.float32)

    for routed in (override(function), override(partial(function, precision=None), precision="highest")):
        (product,) = (eqn for eqn in equations(routed, *narrow) if eqn.primitive is grouped_p)
        assert product.params["precision"] == (lax.Precision.HIGHEST,) * 2
    got = override(function)(*narrow)
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
    ours, plain = mapped(lambda f: override(f)), mapped(lambda f: f)
    assert counted(ours, xs, w) == (1, 0)
    close(jax.jit(ours)(xs, w), plain(xs, w))
    close(jax.jit(jax.grad(total(ours), (0, 1)))(xs, w), jax.grad(total(plain), (0, 1))(xs, w))
    around = override(plain)
    close(around(xs, w), plain(xs, w))
    (left,) = jaxgemm.explain(around, xs, w).left
    assert left.why == "it is in a shard_map that override was put around; override the function that is mapped"


# --- What stays -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ("xla", "XLA's product was asked for by name, and it has a ragged one of its own"),
        ("host", "kernel 'host' has no grouped form"),
    ],
)
def test_kernels_without_a_grouped_form(kernel, why, x, w):
    def function(x, w):
        return lax.ragged_dot(x, w, SIZES)

    ours = override(function, kernel=kernel)
    assert counted(ours, x, w) == (0, 1)
    close(ours(x, w), function(x, w))
    (left,) = jaxgemm.explain(ours, x, w).left
    assert left.operands == "float64[7,8] x float64[3,8,8] -> float64"
    assert left.why.startswith(why)


def test_a_kernel_by_name_computes_groups_of_whole_products(x):
    def function(x):
        numbers = Numbers((((1,), (2,)), ((0,), (0,))), [0], [])
        return lax.ragged_dot_general(x, jnp.stack([x] * 7), jnp.asarray([3, 4]), numbers)

    ours = override(function, kernel="host")
    assert (count(ours, x), counted(ours, x)) == ((1, 0), (0, 0))
    (product,) = jaxgemm.explain(ours, x).products
    assert product.kernel == "host"
    close(ours(x), function(x))
    assert counted(override(function, kernel="xla"), x) == (0, 1)


def test_what_is_not_overridden_says_so(x, w):
    (left,) = jaxgemm.explain(lambda x, w: lax.ragged_dot(x, w, SIZES), x, w).left
    assert left.why == "nothing routes it to jaxgemm; jaxgemm.override would"


def test_what_no_kernel_computes_stays(x, w):
    def function(x, w):
        return lax.ragged_dot(x.astype(complex), w.astype(complex), SIZES)

    ours = override(function)
    assert counted(ours, x, w) == (0, 1)
    close(ours(x, w), function(x, w))
    (left,) = jaxgemm.explain(ours, x, w).left
    assert left.why == "no kernel multiplies complex128 by complex128"


def test_a_later_group_stays(x, w):
    ours = override(lambda x, w: lax.ragged_dot(x, w, SIZES, group_offset=0))
    (left,) = jaxgemm.explain(ours, x, w).left
    assert left.why == "it starts at a later group (group_offset)"


def test_weak_operands():
    def function(x):
        return lax.ragged_dot(lax.broadcast(1.5, (7, 8)), lax.broadcast(2.5, (3, 8, 4)), SIZES) + x

    x = jnp.ones(4, jnp.bfloat16)
    close(override(function)(x), function(x))


@pytest.mark.parametrize("name", ["dots_saveable", "everything_saveable", "nothing_saveable"])
def test_checkpoint_policies_keep_what_they_kept(name, x):
    """JAX's policies do not know ragged products: those that keep dense ones compute these again."""
    w = jnp.ones((2, 8, 8))
    sizes = array([3, 4])
    policy = getattr(jax.checkpoint_policies, name)

    def loss(x):
        twice = lambda x: jnp.sin(lax.ragged_dot(jnp.sin(lax.ragged_dot(x, w, sizes)), w, sizes))  # noqa: E731
        return jnp.sum(jax.checkpoint(twice, policy=policy)(x))

    assert counted(jax.grad(override(loss)), x)[0] == counted(jax.grad(loss), x)[1]


def test_without_jit():
    x, w, sizes = jnp.ones((4, 4)), jnp.ones((2, 4, 4)), array([2, 1])
    numbers = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
    with jax.disable_jit():
        for function in (
            lambda x: lax.ragged_dot(x, w, sizes),
            lambda x: lax.ragged_dot_general(x, w, sizes, numbers),
            lambda x: jax.jit(lax.ragged_dot)(x, w, sizes),
        ):
            np.testing.assert_array_equal(jaxgemm.override(function)(x)[:, 0], [4, 4, 4, 0])
