"""The rules for Hopper: which products XLA should compute no slower than our kernels.

A constant in microseconds is held to the time that the best of our kernels expects, which stands for how much there is
to do: in a small product it counts what XLA does beside multiplying. Other constants count elements. No constant comes
in or changes without what benchmarks/choices.py says before and after.
"""

from __future__ import annotations

from jaxgemm.choice.eight_bits import EIGHT_BITS
from jaxgemm.choice.rules import EXACT_K, EXACT_TILES, Question, Rule, Section, Side, first
from jaxgemm.choice.xla_times import (
    BATCH_AHEAD,
    PITCH_BYTES,
    ROUNDED_BYTES,
    UNSPLIT_K,
    batch_copies_microseconds,
    fp32_microseconds,
    unaligned,
)

_SURVEY, _SMALL, _PITCHES = "nvidia-h200/survey.json", "nvidia-h200/small.json", "nvidia-h200/pitches.json"
_16BIT, _PROGRAMS, _SGEMM = "nvidia-h200/16bit.json", "nvidia-h200/programs.json", "nvidia-h200/sgemm.json"
_PRECISIONS = "nvidia-h200/precisions.json"
_RULES, _ERRORS = "nvidia-h200/rules.json", "nvidia-h200/errors.json"

# --- fp32 at full precision ---

#: Below this time the blocks of XLA's fp32 kernels leave multiprocessors idle.
FP32_SMALL_US = 300.0

FP32 = Section(
    "fp32 at full precision",
    lambda q: q.dtype == "float32",
    (
        Rule(
            "rounded-once",
            "XLA rounds operands to bfloat16 too, and multiplies aligned rows of these as fast",
            _PRECISIONS,
            Side.XLA,
            lambda q: q.emulated == "bf16" and not unaligned(q.problem, ROUNDED_BYTES),
        ),
        Rule(
            "named-algorithm",
            "ours keep the bound of a named algorithm for every shape, and XLA's do not keep that of each",
            _ERRORS,
            Side.OURS,
            lambda q: bool(q.emulated),
        ),
        Rule(
            "fp32-planes",
            f"for sums of {EXACT_K} or more, and results of {EXACT_TILES} of XLA's tiles, products of 16-bit parts are "
            "as exact as its product, and should take less time",
            "nvidia-h200/exact.json",
            Side.OURS,
            lambda q: q.arithmetic == "bf16_x6" and q.ours < (q.theirs or fp32_microseconds(q.problem)),
        ),
        Rule(
            "fp32-small",
            f"below {FP32_SMALL_US:.0f} us XLA's blocks leave multiprocessors idle",
            _SGEMM,
            Side.OURS,
            lambda q: not q.unaligned and q.single and q.ours < FP32_SMALL_US,
        ),
    ),
)

# --- 16-bit types: unaligned rows ---

#: A side that makes a result long. Of short sums such a result is moving data.
LONG_RESULT = 8192

UNALIGNED = Section(
    "16-bit, rows of an operand no multiple of 16 bytes",
    lambda q: q.is_16bit and q.unaligned,
    (
        Rule(
            "unaligned-short-sums",
            f"sums of up to {UNSPLIT_K} for a result with a side of {LONG_RESULT} or more are moving data, which XLA "
            "does as fast",
            _RULES,
            Side.XLA,
            lambda q: q.k <= UNSPLIT_K and q.long >= LONG_RESULT,
        ),
    ),
)

# --- 16-bit types: rows of both operands aligned ---

#: The longest sums for which a long result is moving data.
STREAMED_K = 384
#: Below this time an activation takes XLA's kernels longer than ours.
SMALL_ACTIVATED_US = 6.0


def _aligned_16bit(q: Question) -> bool:
    return q.is_16bit and not q.unaligned


def _streamed(q: Question) -> bool:
    """Whether a product is moving data more than multiplying it."""
    return q.k <= STREAMED_K and q.long >= LONG_RESULT


ACTIVATED = Section(
    "16-bit, aligned rows, with an activation other than relu",
    lambda q: _aligned_16bit(q) and q.activates,
    (
        Rule(
            "small-activated",
            f"below {SMALL_ACTIVATED_US:.0f} us an activation takes XLA's kernels time, unless the result is long and "
            "its sums are short",
            _SMALL,
            Side.OURS,
            lambda q: q.ours < SMALL_ACTIVATED_US and not _streamed(q),
        ),
    ),
)

#: Ours are faster for batches below this time, whose sums are at least so long.
SMALL_BATCH_US = 17.0
SMALL_BATCH_K = 80
#: From this time on, sums of this length are long enough for that.
MIDDLE_BATCH_US = 4.0
MIDDLE_BATCH_K = 48

