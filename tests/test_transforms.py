"""JAX's transformations of a product give what they give for the same product in jnp."""

from functools import cache
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import jaxgemm


def _kernels(dtype):
    """auto on each platform, host, and of each family of CUDA kernels the first one for products of this type."""
    out: list[Any] = ["auto", pytest.param("auto", marks=pytest.mark.gpu, id="auto on a GPU")]
    families = set()
    for row in jaxgemm.kernels():
        if (dtype, dtype, dtype) not in [t[:3] for t in row.types] or row.family in families:
            continue
        families.add(row.family)
        out.append(pytest.param(row.name, marks=[pytest.mark.gpu] if row.platform == "cuda" else []))
    return pytest.mark.parametrize("kernel", out)


float64 = _kernels("float64")

JNP = {
    None: lambda x: x,
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
}


def ours(kernel, activation="gelu"):
    def f(a, b, c=None, bias=None):
        if c is None:
            return jaxgemm.gemm(a, b, alpha=0.75, bias=bias, activation=activation, kernel=kernel)
        return jaxgemm.gemm(a, b, c, alpha=0.75, beta=-1.25, bias=bias, activation=activation, kernel=kernel)

    return f


def theirs(activation="gelu"):
    def f(a, b, c=None, bias=None):
        z = 0.75 * jnp.matmul(a, b)
        z = z if c is None else z - 1.25 * c
        z = z if bias is None else z + bias
        return JNP[activation](z)

    return f


def operands(rng, m=3, n=4, k=5, dtype=np.float64):
    return tuple(jnp.asarray(rng.standard_normal(s), dtype) for s in ((m, k), (k, n), (m, n), (n,)))


def assert_same(got, expected, rtol=1e-11):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=rtol)


def scalar(f):
    return lambda *args: jnp.sum(jnp.sin(f(*args)))


def _jvp(f):
    return lambda *args: jax.jvp(f, args, jax.tree.map(jnp.cos, args))


def _scan(f):
    def g(a, b, *rest):
        def step(carry, x):
            y = f(carry, x, *rest)
            return y[:, :1] * carry + carry, y

        return lax.scan(step, a, jnp.stack([b, b + 1, b - 1]))

    return g


def _while(f):
    def g(a, b, *rest):
        def body(state):
            i, x = state
            return i + 1, x + f(x, b, *rest)[:, :1]

        return lax.while_loop(lambda state: state[0] < 3, body, (0, a))

    return g


def _cond(f):
    return lambda *args: lax.cond(jnp.sum(args[0]) > 1e9, lambda *x: x[2] * 2, f, *args)


def _checkpoint(policy):
    return lambda f: jax.grad(scalar(jax.checkpoint(lambda *x: jnp.sin(f(*x)), policy=policy)), range(4))


EVERY = range(4)
TRANSFORMS = {
    "value": lambda f: f,
    "grad": lambda f: jax.value_and_grad(scalar(f), EVERY),
    "grad of one operand": lambda f: jax.grad(scalar(f), 1),
    "jvp": _jvp,
    "jvp of one operand": lambda f: lambda a, *rest: jax.jvp(lambda x: f(x, *rest), (a,), (jnp.sin(a),)),
    "jacfwd": lambda f: jax.jacfwd(f, EVERY),
    "jacrev": lambda f: jax.jacrev(f, EVERY),
    "hessian": lambda f: jax.hessian(scalar(f), EVERY),
    "grad of grad": lambda f: jax.grad(lambda *x: scalar(jax.grad(scalar(f)))(*x), EVERY),
    "scan": _scan,
    "grad of scan": lambda f: jax.grad(lambda *x: jnp.sum(_scan(f)(*x)[0]), EVERY),
    "while": _while,
    "jvp of while": lambda f: lambda *x: _jvp(lambda *y: _while(f)(*y)[1])(*x),
    "cond": lambda f: jax.grad(scalar(_cond(f)), EVERY),
    "checkpoint": _checkpoint(None),
    "checkpoint, dots saveable": _checkpoint(jax.checkpoint_policies.dots_saveable),
    "linearize": lambda f: lambda *x: jax.linearize(f, *x)[1](*x),
    "vmap of grad": lambda f: jax.vmap(jax.grad(scalar(f), EVERY), (0, None, 0, None)),
    "vmap of hessian": lambda f: jax.vmap(jax.hessian(scalar(f), (0, 3)), (0, None, 0, None)),
    "grad of vmap": lambda f: jax.grad(scalar(jax.vmap(f, (0, None, 0, None))), EVERY),
}


