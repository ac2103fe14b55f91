"""What XLA's own product is expected to do on Hopper, and so where it should be no slower than ours.

XLA times its candidates when it compiles a program, so its choice cannot be known when ours is made. But what it
chooses from is known: cuBLAS, or kernels generated for a fusion, which it may split along k. By its choices it times
those without the copies and the sums around them, as it takes some that are slow with them.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from jaxgemm.problem import Problem

#: Bytes that the rows of an operand must be a multiple of, or XLA pads it, or uses its slower kernels.
_PITCH = 16
#: Those kernels' rates, in products and in bytes a microsecond, and what they take beside that, in microseconds: so
#: much, and so much more for each element of a sum, up to so many; without a batch, for longer sums of whole steps
#: (_STEP), which it splits; and for others, for which it copies operands, at the last rate, and adds up parts.
_XLA_UNALIGNED, _XLA_SUMS, _STEP, _XLA_COPIES = (60e6, 2.2e6, (1.2, 0.016, 1.8, 6.9)), 192, 64, 3e6
#: Their least time from so many rows and so long sums on, where XLA often pads even short sums.
_XLA_PADS, _PADDED_FROM = 3.0, (96, 80)
#: The same of fp32 at full precision by cuBLAS, whose kernels for such rows have tiles of so many rows and columns:
#: their least time, products a microsecond, what a tile takes beside its sums, in elements of them, and bytes a
#: microsecond. Read off unaligned_fp32.json of benchmarks/results/nvidia-h100-80gb-hbm3.
_XLA_FP32, _FP32_TILE, _MULTIPROCESSORS = (2.0, 20.8e6, 14, 2.3e6), 64, 132
#: Short sides of 16-bit products for which XLA's default choice is often a slower kernel than there is, and the long
#: side from which on it is not.
_SHORT, _LONG = (16, 128), 16384
#: Elements of a result so small that the sums must be split, and how long they are then, in 16-bit types.
_FEW_RESULTS, _LONG_SUMS = 1 << 17, 4096
#: What the length of split sums must be a multiple of, or XLA copies both operands to pad them; the length from which
#: on it splits sums for few rows, and for results of up to so many elements.
_WHOLE, _SPLIT_FEW_ROWS, _SPLIT = 128, 1024, (2048, 3 << 19)
#: The longest sums for which XLA's kernels for rows of results that are no multiple of _PITCH are as fast as ours
#: (odd_results.json of benchmarks/results/nvidia-h200).
_ODD_RESULTS = 96
#: Long results of short sums are moving data: XLA's generated kernels do it as well. Ours are as good from a short side
#: and sums of so many elements on, either pair of them.
_STREAMED, _STREAMED_SUMS, _STREAMED_FROM = 8192, 384, ((64, 64), (32, 128))
#: Microseconds below which ours are faster for fewer rows or columns than _SHORT's first, too, as XLA's take several
#: kernels: where it splits sums for one or two rows, and for more, and for the smallest products from so long sums on.
_SMALL_FEW, _SMALLEST_FEW, _SPLIT_SMALLEST = (12.0, 36.0), 4.0, 160
#: Microseconds between which XLA's reduction is faster for one vector and rows along k (vectors.json of
#: benchmarks/results/nvidia-h200).
_DOTS = (3.0, 8.0)
#: Microseconds below which ours are mostly faster, by size of type: above the smallest products XLA often takes several
#: kernels, and in fp32 its blocks leave multiprocessors idle. The 16-bit rule is for results with as many rows and
#: columns as _SHORT's first.
_SMALL = {2: 23.0, 4: 300.0}
#: The smallest 16-bit products, in microseconds, and one step along k: of shorter sums, and in the smallest products of
#: such sums, XLA's kernel is faster.
_SMALLEST, _ONE_STEP = 3.4, 64
#: Microseconds below which ours are faster for 16-bit batches, and the shortest sums from so many microseconds on.
_SMALL_BATCH, _BATCH_SUMS = 17.0, ((0.0, 80), (4.0, 48))
#: XLA's batches have one stride. It copies an operand whose two levels do not make one, as those of heads that lie
#: between the rows do not, and then takes so much of our time; and the least time of such a copy, in microseconds.
_XLA_BATCH, _COPY = 0.92, 1.0
#: Activations that are hardly more than a comparison. Any other takes XLA's small kernels so many microseconds more,
#: and ours are faster below so many.
_CHEAP, _XLA_ACTIVATES, _SMALL_ACTIVATED = (None, "relu"), 1.0, 6.0


def better_left(problem: Problem, expected: float) -> str:
    """Why XLA's product should be no slower than ours, which expects to take so many microseconds; empty if it should.

    Rules for Hopper, read off timings on an H200: suites bf16, 16bit, unseen, sgemm and mixed_products of
    benchmarks/shapes.py, products drawn as survey's and small's are, with other seeds, and attention's products as in
    benchmarks/programs.py; and off those of an earlier draw of survey's on an H100.
    """
    size = np.dtype(jnp.dtype(problem.dtypes[0])).itemsize
    if unaligned(problem):
        if size == 4:
            # Where there are fewer tiles than multiprocessors XLA may split sums, but not a batch's: not compared.
            if problem.batch == (1, 1) and _fp32_tiles(problem) < _MULTIPROCESSORS:
                return ""
            theirs = unaligned_fp32_microseconds(problem)
            return "" if expected < theirs else _SLOWER.format(expected, theirs)
        if problem.k <= _XLA_SUMS and max(problem.m, problem.n) >= _STREAMED:
            return _STREAMS
        theirs = unaligned_microseconds(problem) + (_XLA_ACTIVATES if _activates(problem) else 0.0)
        return "" if expected < theirs else _SLOWER.format(expected, theirs)
    if size == 2:
        return _aligned_16bit(problem, expected)
    if problem.batch != (1, 1):
        return _NO_BATCH
    return "" if expected < _SMALL[size] else _NO_PADDING


_SLOWER = "ours expects {:.0f} us, XLA's should take {:.0f}"
_STREAMS = "short sums for a long result are as fast by XLA"
_DOTTED = "XLA's reduction is as fast for one vector and a small matrix whose rows are along k"
_NO_BATCH = "XLA's product is as fast for a batch of aligned products"
_SHORTEST = "the shortest sums are as fast by XLA, and the smallest products of short ones"
_NO_PADDING = f"rows are multiples of {_PITCH} bytes, so XLA's product needs no padding and is as fast"


def _aligned_16bit(problem: Problem, expected: float) -> str:
    """The rules for 16-bit products of aligned rows."""
    size, k, results = 2, problem.k, problem.m * problem.n
    side, long = sorted((problem.m, problem.n))
    padded, streams = k % _WHOLE != 0, k <= _STREAMED_SUMS and long >= _STREAMED
    if _activates(problem) and expected < _SMALL_ACTIVATED and not streams:
        return ""
    if problem.batch != (1, 1):
        if expected < _SMALL_BATCH and any(expected >= least and k >= sums for least, sums in _BATCH_SUMS):
            return ""
        copies = _batch_copies(problem) if side > 1 else 0.0  # a vector's products are no matrix product to XLA
        return "" if expected < _XLA_BATCH * expected + copies else _NO_BATCH
    if side >= _SHORT[0] and problem.n * size % _PITCH:
        return "" if k > _ODD_RESULTS else _SHORTEST
    if side == 1 and _rows_along_k(problem) and expected >= _DOTS[0]:
        return _DOTTED if expected < _DOTS[1] else ""
    if side < _SHORT[0]:
        split = k >= _SPLIT_FEW_ROWS and (padded or expected < _SMALL_FEW[side > 2])
        return "" if split or (k >= _SPLIT_SMALLEST and expected < _SMALLEST_FEW) else _NO_PADDING
    if streams:
        return "" if any(side >= short and k >= sums for short, sums in _STREAMED_FROM) else _STREAMS
    if padded and k >= _SPLIT[0] and results <= _SPLIT[1]:
        return ""
    if side <= _SHORT[1] and long >= _LONG and not (padded and k >= _LONG_SUMS):
        return f"from a long side of {_LONG} on a product with a short one is as fast by XLA"
    if k < _ONE_STEP or (k == _ONE_STEP and expected < _SMALLEST):
        return _SHORTEST
    long_sums = results <= _FEW_RESULTS and k >= _LONG_SUMS
    # XLA makes a kernel of its own of an activation.
    if expected < _SMALL[2] or side <= _SHORT[1] or long_sums or problem.epilogue.activation:
        return ""
    return _NO_PADDING


def _batch_copies(problem: Problem) -> float:
    """Microseconds that XLA should take to copy operands whose batch it cannot step through with one stride."""
    size, (outer, inner) = np.dtype(jnp.dtype(problem.dtypes[0])).itemsize, problem.batch
    total = 0.0
    for x, elements in ((problem.a, problem.m * problem.k), (problem.b, problem.k * problem.n)):
        far, near = x.batch_stride
        if outer > 1 and inner > 1 and far and near and far != inner * near:
            total += _COPY + 2 * size * outer * inner * elements / _XLA_COPIES  # read and written
    return total


def _rows_along_k(problem: Problem) -> bool:
    """Whether the larger operand of a product with a vector has its rows along k."""
    return problem.b.transposed if problem.m == 1 else not problem.a.transposed


def _activates(problem: Problem) -> bool:
    """Whether there is an activation that costs XLA's small kernels time."""
    return problem.epilogue.activation not in _CHEAP


