"""The suites that run.py knows: products by name, with the kernels of ours that are measured on them."""

from __future__ import annotations

from dataclasses import dataclass

from jaxgemm.case import Case


@dataclass(frozen=True)
class Suite:
    """A list of products.

    Attributes:
        cases: what is measured, in order.
        kernels: measured on a GPU unless others are asked for; those that the table lacks are left out.
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

SUITES: dict[str, Suite] = {
    "smoke": Suite((Case(32, 24, 40), Case(17, 19, 23, layout="TT"), Case(8, 8, 8, batch=3)), ("auto",)),
    "sgemm": Suite(_SGEMM, ("auto", "simt")),
    "bf16": Suite(tuple(Case(m, n, k, "bfloat16") for m, n, k in _BF16_SHAPES), ("auto",)),
}