def _arguments(transform):
    a, b, c, bias = operands(np.random.default_rng(7))
    if "vmap" in transform:
        return jnp.stack([a, a + 1]), b, jnp.stack([c, c - 1]), bias
    return a, b, c, bias


@cache  # the same for every kernel
def _expected(transform):
    return jax.jit(TRANSFORMS[transform](theirs()))(*_arguments(transform))


@float64
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transform(kernel, transform):
    got = jax.jit(TRANSFORMS[transform](ours(kernel)))(*_arguments(transform))
    assert_same(got, _expected(transform))


@float64
@pytest.mark.parametrize("transform", ["value", "grad", "jvp", "checkpoint"])
def test_eager(kernel, transform):
    assert_same(TRANSFORMS[transform](ours(kernel))(*_arguments(transform)), _expected(transform))


@pytest.mark.parametrize("activation", [None, *cases.ACTIVATIONS])
def test_gradients_are_the_slopes(activation, rng):
    """Against finite differences, to second order, forward and reverse."""
    f = jax.jit(ours("host", activation))
    check_grads(f, operands(rng, 2, 3, 2), order=2, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4)


@float64
@pytest.mark.parametrize("transpose", [(False, False), (False, True), (True, False), (True, True)])
def test_gradients_of_layouts(kernel, transpose, rng):
    ta, tb = transpose
    a = jnp.asarray(rng.standard_normal((2, 5, 3) if ta else (2, 3, 5)))
    b = jnp.asarray(rng.standard_normal((1, 4, 5) if tb else (1, 5, 4)))

    def f(a, b):
        return jaxgemm.gemm(a, b, alpha=-2, transpose_a=ta, transpose_b=tb, kernel=kernel)

    def g(a, b):
        return -2 * jnp.matmul(a.mT if ta else a, b.mT if tb else b)

    assert_same(*(jax.jit(jax.grad(scalar(h), (0, 1)))(a, b) for h in (f, g)))


VMAPS = (
    # in_axes of a, b, c, bias
    (0, None, None, None),
    (None, 0, None, None),
    (0, 0, None, None),
    (1, 2, 0, None),
    (2, 1, 1, None),
    (None, None, 0, None),
    (None, None, None, 0),
    (0, None, 2, 1),
    (None, 2, None, 1),
    (0, 0, 0, 0),
    (1, None, None, None),
    (None, None, 1, 1),
)


def _vmapped(f, args):
    """f mapped over each choice of axes, with and without c and bias, and to either end of the result."""

    def batched(x, axis):
        return x if axis is None else jnp.stack([x, x + 1, 2 * x], axis)

    out = []
    for i, axes in enumerate(VMAPS):
        mapped = [batched(x, axis) for x, axis in zip(args, axes, strict=True)]
        out.append(jax.vmap(f, axes, out_axes=2 * (i % 2))(*mapped))
        if axes[2:] == (None, None):
            out.append(jax.vmap(f, axes[:2], out_axes=1)(*mapped[:2]))
            bias_only = lambda a, b, bias: f(a, b, None, bias)  # noqa: E731
            out.append(jax.vmap(bias_only, (*axes[:2], None))(*mapped[:2], mapped[3]))
    return out


