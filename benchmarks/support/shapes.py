"""The suites that run.py knows: products by name, with the kernels of ours that are measured on them."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chain import CHAINS

from jaxgemm.measure.case import ALGORITHMS, Case, parse_case


@dataclass(frozen=True)
class Suite:
    """A list of products.

    Attributes:
        cases: what is measured, in order.
        kernels: measured on a GPU unless others are asked for, named as `bench.parse_kernel` takes them; those that the
            table lacks are left out.
    """

    cases: tuple[Case, ...]
    kernels: tuple[str, ...]


Shape = tuple[int, int, int]

# Large and aligned, ragged, small, batched, and every layout. Rows of 2049 and 2051 elements are no multiple
# of 16 bytes, so that neither wide loads nor the bulk copy engine can be used on them.
_SGEMM: tuple[Case, ...] = (
    *(Case(n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192)),
    Case(2047, 2049, 2051),
    Case(16, 8192, 8192),
    Case(128, 8192, 8192),
    Case(2560, 2560, 1024),
    Case(64, 64, 64, batch=1024),
    Case(32, 32, 32, batch=4096),
    Case(128, 128, 64, batch=256),
    *(Case(4096, 4096, 4096, layout=layout) for layout in ("NT", "TN", "TT")),
)

# fp32 at full precision: what solvers and fits have, in every layout, unaligned, in batches, of few rows, small, and
# long in one direction.
_FP32: tuple[Case, ...] = (
    *(Case(n, n, n) for n in (64, 128, 256, 512, 1000, 1024, 2048, 3000, 4096, 8192, 16384)),
    Case(2047, 2049, 2051),
    *(Case(4096, 4096, 4096, layout=layout) for layout in ("NT", "TN", "TT")),
    Case(1024, 1024, 1024, batch=64),
    Case(256, 256, 256, batch=256),
    *(Case(m, n, n) for n in (4096, 8192) for m in (1, 4, 16, 64, 128)),
    Case(300, 200, 100),
    Case(64, 64, 65536),
    Case(512, 512, 65536),
    Case(65536, 64, 64),
    Case(16384, 1024, 1024),
    Case(8192, 64, 8192),
    Case(8192, 8192, 256),
    Case(4096, 4096, 4096, bias=True, activation="gelu"),
)
# The algorithms that have names, at a size where multiplying is what counts, and unaligned. What one of them does
# follows from the data, so that it, what it does instead, and fp32 have data of which it takes either way.
_PRECISIONS: tuple[Case, ...] = (
    *(
        Case(m, n, k, precision=algorithm)
        for algorithm in ALGORITHMS
        for m, n, k in ((2047, 2049, 2051), (4096, 4096, 4096), (8192, 8192, 8192))
    ),
    *(
        Case(n, n, n, precision=algorithm, data=data)
        for data in ("normal", "one tiny value")
        for n in (4096, 8192)
        for algorithm in ("F32_F32_F32", "BF16_BF16_F32_X6", "TF32_TF32_F32_X3")
    ),
)

_BF16_SHAPES: tuple[Shape, ...] = (
    # squares, up to where an operand no longer fits in any cache
    *((n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192, 16384)),
    # no multiples of a tile
    (2560, 2560, 1024),
    (10000, 10000, 10000),
    (1000, 1000, 1000),
    (2047, 2049, 2051),
    (4097, 4095, 4099),
    # the four products of a large transformer's layer, for one token, a few, and many
    *((m, n, k) for m in (1, 16, 128, 2048) for n, k in ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))),
    # little output and much to sum; a tall one; narrow ones
    (64, 64, 131072),
    (128, 128, 65536),
    (131072, 64, 64),
    (8192, 64, 8192),
    (64, 8192, 8192),
    (512, 512, 32768),
)


# 8 bits: weights row-major and along k, few rows and many, a layer's gradient, and rows that begin anywhere.
_8BIT_BOTH: tuple[Shape, ...] = (*((m, 8192, 8192) for m in (16, 2048, 128, 8192)), (1024, 1024, 1024))
_8BIT_ROW_MAJOR: tuple[Shape, ...] = (
    *((m, 8192, 8192) for m in (1, 512)),
    (16, 4096, 14336),
    (2048, 14336, 4096),
    *((n, n, n) for n in (256, 512, 2048, 4096)),
    (2047, 2049, 2051),
    (300, 520, 1001),
)


def _8bit(dtype: str, **more: Any) -> tuple[Case, ...]:
    """In both layouts of weights, then row-major ones alone, gradients, and a batch."""
    return (
        *(Case(*shape, dtype, layout, **more) for shape in _8BIT_BOTH for layout in ("NN", "NT")),
        *(Case(*shape, dtype, **more) for shape in _8BIT_ROW_MAJOR),
        *(Case(*shape, dtype, "TN", **more) for shape in _8BIT_BOTH if shape[0] > 128),
        Case(256, 256, 256, dtype, batch=64, **more),
    )


# XLA takes very long for products of uint8.
_INT8: tuple[Case, ...] = (
    *_8bit("int8"),
    *(Case(m, n, k, "uint8") for m, n, k in ((16, 8192, 8192), (1024, 1024, 1024), (2048, 8192, 8192))),
)
_FP8: tuple[Case, ...] = (
    *_8bit("float8_e4m3fn", out="bfloat16"),
    *(Case(m, 8192, 8192, "float8_e5m2", out="bfloat16") for m in (16, 2048)),
    Case(2048, 8192, 8192, "float8_e4m3fn"),
    Case(2048, 8192, 8192, "float8_e4m3fn", out="bfloat16", bias=True, activation="gelu"),
)


def _square(n: int, **more: Any) -> Case:
    return Case(n, n, n, "bfloat16", **more)


_BATCHES = (
    (1024, 1024, 1024, 64),
    (64, 64, 64, 1024),
    (32, 32, 32, 4096),
    (128, 128, 64, 256),
    (2047, 2047, 129, 8),
)

# What the list of bf16 problems leaves out: layouts, batches, epilogues, the other type.
_16BIT: tuple[Case, ...] = (
    *(_square(4096, layout=layout) for layout in ("NN", "NT", "TN", "TT")),
    *(Case(m, n, k, "bfloat16", batch=batch) for m, n, k, batch in _BATCHES),
    *(
        Case(m, n, k, "bfloat16", bias=bias, activation=activation)
        for m, n, k in (
            (1024, 1024, 1024),
            (4096, 4096, 4096),
            (8192, 8192, 8192),
            (16, 8192, 8192),
            (2048, 8192, 8192),
        )
        for bias, activation in ((False, None), (True, "gelu"))
        if (m, bias) != (4096, False)
    ),
    *(
        Case(m, n, k, "float16")
        for m, n, k in (
            (1024, 1024, 1024),
            (4096, 4096, 4096),
            (8192, 8192, 8192),
            (2047, 2049, 2051),
            (16, 8192, 8192),
            (128, 8192, 28672),
            (512, 512, 32768),
        )
    ),
)

# Shapes that no cost model was fitted to: odd and prime ones, models' layers, tall, flat, and with little output. If a
# cost model is fitted to a shape later, the shape is to be replaced here.
_UNSEEN: tuple[Case, ...] = tuple(
    Case(m, n, k, "bfloat16")
    for m, n, k in (
        (3019, 3023, 3037),
        (1101, 1502, 860),
        (5632, 5632, 5632),
        (1344, 1344, 1344),
        (416, 416, 416),
        (6144, 16384, 4096),
        (4096, 4096, 14336),
        (640, 10240, 5120),
        (36, 5120, 7168),
        (12, 11008, 4096),
        (2, 6144, 6144),
        (1, 4096, 4096),
        (80, 30001, 1536),
        (1800, 28001, 1280),
        (60000, 112, 160),
        (112, 40000, 640),
        (12000, 600, 88),
        (192, 144, 20000),
        (1664, 2304, 10240),
        (4000, 4000, 24),
    )
)


# Mostly few rows, and weights whose rows begin anywhere: the larger operand is realigned on its way, by each
# tile that can, beside what the model chooses.
_REALIGNED: tuple[Case, ...] = tuple(
    Case(m, n, k, "bfloat16", layout=layout)
    for m, n, k, layout in (
        (1, 30001, 1536, "NN"),
        (16, 50257, 768, "NN"),
        (80, 30001, 1536, "NN"),
        (128, 50257, 768, "NN"),
        (256, 50257, 768, "NN"),
        (64, 4097, 4096, "NN"),
        (32, 12001, 4096, "NN"),
        (64, 4096, 12001, "NT"),
        (64, 4095, 12001, "NT"),
        (16, 10001, 2049, "NT"),
        (1024, 30001, 1024, "NN"),
    )
)
_REALIGNING = tuple(f"sm90:tile_m={m},tile_n={n},unaligned=2" for m, n in ((64, 64), (64, 128), (128, 128)))


# Rows of A that begin anywhere: `sm90` copies A first, or has tiles of every eighth row of it.
_ODD_ROWS: tuple[Case, ...] = tuple(
    Case(m, n, k, "bfloat16")
    for m, n, k in (
        (2047, 2049, 2051),
        (4097, 4095, 4099),
        (4096, 4096, 4099),
        (4096, 2049, 2051),
        (8191, 1000, 515),
        (3019, 3023, 3037),
        (2560, 1025, 4097),
        (1787, 3139, 2739),
        (2300, 2301, 2303),
        (5001, 3003, 1002),
        (6147, 2052, 4100),
    )
)


@dataclass(frozen=True)
class Kind:
    """Products at random: the ranges of m, n and k, and what they are multiples of."""

    m: tuple[int, int]
    n: tuple[int, int]
    k: tuple[int, int]
    multiples: tuple[int, ...]
    batch: tuple[int, int] | None = None
    activated: bool = False


# For what auto is worth on shapes that nobody chose. The seed changes whenever rules or the cost model were read off
# its products, so that a survey is of products that neither has seen.
_KINDS = (
    Kind((1, 15), (1024, 32768), (1024, 16384), (8, 64, 256)),
    Kind((16, 128), (1024, 32768), (1024, 16384), (8, 64, 256)),
    Kind((128, 1024), (1024, 16384), (1024, 8192), (8, 64)),
    Kind((256, 4096), (256, 4096), (256, 4096), (8, 16, 64)),
    Kind((1024, 8192), (1024, 16384), (1024, 8192), (64, 128)),
    Kind((8000, 200000), (16, 512), (16, 512), (8, 32)),
    Kind((16, 512), (16, 512), (8000, 200000), (8, 64)),
    Kind((20, 4000), (20, 4000), (20, 4000), (1,)),
    Kind((16, 1024), (16, 1024), (16, 1024), (8, 16, 64), batch=(2, 512)),
    Kind((16, 8192), (1024, 16384), (512, 8192), (64,), activated=True),
    Kind((1, 128), (4096, 65536), (512, 8192), (1,)),  # few rows, and weights of any pitch, as vocabularies have
)
# Products of a few microseconds: aligned or not, in batches, with an epilogue, and with few results of long sums.
_SMALL_KINDS = (
    Kind((8, 512), (8, 512), (16, 1024), (8, 16, 64)),
    Kind((8, 512), (8, 512), (16, 1024), (1,)),
    Kind((8, 256), (8, 256), (8, 256), (8,), batch=(2, 256)),
    Kind((8, 256), (8, 256), (8, 256), (1,), batch=(2, 256)),
    Kind((8, 512), (16, 512), (16, 1024), (8, 64), activated=True),
    Kind((16, 192), (100, 1000), (1400, 8000), (8, 64)),
)
# With a bias and an activation, and extents that are multiples of nothing, so that results' rows begin anywhere: large
# products and small ones.
_ODD_FINISHED_KINDS = (
    Kind((64, 8192), (256, 16384), (64, 4096), (1,), activated=True),
    Kind((16, 512), (16, 1024), (16, 1024), (1,), activated=True),
)
# Each extent of any kind, so that some of a product's rows begin at multiples of 16 bytes and others do not.
_PITCH_KINDS = (
    Kind((32, 8192), (32, 16384), (64, 8192), (1, 8, 64)),
    Kind((16, 1024), (16, 1024), (16, 1024), (1, 8, 64)),
    Kind((16, 1024), (16, 1024), (16, 1024), (1, 8, 64), batch=(2, 128)),
)


def _survey(kinds: tuple[Kind, ...], each: int, seed: int, most: float = 1e12) -> tuple[Case, ...]:
    """As many products of each kind, no one of more than `most` operations."""
    draw = random.Random(seed)

    def extent(low: int, high: int, multiple: int) -> int:
        x = math.exp(draw.uniform(math.log(low), math.log(high)))
        return max(multiple, round(x / multiple) * multiple)

    def case(kind: Kind) -> Case:
        m, n, k, multiples = kind.m, kind.n, kind.k, kind.multiples
        more: dict[str, Any] = {"layout": draw.choice(("NN", "NN", "NT", "TN"))}
        if kind.activated:
            more = {"bias": True, "activation": draw.choice(("gelu", "silu", "relu"))}
        if kind.batch:
            more["batch"] = extent(*kind.batch, 1)
        narrow = m[1] <= 128 or m[1] > 8 * n[1]  # a number of tokens, which is a multiple of nothing
        rows = extent(*m, 1 if narrow else draw.choice(multiples))
        if narrow and more["layout"] == "TN":
            more["layout"] = "NN"  # as A's rows would be that long in TN, and begin anywhere
        return Case(rows, extent(*n, draw.choice(multiples)), extent(*k, draw.choice(multiples)), "bfloat16", **more)

    cases: list[Case] = []
    for kind in kinds:
        kept = [
            one for one in (case(kind) for _ in range(4 * each)) if 2 * one.m * one.n * one.k * (one.batch or 1) <= most
        ]
        cases += kept[:each]
    return tuple(cases)


def drawn(each: int, seed: int, kinds: Sequence[int] | None = None) -> tuple[Case, ...]:
    """Products at random, as many of each kind; kinds take turns. Their numbers count from 0 through survey's, small's,
    and those of unaligned results with an epilogue.

    Raises:
        ValueError: there is no such kind.
    """
    known = (*_KINDS, *_SMALL_KINDS, *_ODD_FINISHED_KINDS)
    asked = range(len(known)) if kinds is None else kinds
    if not set(asked) <= set(range(len(known))):
        raise ValueError(f"kinds are 0 to {len(known) - 1}, got {', '.join(map(str, asked))}")
    of_kinds = (_survey((known[i],), each, seed + i, 3e11) for i in asked)
    return tuple(case for turn in itertools.zip_longest(*of_kinds) for case in turn if case)


#: Large flat results, where ours are weakest. Rules and models are judged by them, so none may be fitted to them.
_FLAT: tuple[Case, ...] = tuple(
    case
    for case in _survey((_KINDS[2], _KINDS[4]), 120, 9091)
    if 512 <= min(case.m, case.n) <= 1448 and max(case.m, case.n) >= 2 * min(case.m, case.n)
)[:24]

#: The products of the chain "mixed", one by one.
_MIXED: tuple[Case, ...] = tuple(
    Case(CHAINS["mixed"].rows, n, k, CHAINS["mixed"].dtype)
    for k, n in zip(CHAINS["mixed"].widths, (*CHAINS["mixed"].widths[1:], CHAINS["mixed"].widths[0]), strict=True)
)

_RESULTS = Path(__file__).resolve().parents[1] / "results"


def _stored(device: str, suite: str) -> tuple[Case, ...]:
    """The products that a device's rules.json has of a suite: drawn once, and from then on the same."""
    rows = json.loads((_RESULTS / device / "rules.json").read_text())["rows"]
    return tuple(parse_case(row["problem"]) for row in rows if row["source"] == suite)