BATCHES = Section(
    "16-bit, aligned rows, batches",
    lambda q: _aligned_16bit(q) and not q.single,
    (
        Rule(
            "small-batch",
            f"below {SMALL_BATCH_US:.0f} us ours are faster for batches of sums of {SMALL_BATCH_K} or more, and of "
            f"{MIDDLE_BATCH_K} or more from {MIDDLE_BATCH_US:.0f} us on",
            _SMALL,
            Side.OURS,
            lambda q: (
                q.ours < SMALL_BATCH_US
                and (q.k >= SMALL_BATCH_K or (q.k >= MIDDLE_BATCH_K and q.ours >= MIDDLE_BATCH_US))
            ),
        ),
        Rule(
            "copied-batch",
            "XLA's batches have one stride, so it copies an operand with two before it multiplies, which takes more "
            f"than the {BATCH_AHEAD:.0%} of our time by which it is ahead then",
            _PROGRAMS,
            Side.OURS,
            # A vector's products are no matrix product to XLA, so it does not copy for them.
            lambda q: q.short > 1 and batch_copies_microseconds(q.problem) > BATCH_AHEAD * q.ours,
        ),
    ),
)

#: A product with fewer rows or columns than this has few.
FEW = 16
#: Between these times XLA's reduction is faster for one vector and a matrix whose rows are along k.
REDUCED_FROM_US, REDUCED_UP_TO_US = 3.0, 8.0
#: XLA copies operands to pad sums that are no multiple of this before it splits them.
WHOLE_K = 128
#: XLA splits the sums of few rows from this length on, which takes several kernels. Ours are faster below this time.
SPLIT_FEW_K, SPLIT_FEW_US = 1024, 36.0
#: The smallest products of few rows, below this time: XLA splits their sums from this length on.
SPLIT_SMALLEST_K, SPLIT_SMALLEST_US = 160, 4.0


def _few(q: Question) -> bool:
    return _aligned_16bit(q) and q.single and q.short < FEW


def _along_k(q: Question) -> bool:
    """Whether it is a product of a vector and a matrix whose rows are along k."""
    p = q.problem
    return q.short == 1 and (p.b.transposed if p.m == 1 else not p.a.transposed)


FEW_ROWS = Section(
    f"16-bit, aligned rows, fewer than {FEW} rows or columns",
    _few,
    (
        Rule(
            "small-reductions",
            f"between {REDUCED_FROM_US:.0f} and {REDUCED_UP_TO_US:.0f} us XLA's reduction is faster for one vector and "
            "a matrix whose rows are along k",
            _RULES,
            Side.XLA,
            lambda q: _along_k(q) and REDUCED_FROM_US <= q.ours < REDUCED_UP_TO_US,
        ),
        Rule(
            "few-rows-padded",
            f"XLA copies operands to split sums of {SPLIT_FEW_K} or more that are no multiple of {WHOLE_K}",
            _SURVEY,
            Side.OURS,
            lambda q: q.k >= SPLIT_FEW_K and q.k % WHOLE_K != 0,
        ),
        Rule(
            "few-rows-split",
            f"XLA splits sums of {SPLIT_FEW_K} or more, which takes it several kernels: ours are faster below "
            f"{SPLIT_FEW_US:.0f} us",
            _SURVEY,
            Side.OURS,
            lambda q: q.k >= SPLIT_FEW_K and q.ours < SPLIT_FEW_US,
        ),
        Rule(
            "few-rows-smallest",
            f"below {SPLIT_SMALLEST_US:.0f} us ours are faster for sums of {SPLIT_SMALLEST_K} or more",
            _SMALL,
            Side.OURS,
            lambda q: q.k >= SPLIT_SMALLEST_K and q.ours < SPLIT_SMALLEST_US,
        ),
    ),
)

#: The longest sums for which XLA's kernels for results of unaligned rows are as fast as ours.
UNALIGNED_RESULTS_K = 96
#: Short sides and lengths of sums from which on ours are as fast for a long result of short sums.
STREAMED_FROM = ((64, 64), (32, 128))
#: The length from which on XLA splits sums, where the result has so few elements.
SPLIT_K, SPLIT_RESULTS = 2048, 3 << 19
#: From this long side on XLA's product is as fast, with a short side of up to so many.
LONG_SIDE, SHORT_SIDE = 16384, 128
#: One step of our kernels along k. Sums of one are too short for the smallest products, those below so many
#: microseconds, and shorter ones for any.
STEP_K, SMALLEST_US = 64, 3.4
#: Below this time ours are mostly faster, as XLA often takes several kernels.
SMALL_US = 23.0


