"""How long XLA's own product should take on Hopper, where a model of it exists.

XLA times its candidates when it compiles a program, so its choice cannot be known when ours is made. But what it
chooses from is known: cuBLAS, or kernels generated for a fusion, which it may split along k. It seems to time those
without the copies and the sums around them, as it takes some that are slow with them.
"""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
import numpy as np

from jaxgemm.problem import Problem

#: Bytes that the rows of an operand must be a multiple of, or XLA pads the operand, or takes kernels that load slowly.
PITCH_BYTES = 16

# XLA's copy of an operand: its least time, and the bytes that it reads and writes.
_COPY_US = 1.0
_COPY_BYTES_PER_US = 3e6

# 16-bit products with unaligned rows, by kernels that XLA generates: their rates, and what they take beside that.
_PRODUCTS_PER_US = 60e6
_BYTES_PER_US = 2.2e6
_LAUNCH_US = 1.2
_US_PER_K = 0.016  # of k up to UNSPLIT_K
_ACTIVATION_US = 1.0
#: The longest sums that XLA does not split. It splits longer ones, of single products, over blocks.
UNSPLIT_K = 192
# Launches of a product whose sums are split: where k is a multiple of the kernels' step, and where it is not, so that
# XLA pads both operands by copies first.
_SPLIT_US = 1.8
_PADDED_SPLIT_US = 6.9
_STEP_K = 64
# The least time of single products of at least so many rows and so long sums, whose operands XLA often pads.
_OFTEN_PADDED_US = 3.0
_OFTEN_PADDED_M = 96
_OFTEN_PADDED_K = 80

# fp32 products with unaligned rows, at full precision, by cuBLAS's kernels with square tiles.
_FP32_TILE = 64
_MULTIPROCESSORS = 132
_FP32_LAUNCH_US = 2.0
_FP32_PRODUCTS_PER_US = 20.8e6
_FP32_BYTES_PER_US = 2.3e6
_FP32_TILE_K = 14  # what a tile takes beside its sums, as if they were so much longer


def microseconds(problem: Problem) -> float | None:
    """The time that XLA's product should take, with its activation; None where it is not modelled.

    Modelled are products whose operands have unaligned rows: of 16-bit types, and of fp32 at full precision, except for
    single ones of few tiles, whose sums XLA may split. Of aligned rows XLA's product is cuBLAS's, which has many
    kernels.
    """
    if not unaligned(problem):
        return None
    if problem.dtypes[0] == "float32":
        few = problem.batch == (1, 1) and _fp32_tiles(problem) < _MULTIPROCESSORS
        return None if few else _unaligned_fp32(problem)
    if _itemsize(problem) != 2:
        return None
    return _unaligned_16bit(problem) + (0.0 if problem.epilogue.cheap_activation else _ACTIVATION_US)


def unaligned(problem: Problem) -> bool:
    """Whether rows of an operand are no multiple of ``PITCH_BYTES``."""
    return any(x.ld * _itemsize(problem) % PITCH_BYTES for x in (problem.a, problem.b))


def batch_copies_microseconds(problem: Problem) -> float:
    """The time that XLA should take to copy operands before a batch: those whose two levels do not make one stride.

    XLA's batches have one stride. The heads of attention that lie between its rows are an example of two.
    """
    outer, inner = problem.batch
    total = 0.0
    for x, elements in ((problem.a, problem.m * problem.k), (problem.b, problem.k * problem.n)):
        far, near = x.batch_stride
        if outer > 1 and inner > 1 and far and near and far != inner * near:
            total += _COPY_US + 2 * _itemsize(problem) * outer * inner * elements / _COPY_BYTES_PER_US
    return total


def _itemsize(problem: Problem) -> int:
    return np.dtype(jnp.dtype(problem.dtypes[0])).itemsize


def _fp32_tiles(problem: Problem) -> int:
    return prod(problem.batch) * -(-problem.m // _FP32_TILE) * -(-problem.n // _FP32_TILE)


def _unaligned_fp32(problem: Problem) -> float:
    m, n, k = problem.m, problem.n, problem.k
    tiles = max(_fp32_tiles(problem), _MULTIPROCESSORS)
    traffic = 4 * prod(problem.batch) * (m * k + k * n + m * n)
    arithmetic = tiles * _FP32_TILE**2 * (k + _FP32_TILE_K)
    return _FP32_LAUNCH_US + max(arithmetic / _FP32_PRODUCTS_PER_US, traffic / _FP32_BYTES_PER_US)


def _unaligned_16bit(problem: Problem) -> float:
    m, n, k, batch = problem.m, problem.n, problem.k, prod(problem.batch)
    single = batch == 1
    traffic = 2 * batch * (m * k + k * n + m * n) if k else 0
    copies = 0.0
    if not single or k <= UNSPLIT_K:
        launches = _LAUNCH_US + _US_PER_K * min(k, UNSPLIT_K)
    elif k % _STEP_K == 0:
        launches = _SPLIT_US
    else:
        launches = _PADDED_SPLIT_US
        copies = 2 * 2 * k * (m + n) / _COPY_BYTES_PER_US  # read and written
    if single and m >= _OFTEN_PADDED_M and k >= _OFTEN_PADDED_K:
        launches = max(launches, _OFTEN_PADDED_US)
    return launches + copies + max(batch * m * n * k / _PRODUCTS_PER_US, traffic / _BYTES_PER_US)
