"""The rules for Hopper: which products XLA should compute no slower than our kernels.

A constant in microseconds is compared with the time that the best of our kernels expects. This time stands for the size
of the product: in a small product, what XLA does beside multiplying takes a large part of its time. Other constants
count elements. Before a constant is added or changed, and after, benchmarks/choices.py says what the rules lose.
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
            "XLA rounds operands to bfloat16 too, and is as fast if the rounded rows are aligned",
            _PRECISIONS,
            Side.XLA,
            lambda q: q.emulated == "bf16" and not unaligned(q.problem, ROUNDED_BYTES),
        ),
        Rule(
            "named-algorithm",
            "our kernels keep the error bound of every named algorithm for every shape; XLA's keep only some",
            _ERRORS,
            Side.OURS,
            lambda q: bool(q.emulated),
        ),
        Rule(
            "fp32-planes",
            f"for sums of {EXACT_K} or more, and results of {EXACT_TILES} of XLA's tiles or more, products of 16-bit "
            "parts are as exact as XLA's product, and should take less time",
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

#: A result is long if one side has so many elements. With short sums, memory bounds a product with a long result.
LONG_RESULT = 8192

UNALIGNED = Section(
    "16-bit, rows of an operand no multiple of 16 bytes",
    lambda q: q.is_16bit and q.unaligned,
    (
        Rule(
            "unaligned-short-sums",
            f"memory bounds sums of up to {UNSPLIT_K} for a result with a side of {LONG_RESULT} or more, and XLA is as "
            "fast",
            _RULES,
            Side.XLA,
            lambda q: q.k <= UNSPLIT_K and q.long >= LONG_RESULT,
        ),
    ),
)

# --- 16-bit types: rows of both operands aligned ---

#: The longest sums for which memory bounds a product with a long result.
STREAMED_K = 384
#: Below this time an activation takes XLA's kernels longer than ours.
SMALL_ACTIVATED_US = 6.0


def _aligned_16bit(q: Question) -> bool:
    return q.is_16bit and not q.unaligned


def _streamed(q: Question) -> bool:
    """Whether memory bounds the product: its result is long, and its sums are short."""
    return q.k <= STREAMED_K and q.long >= LONG_RESULT


ACTIVATED = Section(
    "16-bit, aligned rows, with an activation other than relu",
    lambda q: _aligned_16bit(q) and q.activates,
    (
        Rule(
            "small-activated",
            f"below {SMALL_ACTIVATED_US:.0f} us an activation slows XLA's kernels down, unless the result is long and "
            "its sums are short",
            _SMALL,
            Side.OURS,
            lambda q: q.ours < SMALL_ACTIVATED_US and not _streamed(q),
        ),
    ),
)

#: Our kernels are faster for batches below this time whose sums have at least this length.
SMALL_BATCH_US = 17.0
SMALL_BATCH_K = 80
#: For batches that take at least this time, shorter sums suffice: of at least this length.
MIDDLE_BATCH_US = 4.0
MIDDLE_BATCH_K = 48

BATCHES = Section(
    "16-bit, aligned rows, batches",
    lambda q: _aligned_16bit(q) and not q.single,
    (
        Rule(
            "small-batch",
            f"below {SMALL_BATCH_US:.0f} us ours are faster for batches with sums of {SMALL_BATCH_K} or more; from "
            f"{MIDDLE_BATCH_US:.0f} us on, with sums of {MIDDLE_BATCH_K} or more",
            _SMALL,
            Side.OURS,
            lambda q: (
                q.ours < SMALL_BATCH_US
                and (q.k >= SMALL_BATCH_K or (q.k >= MIDDLE_BATCH_K and q.ours >= MIDDLE_BATCH_US))
            ),
        ),
        Rule(
            "copied-batch",
            "XLA first copies an operand whose batch has two strides; the copies take longer than XLA's product saves, "
            f"{BATCH_AHEAD:.0%} of our time",
            _PROGRAMS,
            Side.OURS,
            # XLA does not treat products of a vector as matrix products, and copies nothing for them.
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
#: For few rows XLA splits sums from this length on, which takes several kernels. Ours are faster below this time.
SPLIT_FEW_K, SPLIT_FEW_US = 1024, 36.0
#: For few rows and products below this time, XLA splits sums from a smaller length on.
SPLIT_SMALLEST_K, SPLIT_SMALLEST_US = 160, 4.0


def _few(q: Question) -> bool:
    return _aligned_16bit(q) and q.single and q.short < FEW


def _vector_along_k(q: Question) -> bool:
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
            lambda q: _vector_along_k(q) and REDUCED_FROM_US <= q.ours < REDUCED_UP_TO_US,
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
#: (short side, length of sums): from these on ours are as fast for a long result of short sums.
STREAMED_FROM = ((64, 64), (32, 128))
#: XLA splits sums from this length on, if the result has at most so many elements.
SPLIT_K, SPLIT_RESULTS = 2048, 3 << 19
#: XLA's product is as fast from this long side on, if the short side has at most so many elements.
LONG_SIDE, SHORT_SIDE = 16384, 128
#: One step of our kernels along k. XLA is as fast for sums shorter than one step, and for sums of one step in products
#: below so many microseconds.
STEP_K, SMALLEST_US = 64, 3.4
#: Below this time ours are mostly faster, as XLA often takes several kernels.
SMALL_US = 23.0


def _split(q: Question) -> bool:
    """Whether the sums are so long, and the results so few, that XLA splits the sums."""
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
            f"XLA is as fast for sums of up to {UNALIGNED_RESULTS_K} and a result with unaligned rows",
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
            f"memory bounds sums of up to {STREAMED_K} for a result with a side of {LONG_RESULT} or more, and XLA is "
            "as fast",
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
            f"XLA is as fast if the long side is {LONG_SIDE} or more and the short side {SHORT_SIDE} or less",
            _SURVEY,
            Side.XLA,
            lambda q: q.short <= SHORT_SIDE and q.long >= LONG_SIDE,
        ),
        Rule(
            "shortest-sums",
            f"XLA is as fast for sums shorter than {STEP_K}, and below {SMALLEST_US:.1f} us for sums of {STEP_K}",
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
            "XLA applies the activation by a kernel of its own",
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
            "the side that expects less time is taken; ours if XLA's time is not modelled",
            _PITCHES,
        ),
    ),
)

#: In the order in which they are read.
SECTIONS = (FP32, *EIGHT_BITS, UNALIGNED, ACTIVATED, BATCHES, FEW_ROWS, MATRICES, LAST)


def decide(question: Question, without: str = "") -> tuple[Rule, Side]:
    """The rule that decides for a product that no fact leaves to XLA, and who computes the product by it.

    ``without``: the name of a rule, other than the last, to pass over.
    """
    rule = first(SECTIONS, question, without)
    assert rule is not None, "the last rule decides whatever is left"
    return rule, question.prefers(rule.side)
