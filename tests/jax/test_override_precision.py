"""override(function, precision=...): a whole program that solves or fits something computes in that precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.scipy.sparse.linalg import bicgstab, cg

import jaxgemm
from jaxgemm.kernels import find_kernel
from jaxgemm.precision import arithmetics, canonical

NAMES = ("highest", "TF32_TF32_F32_X3", "BF16_BF16_F32_X3")
#: What JAX's solvers ask for themselves, for the products of two vectors in them.
ASKED = canonical("highest")
needs_sm90 = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")


def polar(x, _):
    """Newton and Schulz's iteration: scan."""
    return lax.scan(lambda x, _: (1.5 * x - 0.5 * x @ (x.T @ x), None), x / jnp.linalg.norm(x), length=24)[0]


def inverse(x, y):
    """Newton's iteration until it is exact enough, of a matrix that is near the identity: while."""
    a = jnp.eye(len(x), dtype=x.dtype) + x @ x.T / (8 * len(x))

    def far(state):
        return (state[1] > 1e-4) & (state[2] < 20)

    def step(state):
        z = 2 * state[0] - state[0] @ (a @ state[0])
        return z, jnp.linalg.norm(z - state[0]) / jnp.linalg.norm(z), state[2] + 1

    start = jnp.eye(len(x), dtype=x.dtype) / jnp.linalg.norm(a, 1), jnp.ones((), x.dtype), 0
    return lax.while_loop(far, step, start)[0] @ y


def ridge(x, y):
    """JAX's conjugate gradients for all columns at once: while in custom_linear_solve, under vmap."""
    return jax.vmap(lambda y: cg(lambda w: x.T @ (x @ w) / len(x) + w, x.T @ y, tol=1e-10, maxiter=25)[0], 1, 1)(y)


def descent(x, y):
    """Gradient descent: grad in scan."""

    def loss(w):
        return jnp.mean((jnp.tanh(x @ w) @ w - y) ** 2)

    w = jnp.eye(x.shape[1], y.shape[1], dtype=x.dtype)
    return lax.scan(lambda w, _: (w - jax.grad(loss)(w), None), w, length=10)[0]


def gauss_newton(x, y):
    """Gauss and Newton's method: a jvp and a vjp in a linear solve in a fori_loop."""

    def residuals(w):
        return jnp.tanh(x @ w) - y

    def step(_, w):
        rest, back = jax.vjp(residuals, w)

        def normal(v):
            _, forward = jax.jvp(residuals, (w,), (v,))
            return back(forward)[0] + len(x) * v

        return w - bicgstab(normal, back(rest)[0], tol=1e-10, maxiter=6)[0]

    return lax.fori_loop(0, 3, step, jnp.zeros((x.shape[1], y.shape[1]), x.dtype))


PROGRAMS = {function.__name__: function for function in (polar, inverse, ridge, descent, gauss_newton)}
#: Derivatives of whole programs, from outside. A while loop has none in reverse.
DERIVATIVES = {
    "gradient of ridge": (lambda f: jax.grad(lambda x, y: jnp.sum(jnp.sin(f(x, y)))), ridge),
    "gradient of polar": (lambda f: jax.grad(lambda x, y: jnp.sum(jnp.sin(f(x, y)))), polar),
    "jvp of inverse": (lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x))[1], inverse),
    "jvp of ridge": (lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x))[1], ridge),
}
ALL = {**{name: (lambda f: f, function) for name, function in PROGRAMS.items()}, **DERIVATIVES}


@needs_sm90
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("program", ALL)
def test_every_product_is_switched(program, name):
    outside, function = ALL[program]
    operands = [jax.ShapeDtypeStruct((4096, 4096), jnp.float32)] * 2
    routed = jaxgemm.override(function, precision=name)
    found = jaxgemm.explain(outside(routed), *operands, platform="cuda")
    assert not found.left
    by_default = jaxgemm.explain(outside(jaxgemm.override(function)), *operands, platform="cuda").products
    assert len(found.products) == len(by_default) > 1
    switched = 0
    for product, before in zip(found.products, by_default, strict=True):
        asked, kernel, arithmetic = product.precision, product.kernel, product.decision.choice.arithmetic
        if before.precision is not None:
            assert before.precision == asked == ASKED
            continue
        switched += 1
        assert asked == canonical(name)
        assert kernel == "xla" or arithmetic in arithmetics(asked, np.dtype(np.float32))
        if "[4096,4096] x float32[4096,4096]" in product.operands:
            assert (kernel, arithmetic) == ("sm90", arithmetics(asked, np.dtype(np.float32))[0])
    assert switched > 1


@pytest.mark.parametrize("kernel", ["auto", "host"])
@pytest.mark.parametrize("program", ALL)
def test_results_are_those_of_float64(program, kernel, rng):
    outside, function = ALL[program]
    operands = [array(rng.standard_normal((48, 48)), np.float32) for _ in range(2)]
    exact = jax.jit(outside(function))(*(x.astype(jnp.float64) for x in operands))
    routed = jax.jit(outside(jaxgemm.override(function, kernel=kernel, precision="highest")))
    got = routed(*operands)
    assert got.dtype == jnp.float32
    assert np.linalg.norm(got - exact) < 1e-4 * np.linalg.norm(exact)
    products = jaxgemm.explain(routed, *operands, platform="cpu").products
    assert {p.kernel for p in products if p.precision == ASKED} == {"xla" if kernel == "auto" else kernel}
