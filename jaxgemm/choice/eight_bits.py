"""The rules for Hopper's products of 8 bits: which of them XLA should compute no slower than our kernels."""

from __future__ import annotations

from jaxgemm.choice.rules import Rule, Section, Side

_INT8, _FP8 = "nvidia-h200/int8.json", "nvidia-h200/fp8.json"

#: Sums of int8 up to which XLA pads them, and computes max(c * x, 0) wrongly for negative c.
PADDED_K = 16

INTEGERS = Section(
    "8-bit integers",
    lambda q: q.is_8bit and q.dtype.endswith("int8"),
    (
        Rule(
            "uint8",
            "XLA has no tensor cores for {q.operands}, and takes a hundred times as long",
            _INT8,
            Side.OURS,
            lambda q: "uint8" in q.problem.dtypes[:2],
        ),
        Rule(
            "int8-batches",
            f"batches of aligned rows, of sums longer than {PADDED_K}, are as fast by XLA",
            _INT8,
            Side.XLA,
            lambda q: not q.single and not q.unaligned and q.k > PADDED_K,
        ),
        Rule(
            "int8", "XLA pads int8, or copies weights that are row-major, and is no faster otherwise", _INT8, Side.OURS
        ),
    ),
)

#: Rows and columns from which on XLA's product of fp8 that lies along k is as fast.
FP8_MANY = 256

FLOATS = Section(
    "8-bit floats",
    lambda q: q.is_8bit,
    (
        Rule(
            "fp8-along-k",
            f"XLA multiplies aligned operands that lie along k as fast, from {FP8_MANY} rows and columns on",
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
