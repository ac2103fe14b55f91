"""Products of every form and of every mixture of types, with their gradients, beside jnp's."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from twins import EVERY, assert_same, float64, kernels_for, operands, ours, scalar, theirs

import jaxgemm

# Odd orders of batch, free and contracting axes: (lhs, rhs, dimension numbers).
DOT_GENERALS = (
    ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
    ((4, 3), (5, 4), (((0,), (1,)), ((), ()))),
    ((2, 3, 4), (2, 4, 5), (((2,), (1,)), ((0,), (0,)))),
    ((3, 2, 4), (4, 5, 2), (((2,), (0,)), ((1,), (2,)))),
    ((2, 3, 4, 5), (5, 4, 6), (((2, 3), (1, 0)), ((), ()))),
    ((2, 3, 4, 5), (4, 6, 5), (((3, 2), (2, 0)), ((), ()))),
    ((2, 6, 3, 4), (2, 5, 3, 4), (((3,), (3,)), ((0, 2), (0, 2)))),
    ((2, 6, 3, 4), (3, 5, 2, 4), (((3,), (3,)), ((2, 0), (0, 2)))),
    ((2, 3, 4, 5), (3, 6, 7, 2, 4), (((2,), (4,)), ((0, 1), (3, 0)))),
    ((4, 2, 3), (2, 4, 3, 5), (((0, 2), (1, 2)), ((1,), (0,)))),
    ((3,), (3,), (((0,), (0,)), ((), ()))),
    ((3,), (4,), (((), ()), ((), ()))),
    ((2, 3), (2, 4), (((), ()), ((0,), (0,)))),
    ((2, 3), (2, 3), (((), ()), ((0, 1), (0, 1)))),
    ((2, 3), (3, 2), (((1, 0), (0, 1)), ((), ()))),
    ((2, 0, 3), (3, 4), (((2,), (0,)), ((), ()))),
    ((2, 0), (0, 3), (((1,), (0,)), ((), ()))),
)


def _dot_generals(dot, **keywords):
    rng = np.random.default_rng(8)
    arrays = [tuple(array(rng.standard_normal(s)) for s in shapes[:2]) for shapes in DOT_GENERALS]

    def f(arrays):
        out = []
        for (a, b), (_, _, dims) in zip(arrays, DOT_GENERALS, strict=True):
            one = lambda a, b, dims=dims: dot(a, b, dims, **keywords)  # noqa: E731
            out.append((one(a, b), jax.grad(scalar(one), (0, 1))(a, b)))
        return out

    return jax.jit(f)(arrays)


_expected_dot_generals = cache(lambda: _dot_generals(lax.dot_general))


@float64
def test_dot_general(kernel):
    assert_same(_dot_generals(jaxgemm.dot_general, kernel=kernel), _expected_dot_generals())


def test_dot_general_takes_what_lax_takes(rng):
    a, b = array(rng.standard_normal((3, 4))), array(rng.standard_normal((4, 5)))
    got = jaxgemm.dot_general(a, b, (([-1], [0]), ([], [])), "highest", jnp.float32, out_sharding=None)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, a @ b, rtol=1e-6)


MATMULS = (
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (1, 5, 3, 4)),
    ((6, 5, 2, 3), (6, 1, 3, 4)),
    ((1, 1, 2, 3), (1, 3, 4)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((0, 2, 3), (3, 4)),
)


def _matmuls(matmul):
    rng = np.random.default_rng(9)
    arrays = [tuple(array(rng.standard_normal(s)) for s in shapes) for shapes in MATMULS]
    return jax.jit(lambda arrays: [(matmul(a, b), jax.grad(scalar(matmul), (0, 1))(a, b)) for a, b in arrays])(arrays)


_expected_matmuls = cache(lambda: _matmuls(jnp.matmul))


@float64
def test_matmul(kernel):
    assert_same(_matmuls(lambda a, b: jaxgemm.matmul(a, b, kernel=kernel)), _expected_matmuls())


@kernels_for("bfloat16")
def test_bfloat16_gradients(kernel, rng):
    args = operands(rng, 17, 33, 40, jnp.bfloat16)
    f = ours(kernel, "silu")
    value, grads = jax.jit(jax.value_and_grad(lambda *x: jnp.sum(f(*x).astype(jnp.float32)), EVERY))(*args)
    exact = [x.astype(jnp.float64) for x in args]
    expected, slopes = jax.jit(jax.value_and_grad(lambda *x: jnp.sum(theirs("silu")(*x)), EVERY))(*exact)
    np.testing.assert_allclose(value, expected, rtol=1e-2)
    for got, slope, x in zip(grads, slopes, args, strict=True):
        assert got.dtype == x.dtype
        error = np.linalg.norm(np.asarray(got, np.float64) - slope)
        assert error <= 2e-2 * np.linalg.norm(slope)


MIXED = (
    # a, b, result
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float32"),
    ("float32", "float32", "bfloat16"),
    ("float32", "bfloat16", None),
    ("float16", "float64", None),
    ("bfloat16", "float16", None),
)


@kernels_for("float32")
@pytest.mark.parametrize("types", MIXED, ids=str)
def test_mixed_types(kernel, types, rng):
    a = array(rng.standard_normal((17, 20)), types[0])
    b = array(rng.standard_normal((20, 12)), types[1])
    wide = jnp.result_type(a, b)
    row = {row.name: row for row in jaxgemm.kernels()}.get(kernel)
    if row and str(wide) not in [t[0] for t in row.types]:
        pytest.skip(f"{kernel} takes no {wide}")

    def f(a, b):
        return jaxgemm.matmul(a, b, preferred_element_type=types[2], kernel=kernel)

    d, (da, db) = jax.jit(lambda a, b: (f(a, b), jax.grad(lambda *x: jnp.sum(f(*x)), (0, 1))(a, b)))(a, b)
    assert d.dtype == (types[2] or wide)
    assert (da.dtype, db.dtype) == (a.dtype, b.dtype)
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    narrowest = max(float(jnp.finfo(x.dtype).eps) for x in (d, da, db))
    np.testing.assert_allclose(np.asarray(d, np.float64), exact, atol=40 * narrowest)
    sums = np.broadcast_to(np.asarray(b, np.float64).sum(1), da.shape)
    np.testing.assert_allclose(np.asarray(da, np.float64), sums, atol=40 * narrowest)


@kernels_for("float32")
def test_without_x64(kernel, rng):
    a, b, c, bias = (np.asarray(x, np.float32) for x in operands(rng, 17, 33, 40))
    # By default XLA multiplies float32 in a narrower type on some devices.
    with jax.enable_x64(False), jax.default_matmul_precision("highest"):
        program = jax.jit(jax.value_and_grad(scalar(ours(kernel)), EVERY))
        value, grads = program(a, b, c, bias)
        assert value.dtype == jnp.float32
        expected = jax.jit(jax.value_and_grad(scalar(theirs()), EVERY))(a, b, c, bias)
        assert jaxgemm.gemm(np.float64(a), b, kernel=kernel).dtype == jnp.float32
    assert_same((value, grads), expected, rtol=2e-4)


def test_integers_have_no_gradient_but_differentiate(rng):
    a = array(rng.integers(-9, 9, (3, 4)), np.int8)
    x = array(rng.standard_normal((3, 5)))
    b = jnp.ones((4, 5), jnp.int8)
    f = lambda x: jnp.sum(jaxgemm.gemm(a, b, kernel="host") * x)  # noqa: E731
    assert_same(jax.grad(f)(x), array(a, jnp.float64) @ array(b, np.float64))
