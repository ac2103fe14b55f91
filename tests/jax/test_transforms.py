"""JAX's transformations of a product give what they give for the same product in jnp."""

from functools import cache

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.test_util import check_grads
from twins import EVERY, assert_same, float64, operands, ours, scalar, theirs

import jaxgemm


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


@pytest.mark.parametrize("addends", [(), ("c",), ("bias",), ("c", "bias")], ids=" and ".join)
@pytest.mark.parametrize("activation", [None, *cases.ACTIVATIONS])
def test_gradients_are_the_slopes(activation, addends, rng):
    """Of every epilogue: against finite differences, to second order, forward and reverse."""
    a, b, c, bias = operands(rng, 2, 3, 2)
    given = {"c": c, "bias": bias}
    f = jax.jit(lambda a, b, *rest: ours("host", activation)(a, b, **dict(zip(addends, rest, strict=True))))
    values = (a, b, *(given[name] for name in addends))
    check_grads(f, values, order=2, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4)


@float64
@pytest.mark.parametrize("transpose", [(False, False), (False, True), (True, False), (True, True)])
def test_gradients_of_layouts(kernel, transpose, rng):
    ta, tb = transpose
    a = array(rng.standard_normal((2, 5, 3) if ta else (2, 3, 5)))
    b = array(rng.standard_normal((1, 4, 5) if tb else (1, 5, 4)))

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
    (None, 2, None, None),
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
    a = array(rng.standard_normal((2, 3, 4, 5)))
    b = array(rng.standard_normal((3, 5, 6)))
    c = array(rng.standard_normal((2, 4, 6)))
    bias = array(rng.standard_normal((6,)))

    def program(f):
        inner = jax.vmap(f, (0, 0, None, None))
        return jax.jit(jax.value_and_grad(scalar(jax.vmap(inner, (0, None, 0, None))), EVERY))

    assert_same(program(ours(kernel))(a, b, c, bias), program(theirs())(a, b, c, bias))


@float64
def test_linear_transpose(kernel, rng):
    a, b, _, _ = operands(rng)
    ct = array(rng.standard_normal((3, 4)))

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