#: Suites that rules of `auto` were read off, or that show what they are about; one file has the results of all.
RULES: dict[str, Suite] = {
    # results whose rows begin anywhere, and all products of layers whose vocabularies are not padded
    "odd_results": Suite(_stored("nvidia-h200", "odd_results"), ("auto", "sm90")),
    # one vector and a matrix
    "vectors": Suite(_stored("nvidia-h200", "vectors"), ("auto", "sm90", "gemv")),
    # aligned products of 10^12 multiply-adds and more
    "large": Suite(_stored("nvidia-h200", "large"), ("auto", "sm90")),
    "realigned": Suite(_REALIGNED, (*_REALIGNING, "sm90")),
    "odd_rows": Suite(_ODD_ROWS, ("sm90", "sm90:every_eighth=1", "sm90:every_eighth=2")),
    # fp32 at precision HIGHEST, of rows that begin anywhere
    "unaligned_fp32": Suite(_stored("nvidia-h100-80gb-hbm3", "unaligned_fp32"), ("auto", "simt")),
}
SUITES: dict[str, Suite] = {
    "smoke": Suite((Case(32, 24, 40), Case(17, 19, 23, layout="TT"), Case(8, 8, 8, batch=3)), ("auto",)),
    "sgemm": Suite(_SGEMM, ("auto", "simt")),
    "fp32": Suite(_FP32, ("auto", "sm90", "simt")),
    "precisions": Suite(_PRECISIONS, ("auto",)),
    # fp32 whose planes fill the workspace many times
    "slabs": Suite((Case(32768, 32768, 32768),), ("auto",)),
    "bf16": Suite(tuple(Case(m, n, k, "bfloat16") for m, n, k in _BF16_SHAPES), ("auto", "sm90")),
    "16bit": Suite(_16BIT, ("auto", "sm90")),
    "int8": Suite(_INT8, ("auto", "sm90")),
    "fp8": Suite(_FP8, ("auto", "sm90")),
    "unseen": Suite(_UNSEEN, ("auto", "sm90")),
    "survey": Suite(_survey(_KINDS, 12, 2041), ("auto", "sm90")),
    "flat": Suite(_FLAT, ("auto", "sm90")),
    "pitches": Suite(_survey(_PITCH_KINDS, 20, 2047, 3e11), ("auto", "sm90")),
    "small": Suite(_survey(_SMALL_KINDS, 12, 2039), ("auto", "sm90", "direct")),
    "mixed_products": Suite(_MIXED, ("auto", "sm90", "direct")),
    "unseen_fp32": Suite(tuple(replace(case, dtype="float32") for case in _UNSEEN[::3]), ("auto", "simt")),
    **RULES,
}
