"""Products of 8 bits that are scaled, as programs and packages write them, and what override makes of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from arrays import array
from jax import lax
from jaxprs import equations
from scaled import scale, values

from jaxgemm.epilogue import Epilogue
from jaxgemm.products.dense import gemm_p
from jaxgemm.products.scaled import scaled_p

INT8, E4M3, E5M2, BF16, F32 = "int8", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float32"
M, N, K = 6, 10, 27
INTEGERS = (INT8, "uint8")
PLAIN = Epilogue()
BOTH = (2, 2)  #: the scales of a launch that has some of rows and of columns


def operands(rng, pair=(INT8, INT8)):
    """a, b, scales of rows and columns, and a bias."""
    a, b = values(rng, (M, K), pair[0]), values(rng, (K, N), pair[1])
    return a, b, scale(rng, (M, 1)), scale(rng, (N,)), array(rng.standard_normal(N), F32)


def launches(function, *args):
    """(scales, epilogue) of each product that scales, in the function's jaxpr."""
    found = [eqn for eqn in equations(function, *args) if eqn.primitive is scaled_p]
    return [(eqn.params["scales"], eqn.params["epilogue"]) for eqn in found]


def dense(function, *args):
    """The types of the other products of jaxgemm's."""
    found = [eqn for eqn in equations(function, *args) if eqn.primitive is gemm_p]
    return [tuple(v.aval.dtype.name for v in eqn.invars[:2]) for eqn in found]


def exact(x):
    return np.asarray(x, np.float64)


def error(got, want):
    """The largest error, of the largest element."""
    return abs(exact(got) - want).max() / abs(want).max()


def same(got, want, rounding=1e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(exact(a), exact(b), rtol=rounding, atol=rounding * np.nanmax(abs(exact(b))))


def dot(a, b, out=None):
    """The product of 8 bits as packages write it."""
    out = out or ("int32" if jnp.issubdtype(a.dtype, jnp.integer) else F32)
    return lax.dot_general(a, b, (((a.ndim - 1,), (0,)), ((), ())), preferred_element_type=out)


def after(a, b, s, t, _=None):
    return dot(a, b).astype(F32) * s * t
