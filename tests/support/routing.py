"""What the tests of override ask of a function before and after: its products, its values, its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxprs import equations

from jaxgemm.override import override
from jaxgemm.products.dense import gemm_p


def count(function, *args):
    """(products of jaxgemm, products of lax) in the function's jaxpr."""
    found = [eqn.primitive for eqn in equations(function, *args)]
    return found.count(gemm_p), found.count(lax.dot_general_p)


def check(function, *args, products, left=0):
    """Values and first derivatives are those of ``function``, and so many products are routed.

    ``products`` in the jaxpr, of which ``left`` stay as they are.
    """
    assert count(function, *args) == (0, products)
    for kernel in ("auto", "host"):
        ours = override(function, kernel=kernel)
        assert count(ours, *args) == (products - left, left)
        close(ours(*args), function(*args))
        close(jax.jit(jax.value_and_grad(total(ours)))(*args), jax.value_and_grad(total(function))(*args))


def total(function):
    """The function's results as one number that weighs each element differently."""

    def summed(*args):
        leaves = [x for x in jax.tree.leaves(function(*args)) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum(jnp.sum(x * jnp.cos(jnp.arange(x.size).reshape(x.shape))) for x in leaves)

    return summed


def close(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), got, expected)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)


@jax.custom_jvp
def doubled(x, w):
    return jnp.sin(x @ w)


@doubled.defjvp
def _doubled_jvp(primals, tangents):
    # Twice the true derivative, so that a lost rule shows.
    (x, w), (dx, dw) = primals, tangents
    return doubled(x, w), 2 * jnp.cos(x @ w) * (dx @ w + x @ dw)


@jax.custom_vjp
def tripled(x, w):
    return jnp.sin(x @ w)


def _tripled_fwd(x, w):
    return tripled(x, w), (x, w, x @ w)


def _tripled_bwd(residuals, ct):
    x, w, z = residuals
    dz = 3 * jnp.cos(z) * ct
    return dz @ w.T, x.T @ dz


tripled.defvjp(_tripled_fwd, _tripled_bwd)
