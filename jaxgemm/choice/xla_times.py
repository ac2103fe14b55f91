"""Expected times of XLA on Hopper: of its own products, and of the copies and sums around them.

`auto` compares these times with the times that our kernels expect. A further kind or type of product gets an expected
time here rather than a rule of its own.

XLA times its candidates when it compiles a program, so its choice is not known when ours is made. The candidates are
known: cuBLAS, or kernels generated for a fusion, which XLA may split along k. XLA seems to time the kernels without the
copies and sums around them, since it takes some that are slow with these.
"""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod

from jaxgemm.dtypes import named
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device
from jaxgemm.problem import Problem

#: If rows of an operand are no multiple of so many bytes, XLA pads the operand, or takes kernels that load slowly.
PITCH_BYTES = 16
#: The same for float32 operands that XLA rounds to 16 bits first.
ROUNDED_BYTES = 2 * PITCH_BYTES

# XLA's copy of an operand: its least time, and the bytes that it reads and writes in a microsecond.
_COPY_US = 1.0
_COPY_BYTES_PER_US = 3e6
#: If XLA copies operands of a batch of products first, the products are faster than ours by this share of our time. The
#: copies take time on top.
BATCH_AHEAD = 0.08

# 16-bit products with unaligned rows, by kernels that XLA generates: their rates, and the times to add.
_PRODUCTS_PER_US = 60e6
_BYTES_PER_US = 2.2e6
_LAUNCH_US = 1.2
_US_PER_K = 0.016  # of k up to UNSPLIT_K
_ACTIVATION_US = 1.0
#: The longest sums that XLA does not split. It splits longer ones, of single products, over blocks.
UNSPLIT_K = 192
# Launches of a product whose sums are split: if k is a multiple of the kernels' step, _STEP_K, and if it is not. XLA
# then pads both operands by copies first.
_SPLIT_US = 1.8
_PADDED_SPLIT_US = 6.9
_STEP_K = 64
# XLA often pads the operands of single products from so many rows and so long sums on: the least time of these.
_OFTEN_PADDED_US = 3.0
_OFTEN_PADDED_M = 96
_OFTEN_PADDED_K = 80

# fp32 products with unaligned rows, at full precision, by cuBLAS's kernels with square tiles.
_FP32_TILE = 64
_MULTIPROCESSORS = 132
_FP32_LAUNCH_US = 2.0
_FP32_PRODUCTS_PER_US = 20.8e6
# Of aligned rows, by larger tiles: the most that benchmarks/results/nvidia-h200/sgemm.json has.
_FP32_ALIGNED_PER_US = 26e6
_FP32_BYTES_PER_US = 2.3e6
_FP32_TILE_K = 14  # the time of a tile beside its sums, as a length of sums that would take as long

# The kernel that combines a gated pair's two products: its least time, and the bytes that it moves in a microsecond.
_COMBINING_US, _COMBINING_BYTES_PER_US = 2.0, 4e6

# Products of groups of fp32: operations each microsecond, in TF32 (about what benchmarks/results/nvidia-h200/
# grouped.json has of 8 large groups) and at full precision; and microseconds of all launches of one group.
_GROUP_TF32_PER_US, _GROUP_FP32_PER_US = 4e8, 5e7
_GROUP_US = 10.0
# When XLA computes products of groups as one batch. A batch reads weights where they lie, and a loop over groups copies
# them. But a batch holds a copy of all rows, and their results, for every group: at most _MOST_COPIES numbers, or one
# number for every _WEIGHTS_OF_A_COPY weights.
_MOST_COPIES = 1 << 24
_WEIGHTS_OF_A_COPY = 4

# XLA makes the parts of fp32 numbers, and adds up the results of parts, at this share of memory's bandwidth. All these
# launches take so many microseconds.
_PARTS_BANDWIDTH = 0.75
_PARTS_US = 15.0


def microseconds(problem: Problem) -> float | None:
    """The time that XLA's product should take, with its activation; None if it is not modelled.

    Modelled are products with unaligned rows of an operand: of 16-bit types, and of fp32 at full precision. Single fp32
    products of few tiles are not modelled, since XLA may split their sums; nor are products of aligned rows, for which
    cuBLAS has many kernels.
    """
    if not unaligned(problem):
        return None
    if problem.dtypes[0] == "float32":
        few = problem.batch == (1, 1) and _fp32_tiles(problem) < _MULTIPROCESSORS
        return None if few else _unaligned_fp32(problem)
    if _itemsize(problem) != 2:
        return None
    return _unaligned_16bit(problem) + (0.0 if problem.epilogue.cheap_activation else _ACTIVATION_US)


