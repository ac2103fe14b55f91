"""Products of groups of rows for tests over several devices: operands, and what they give in float64."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

M, K, N, GROUPS = 64, 12, 20, 8
#: Sizes of eight groups: of all 64 rows, of some, and of more than there are.
SIZES = {"all": [5, 0, 20, 3, 9, 7, 16, 4], "fewer": [1, 2, 30, 0, 0, 0, 4, 1], "more": [0, 60, 1, -2, 60, 5, 5, 5]}
#: Of a product in which rows are contracted.
SUMS = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


def bounds(sizes, rows):
    """Where each group begins and ends."""
    ends = np.minimum(np.cumsum(np.clip(np.asarray(sizes, np.int64), 0, None)), rows)
    return list(zip([0, *ends][: len(ends)], ends, strict=True))


def owned(sizes, rows, held, offset=0):
    """The rows of groups whose weights are held, and which weights each of them has."""
    begin, end = np.reshape(bounds(sizes, rows), (-1, 2)).astype(int).T
    owner = np.repeat(np.arange(len(begin)) - offset, end - begin)
    (found,) = np.nonzero((owner >= 0) & (owner < held))
    return found, owner[found]


def compiled(function):
    """A function of ``sizes``, and perhaps of an ``offset``, compiled for each of them: else each step would be."""
    signature = inspect.signature(function)
    static = {"sizes", "offset", "activation"} & {*signature.parameters}
    program = jax.jit(function, static_argnames=sorted(static))

    @functools.wraps(function)
    def call(*args, **keywords):
        given = signature.bind(*args, **keywords).arguments
        given["sizes"] = tuple(int(size) for size in np.asarray(given["sizes"]))
        return program(**given)

    return call


# All groups in one operation: one for each would be compiled for each size.


@compiled
def by_rows(x, w, sizes, offset=0):
    """Each row times its group's weights, in float64 and differentiable."""
    x, w = (jnp.asarray(v, jnp.float64) for v in (x, w))
    rows, groups = owned(sizes, x.shape[0], w.shape[0], offset)
    return jnp.zeros((x.shape[0], w.shape[2])).at[rows].set(jnp.einsum("mk,mkn->mn", x[rows], w[groups]))


@compiled
def by_sums(x, y, sizes):
    """The sum over each group's rows, in float64 and differentiable."""
    x, y = (jnp.asarray(v, jnp.float64) for v in (x, y))
    rows, groups = owned(sizes, x.shape[0], len(sizes))
    return jnp.zeros((len(sizes), x.shape[1], y.shape[1])).at[groups].add(x[rows, :, None] * y[rows, None])


def arrays(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def gradient(function):
    """With squares: a sum whose terms cancel has an error that is large beside itself."""
    return jax.grad(lambda x, w, *rest: jnp.sum(function(x, w, *rest) ** 2), (0, 1))
