"""The same product in jaxgemm and in jnp, and what the tests of transformations ask of both."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array

import jaxgemm
from jaxgemm.epilogue import ACTIVATIONS


def kernels_for(dtype):
    """auto on each platform, host, and of each family of CUDA kernels the first one for products of this type."""
    out: list[Any] = ["auto", pytest.param("auto", marks=pytest.mark.gpu, id="auto on a GPU")]
    families = set()
    for row in jaxgemm.kernels():
        if (dtype, dtype, dtype) not in [t[:3] for t in row.types] or row.family in families:
            continue
        families.add(row.family)
        out.append(pytest.param(row.name, marks=[pytest.mark.gpu] if row.platform == "cuda" else []))
    return pytest.mark.parametrize("kernel", out)


float64 = kernels_for("float64")

JNP = {None: lambda x: x, **ACTIVATIONS}


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
    return tuple(array(rng.standard_normal(s), dtype) for s in ((m, k), (k, n), (m, n), (n,)))


def assert_same(got, expected, rtol=1e-11):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=rtol)


def scalar(f):
    return lambda *args: jnp.sum(jnp.sin(f(*args)))


#: Every operand of a product with all of its epilogue.
EVERY = range(4)