def unaligned(problem: Problem) -> bool:
    """Whether rows of an operand are no multiple of 16 bytes."""
    size = np.dtype(jnp.dtype(problem.dtypes[0])).itemsize
    return any(x.ld * size % _PITCH for x in (problem.a, problem.b))


def _fp32_tiles(problem: Problem) -> int:
    return math.prod(problem.batch) * -(-problem.m // _FP32_TILE) * -(-problem.n // _FP32_TILE)


def unaligned_fp32_microseconds(problem: Problem) -> float:
    """Microseconds that XLA's kernels for unaligned rows should take in fp32 at full precision."""
    least, rate, beside, bandwidth = _XLA_FP32
    m, n, k = problem.m, problem.n, problem.k
    tiles = max(_fp32_tiles(problem), _MULTIPROCESSORS)
    traffic = 4 * math.prod(problem.batch) * (m * k + k * n + m * n)
    return least + max(tiles * _FP32_TILE**2 * (k + beside) / rate, traffic / bandwidth)


def unaligned_microseconds(problem: Problem) -> float:
    """Microseconds that XLA's kernels for unaligned rows should take."""
    rate, bandwidth, (least, each, whole, padding) = _XLA_UNALIGNED
    size, batch = np.dtype(jnp.dtype(problem.dtypes[0])).itemsize, math.prod(problem.batch)
    shape = (problem.m, problem.n, problem.k)
    traffic = size * batch * sum(math.prod(shape) // max(side, 1) for side in shape)
    long = batch == 1 and problem.k > _XLA_SUMS
    padded = long and problem.k % _STEP != 0
    copies = 2 * size * batch * problem.k * (problem.m + problem.n) / _XLA_COPIES if padded else 0.0  # read and written
    rows, sums = _PADDED_FROM
    pads = batch == 1 and problem.m >= rows and problem.k >= sums
    alone = padding if padded else whole if long else least + each * min(problem.k, _XLA_SUMS)
    fixed = max(alone, _XLA_PADS if pads else 0.0) + copies
    return fixed + max(batch * math.prod(shape) / rate, traffic / bandwidth)