def _split(q: Question) -> bool:
    """Whether there are so few results of such long sums that XLA splits these."""
    return q.k >= SPLIT_K and q.short * q.long <= SPLIT_RESULTS


def _unaligned_result(q: Question) -> bool:
    """Whether rows of a 16-bit result are unaligned."""
    return 2 * q.problem.n % PITCH_BYTES != 0


MATRICES = Section(
    f"16-bit, aligned rows, {FEW} rows and columns or more",
    lambda q: _aligned_16bit(q) and q.single and q.short >= FEW,
    (
        Rule(
            "unaligned-results",
            f"only the result's rows are unaligned, and sums are longer than {UNALIGNED_RESULTS_K}",
            _RULES,
            Side.OURS,
            lambda q: _unaligned_result(q) and q.k > UNALIGNED_RESULTS_K,
        ),
        Rule(
            "unaligned-results-short-sums",
            f"sums of up to {UNALIGNED_RESULTS_K} for a result of unaligned rows are as fast by XLA",
            _RULES,
            Side.XLA,
            _unaligned_result,
        ),
        Rule(
            "wide-streams",
            f"sums of up to {STREAMED_K} for a result with a side of {LONG_RESULT} or more: ours are as good from "
            + " and ".join(f"a short side of {short} with sums of {k}" for short, k in STREAMED_FROM)
            + " on",
            _SURVEY,
            Side.OURS,
            lambda q: _streamed(q) and any(q.short >= short and q.k >= k for short, k in STREAMED_FROM),
        ),
        Rule(
            "streams",
            f"sums of up to {STREAMED_K} for a result with a side of {LONG_RESULT} or more are moving data, which XLA "
            "does as fast",
            _SURVEY,
            Side.XLA,
            _streamed,
        ),
        Rule(
            "padded-sums",
            f"XLA copies operands to split sums of {SPLIT_K} or more that are no multiple of {WHOLE_K}, for results of "
            f"up to {SPLIT_RESULTS} elements",
            _SURVEY,
            Side.OURS,
            lambda q: q.k % WHOLE_K != 0 and _split(q),
        ),
        Rule(
            "long-side",
            f"from a long side of {LONG_SIDE} on a product with a short one of up to {SHORT_SIDE} is as fast by XLA",
            _SURVEY,
            Side.XLA,
            lambda q: q.short <= SHORT_SIDE and q.long >= LONG_SIDE,
        ),
        Rule(
            "shortest-sums",
            f"sums shorter than {STEP_K}, and below {SMALLEST_US:.1f} us sums of {STEP_K}, are as fast by XLA",
            _SMALL,
            Side.XLA,
            lambda q: q.k < STEP_K or (q.k == STEP_K and q.ours < SMALLEST_US),
        ),
        Rule(
            "small",
            f"below {SMALL_US:.0f} us XLA often takes several kernels",
            _SMALL,
            Side.OURS,
            lambda q: q.ours < SMALL_US,
        ),
        Rule(
            "split-sums",
            f"XLA splits sums of {SPLIT_K} or more for results of up to {SPLIT_RESULTS} elements, which takes it "
            "several kernels",
            _SURVEY,
            Side.OURS,
            _split,
        ),
        Rule(
            "activated",
            "XLA makes a kernel of its own of an activation",
            _16BIT,
            Side.OURS,
            lambda q: q.problem.epilogue.activation is not None,
        ),
    ),
)

LAST = Section(
    "Everything else",
    lambda _: True,
    (
        Rule(
            "rows-aligned",
            f"rows are multiples of {PITCH_BYTES} bytes, so XLA's product needs no padding and is as fast",
            "nvidia-h200/bf16.json",
            Side.XLA,
            lambda q: not q.unaligned,
        ),
        Rule(
            "expected-times",
            "the lesser of both expected times is taken; ours where XLA's is not modelled",
            _PITCHES,
        ),
    ),
)

#: In the order in which they are read.
SECTIONS = (FP32, *EIGHT_BITS, UNALIGNED, ACTIVATED, BATCHES, FEW_ROWS, MATRICES, LAST)


def decide(question: Question, without: str = "") -> tuple[Rule, Side]:
    """The rule that decides for a product that no fact leaves to XLA, and whether ours or XLA computes it.

    ``without`` is the name of a rule, other than the last, that is passed over.
    """
    rule = first(SECTIONS, question, without)
    assert rule is not None, "the last rule decides whatever is left"
    return rule, question.prefers(rule.side)
