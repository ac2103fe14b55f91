"""What the tests of layers ask of two models: their products, their bits, their results."""

import jax
import numpy as np
from arrays import array
from jax import lax
from jaxprs import equations

from jaxgemm.products.dense import gemm_p


def products(function, *args):
    """(epilogues of jaxgemm's products, number of lax's) in the function's jaxpr."""
    found = [*equations(function, *args)]
    ours = [eqn.params["epilogue"] for eqn in found if eqn.primitive is gemm_p]
    return ours, sum(eqn.primitive is lax.dot_general_p for eqn in found)


def same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y, strict=True), a, b)


def close(a, b, eps=2e-6):
    assert jax.tree.map(jax.typeof, a) == jax.tree.map(jax.typeof, b)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(
            np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=eps, atol=eps
        ),
        a,
        b,
    )


def shaken(tree, rng):
    """Parameters away from their initial values, since biases start at zero."""
    return jax.tree.map(lambda x: x + array(0.3 * rng.standard_normal(x.shape), x.dtype), tree)
