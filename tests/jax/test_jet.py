"""Taylor mode, ``jax.experimental.jet``, gives of a product what it gives of jnp's, to any order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from arrays import array
from jax.experimental import jet
from meshes import assert_close
from twins import JNP

import jaxgemm
from jaxgemm.epilogue import ACTIVATIONS as TABLE

kernels = pytest.mark.parametrize("kernel", ["auto", "host"])

#: What jet can see through. Of relu it is the value and, but at 0, the derivative.
ACTIVATIONS = JNP | {name: a.plain for name, a in TABLE.items() if a.plain}
ACTIVATIONS["relu"] = lambda x: jnp.maximum(x, 0)


def compare(ours, theirs, rng, *shapes, order=3, dtype=jnp.float64, rtol=1e-11):
    """Both series agree, eagerly and compiled."""
    primals = [array(rng.standard_normal(shape), dtype) for shape in shapes]
    series = [[array(rng.standard_normal(shape), dtype) for _ in range(order)] for shape in shapes]
    expected = jet.jet(theirs, primals, series)
    for f in (jet.jet, jax.jit(jet.jet, static_argnums=0)):
        got = f(ours, primals, series)
        assert [x.dtype for x in jax.tree.leaves(got)] == [x.dtype for x in jax.tree.leaves(expected)]
        assert_close(got, expected, rtol=rtol)


@kernels
@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_matmul(order, kernel, rng):
    compare(lambda a, b: jaxgemm.matmul(a, b, kernel=kernel), jnp.matmul, rng, (2, 3, 4), (4, 5), order=order)


@kernels
def test_one_operand_moves(kernel, rng):
    w = array(rng.standard_normal((4, 5)))
    compare(lambda a: jaxgemm.matmul(a, w, kernel=kernel), lambda a: a @ w, rng, (3, 4))
    compare(lambda w: jaxgemm.gemm(w, w, transpose_b=True, kernel=kernel), lambda w: w @ w.T, rng, (4, 5))


@kernels
def test_dot_general(kernel, rng):
    dims = (((2, 1), (0, 1)), ((0,), (2,)))
    ours = lambda a, b: jaxgemm.dot_general(a, b, dims, kernel=kernel)  # noqa: E731
    compare(ours, lambda a, b: jax.lax.dot_general(a, b, dims), rng, (2, 3, 4), (4, 3, 2, 5))


@kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogue(activation, kernel, rng):
    def ours(a, b, c, bias):
        return jaxgemm.gemm(a, b, c, alpha=2.0, beta=-0.5, bias=bias, activation=activation, kernel=kernel)

    def theirs(a, b, c, bias):
        return ACTIVATIONS[activation](2 * (a @ b) - 0.5 * c + bias)

    compare(ours, theirs, rng, (2, 3, 4), (4, 5), (2, 3, 5), (5,))


@kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated(activation, kernel, rng):
    def ours(x, gate, up):
        return jaxgemm.gated_gemm(x, gate, up, activation=activation, kernel=kernel)

    def theirs(x, gate, up):
        return ACTIVATIONS[activation](x @ gate) * (x @ up)

    compare(ours, theirs, rng, (2, 3, 4), (4, 5), (4, 5))


@kernels
def test_where_relu_bends(kernel):
    """At 0 its derivative is 0, as ``jax.nn.relu``'s is."""
    z, one = jnp.zeros((1, 1)), jnp.ones((1, 1))
    for f in (
        lambda x: jaxgemm.gemm(x, one, activation="relu", kernel=kernel),
        lambda x: jaxgemm.gated_gemm(x, one, x + 1, activation="relu", kernel=kernel),
    ):
        _, (slope,) = jet.jet(f, (z,), ((one,),))
        assert slope == jax.jvp(f, (z,), (one,))[1] == 0.0


SIZES = array([2, 0, 4])
SHAPES = (9, 4), (3, 4, 5), (3, 4, 5)


def by_groups(x, w, bias=0):
    """As ``ragged_dot``, for SIZES and finite numbers; a bias is of all rows."""
    own = jnp.asarray([0, 0, 2, 2, 2, 2])
    return jnp.concatenate([jnp.einsum("mk,mkn->mn", x[:6], w[own]) + bias, jnp.zeros((x.shape[0] - 6, w.shape[2]))])


@pytest.mark.parametrize("order", [0, 1, 3])
def test_groups(order, rng):
    compare(lambda x, w: jaxgemm.ragged_dot(x, w, SIZES), by_groups, rng, *SHAPES[:2], order=order)
    w = array(rng.standard_normal(SHAPES[1]))
    each = jax.vmap(lambda x: jaxgemm.ragged_dot(x, w, SIZES, activation="tanh"))
    theirs = jax.vmap(lambda x: jnp.tanh(by_groups(x, w)))
    compare(each, theirs, rng, (2, *SHAPES[0]), order=order)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_groups_and_what_follows(activation, rng):
    """Rows that have no group stay zeros, of every order."""

    def ours(x, w, bias):
        biases = jnp.stack([bias] * 3)
        return jaxgemm.ragged_dot(x, w, SIZES, bias=biases, activation=activation)

    def theirs(x, w, bias):
        return jnp.concatenate([ACTIVATIONS[activation](by_groups(x, w, bias)[:6]), jnp.zeros((3, 5))])

    compare(ours, theirs, rng, *SHAPES[:2], (5,))
    gated = lambda x, w, up: jaxgemm.ragged_gated(x, w, up, SIZES, activation=activation)  # noqa: E731
    compare(gated, lambda x, w, up: ACTIVATIONS[activation](by_groups(x, w)) * by_groups(x, up), rng, *SHAPES)


@kernels
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_types(dtype, kernel, rng):
    """The series keeps the result's type."""

    def ours(a, b, bias):
        return jaxgemm.gated_gemm(jaxgemm.gemm(a, b, bias=bias, activation="tanh", kernel=kernel), b, b, kernel=kernel)

    def theirs(a, b, bias):
        h = jnp.tanh(a @ b + bias)
        return jax.nn.silu(h @ b) * (h @ b)

    compare(ours, theirs, rng, (3, 4), (4, 4), (4,), order=2, dtype=dtype, rtol=2e-5 if dtype == jnp.float32 else 0.05)


@kernels
def test_override(kernel, rng):
    def model(x, w, up, bias):
        hidden = jnp.sin(jax.nn.silu(x @ w) * (x @ up))
        return jax.jit(lambda h: jax.nn.gelu(h @ w.T + bias))(hidden)

    shapes = (3, 4), (4, 5), (4, 5), (4,)
    compare(jaxgemm.override(model, kernel=kernel), model, rng, *shapes)
    compare(jax.jit(jaxgemm.override(model, kernel=kernel)), model, rng, *shapes)


@kernels
def test_coefficients_are_higher_derivatives(kernel, rng):
    """Of a line through the operands: what jvp of jvp of jvp gives."""
    a, b, da, db = (array(rng.standard_normal((4, 4))) for _ in range(4))

    def along(t):
        return jaxgemm.gemm(a + t * da, b + t * db, activation="tanh", kernel=kernel)

    expected, derivative = [], along
    for _ in range(3):
        derivative = lambda t, f=derivative: jax.jvp(f, (t,), (jnp.ones_like(t),))[1]  # noqa: E731
        expected.append(derivative(jnp.zeros(())))
    line = (jnp.zeros(()),), ((jnp.ones(()), jnp.zeros(()), jnp.zeros(())),)
    assert_close(jet.jet(along, *line)[1], expected, rtol=1e-11)
