"""The rules for Hopper's products of 8 bits: which of them XLA should compute no slower than our kernels."""

from __future__ import annotations

from jaxgemm.choice.rules import Rule, Section, Side

_INT8, _FP8 = "nvidia-h200/int8.json", "nvidia-h200/fp8.json"

#: XLA pads sums of int8 that are no longer than this, and computes max(c * sum, 0) of these wrongly for negative c.
PADDED_K = 16

INTEGERS = Section(
    "8-bit integers",
    lambda q: q.dtype in ("int8", "uint8"),
    (
        Rule(
            "uint8",
            "XLA uses no tensor cores for {q.operands}, and takes a hundred times as long",
            _INT8,
            Side.OURS,
            lambda q: "uint8" in q.problem.dtypes[:2],
        ),
        Rule(
            "int8-batches",
            f"XLA is as fast for batches with aligned rows and sums longer than {PADDED_K}",
            _INT8,
            Side.XLA,
            lambda q: not q.single and not q.unaligned and q.k > PADDED_K,
        ),
        Rule(
            "int8",
            "XLA's default path pads int8 or copies row-major weights, and is no faster if it does neither",
            _INT8,
            Side.OURS,
        ),
    ),
)

#: XLA's product of fp8 operands that lie along k is as fast from so many rows and columns on.
FP8_MANY = 256

FLOATS = Section(
    "8-bit floats",
    lambda q: q.is_8bit,
    (
        Rule(
            "fp8-along-k",
            f"XLA is as fast for aligned operands that lie along k, not both e5m2, from {FP8_MANY} rows and columns on",
            _FP8,
            Side.XLA,
            lambda q: (
                q.along_k
                and not q.unaligned
                and q.short >= FP8_MANY
                and q.problem.dtypes[:2] != ("float8_e5m2", "float8_e5m2")
            ),
        ),
        Rule(
            "fp8",
            "XLA copies operands that do not lie along k, computes in 16 bits, or leaves multiprocessors idle",
            _FP8,
            Side.OURS,
        ),
    ),
)

#: In the order in which they are read.
EIGHT_BITS = (INTEGERS, FLOATS)