@cache
def _expected_vmaps(activation):
    return jax.jit(lambda *args: _vmapped(theirs(activation), args))(*_arguments(""))


@float64
@pytest.mark.parametrize("activation", ["silu", None])
def test_vmap(kernel, activation):
    got = jax.jit(lambda *args: _vmapped(ours(kernel, activation), args))(*_arguments(""))
    assert_same(got, _expected_vmaps(activation))


@float64
def test_nested_vmap(kernel, rng):
    a = jnp.asarray(rng.standard_normal((2, 3, 4, 5)))
    b = jnp.asarray(rng.standard_normal((3, 5, 6)))
    c = jnp.asarray(rng.standard_normal((2, 4, 6)))
    bias = jnp.asarray(rng.standard_normal((6,)))

    def program(f):
        inner = jax.vmap(f, (0, 0, None, None))
        return jax.jit(jax.value_and_grad(scalar(jax.vmap(inner, (0, None, 0, None))), EVERY))

    assert_same(program(ours(kernel))(a, b, c, bias), program(theirs())(a, b, c, bias))


@float64
def test_linear_transpose(kernel, rng):
    a, b, _, _ = operands(rng)
    ct = jnp.asarray(rng.standard_normal((3, 4)))

    def f(a, b):
        return jaxgemm.gemm(a, b, alpha=0.5, kernel=kernel)

    assert_same(jax.linear_transpose(lambda x: f(x, b), a)(ct), (0.5 * ct @ b.T,))
    assert_same(jax.linear_transpose(lambda x: f(a, x), b)(ct), (0.5 * a.T @ ct,))


@float64
def test_gradients_of_array_scalings(kernel, rng):
    args = (*operands(rng), jnp.asarray(0.3), jnp.asarray(-0.7))

    def f(a, b, c, bias, alpha, beta):
        return jaxgemm.gemm(a, b, c, alpha=alpha, beta=beta, bias=bias, activation="tanh", kernel=kernel)

    def g(a, b, c, bias, alpha, beta):
        return jnp.tanh(alpha * (a @ b) + beta * c + bias)

    assert_same(*(jax.jit(jax.value_and_grad(scalar(h), range(6)))(*args) for h in (f, g)))


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
    arrays = [tuple(jnp.asarray(rng.standard_normal(s)) for s in shapes[:2]) for shapes in DOT_GENERALS]

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
    a, b = jnp.asarray(rng.standard_normal((3, 4))), jnp.asarray(rng.standard_normal((4, 5)))
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
    arrays = [tuple(jnp.asarray(rng.standard_normal(s)) for s in shapes) for shapes in MATMULS]
    return jax.jit(lambda arrays: [(matmul(a, b), jax.grad(scalar(matmul), (0, 1))(a, b)) for a, b in arrays])(arrays)


_expected_matmuls = cache(lambda: _matmuls(jnp.matmul))


@float64
def test_matmul(kernel):
    assert_same(_matmuls(lambda a, b: jaxgemm.matmul(a, b, kernel=kernel)), _expected_matmuls())


@_kernels("bfloat16")
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


@_kernels("float32")
@pytest.mark.parametrize("types", MIXED, ids=str)
def test_mixed_types(kernel, types, rng):
    a = jnp.asarray(rng.standard_normal((17, 20)), types[0])
    b = jnp.asarray(rng.standard_normal((20, 12)), types[1])
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


@_kernels("float32")
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
    a = jnp.asarray(rng.integers(-9, 9, (3, 4)), jnp.int8)
    x = jnp.asarray(rng.standard_normal((3, 5)))
    b = jnp.ones((4, 5), jnp.int8)
    f = lambda x: jnp.sum(jaxgemm.gemm(a, b, kernel="host") * x)  # noqa: E731
    assert_same(jax.grad(f)(x), jnp.asarray(a, jnp.float64) @ jnp.asarray(b, jnp.float64))