def fp32_microseconds(problem: Problem) -> float:
    """The least time that XLA's product of fp32 at full precision takes, of aligned rows."""
    return _fp32(problem, prod(problem.batch) * problem.m * problem.n * problem.k, _FP32_ALIGNED_PER_US)


def unaligned(problem: Problem, pitch_bytes: int = PITCH_BYTES) -> bool:
    """Whether rows of an operand are no multiple of ``pitch_bytes``."""
    return any(x.ld * _itemsize(problem) % pitch_bytes for x in (problem.a, problem.b))


def batch_copies_microseconds(problem: Problem) -> float:
    """The time that XLA should take to copy operands before a batch of products.

    XLA's batches have one stride, so it copies operands whose two levels of the batch do not make one: such as heads of
    attention that lie between rows.
    """
    outer, inner = problem.batch
    total = 0.0
    for x, elements in ((problem.a, problem.m * problem.k), (problem.b, problem.k * problem.n)):
        far, near = x.batch_stride
        if outer > 1 and inner > 1 and far and near and far != inner * near:
            total += _COPY_US + 2 * _itemsize(problem) * outer * inner * elements / _COPY_BYTES_PER_US
    return total


def combining_microseconds(problem: Problem) -> float:
    """The time that XLA should take to make a gated pair's result of its two products."""
    results = problem.m * problem.n * named(problem.dtypes[2]).itemsize
    return _COMBINING_US + 3 * results / _COMBINING_BYTES_PER_US  # two are read and one is written


def dense_microseconds(problem: Problem, device: Device, *, full: bool = False) -> float | None:
    """The time that XLA's dense products should take, of all rows by each group's weights; None if it is not modelled.

    ``full``: whether products of float32 are at full precision.
    """
    if problem.dtypes[0] == "float32":
        return _float32_groups(problem, device, _GROUP_FP32_PER_US if full else _GROUP_TF32_PER_US)
    one = microseconds(replace(problem, batch=(problem.batch[0], 1), epilogue=Epilogue(), gated=False, groups=None))
    return None if one is None else (1 + problem.gated) * math.ceil(problem.batch[1]) * one


def together(outer: int, groups: int, m: int, k: int, n: int) -> bool:
    """Whether XLA's products of m rows, k and n wide, for each group are a batch, not a loop; ``outer`` of them."""
    copies = outer * groups * m * (k + n)
    return groups > 0 and copies <= max(_MOST_COPIES, groups * k * n // _WEIGHTS_OF_A_COPY)


def parts_microseconds(moved: int, device: Device) -> float:
    """The time that XLA should take to make parts of fp32 numbers and add up results, if ``moved`` bytes move."""
    return _PARTS_US + moved / (_PARTS_BANDWIDTH * device.bytes_per_us)


def _itemsize(problem: Problem) -> int:
    return named(problem.dtypes[0]).itemsize


def _fp32_tiles(problem: Problem) -> int:
    return prod(problem.batch) * -(-problem.m // _FP32_TILE) * -(-problem.n // _FP32_TILE)


def _unaligned_fp32(problem: Problem) -> float:
    tiles = max(_fp32_tiles(problem), _MULTIPROCESSORS)
    return _fp32(problem, tiles * _FP32_TILE**2 * (problem.k + _FP32_TILE_K), _FP32_PRODUCTS_PER_US)


def _fp32(problem: Problem, products: int, per_us: float) -> float:
    m, n, k = problem.m, problem.n, problem.k
    traffic = 4 * prod(problem.batch) * (m * k + k * n + m * n)
    return _FP32_LAUNCH_US + max(products / per_us, traffic / _FP32_BYTES_PER_US)


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


def _float32_groups(problem: Problem, device: Device, per_us: float) -> float:
    """A batch takes the longer of memory and arithmetic; a loop over groups takes both, and copies weights first."""
    outer, groups = problem.batch
    m, n, k = problem.m, problem.n, problem.k
    multiply = 2 * m * n * k / per_us
    bandwidth = device.bytes_per_us
    assert problem.groups is not None
    if not problem.groups.sums and together(outer, math.ceil(groups), m, k, n):
        return _GROUP_US + outer * groups * max(multiply, 4 * (2 * m * k + k * n + 2 * m * n) / bandwidth)
    copies = 4 * (m * k + 3 * k * n + 3 * m * n) / bandwidth
    return groups * (_GROUP_US + outer * (multiply + copies))
