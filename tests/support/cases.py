"""Every shape, batch and layout of the suite, once. Shapes are (m, n, k)."""

import re
from pathlib import Path

from jaxgemm import epilogue

#: Which operands are stored transposed.
LAYOUTS = ("NN", "NT", "TN", "TT")


def taken(layouts: tuple[str, ...], tile_n: int, swap: int) -> list[str]:
    """The layouts that sm90's tiles of so many columns take: some widths want the operand that has these along k."""
    along_k = tile_n > 64 and tile_n % 32 != 0
    return [x for x in layouts if not along_k or (x[0] == "N" if swap == 2 else x[1] == "T")]


#: Around and between the multiples of every tile and vector width.
RAGGED = ((1, 1, 1), (3, 5, 7), (15, 17, 9), (17, 33, 65), (63, 1, 31), (127, 129, 131), (255, 257, 63))

#: One row, one column, or both.
VECTORS = ((1, 300, 40), (300, 1, 40), (1, 1, 513), (1, 257, 1), (130, 1, 1))

#: Whole tiles: the paths without bounds checks.
ALIGNED = ((16, 16, 16), (128, 128, 128), (256, 256, 256), (64, 512, 96))

#: Long sums, where rounding errors add up and where kernels split k.
LARGE_K = ((64, 64, 20000), (5, 3, 4099))

#: Wide or tall, with rows that are not aligned to 16 bytes.
LOPSIDED = ((2, 1027, 70), (1027, 2, 70), (700, 3, 3))

SHAPES = RAGGED + VECTORS + ALIGNED + LARGE_K + LOPSIDED

#: A few of each kind, for products with other parameters.
FEW_SHAPES = ((1, 1, 1), (17, 33, 65), (128, 128, 128), (127, 129, 131))

#: No elements in the result, or none in the sum.
EMPTY = ((0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0), (0, 5, 0), (1, 1, 0))

#: Batch axes of a and b: one and two levels, shared, broadcast one way and both, and ones that need a copy.
BATCHES = (
    ((3,), (3,)),
    ((3,), ()),
    ((), (3,)),
    ((1,), (4,)),
    ((2, 3), (2, 3)),
    ((2, 1), (1, 3)),
    ((1, 3), (2, 1)),
    ((2, 3), (3,)),
    ((3,), (2, 3)),
    ((2, 1, 3), (1, 4, 3)),
    ((2, 3, 2), (2, 1, 2)),
)

#: Batches of no product.
EMPTY_BATCHES = (((0,), (0,)), ((0,), (1,)), ((2, 0), (1, 0)))

#: (alpha, beta): each special value, a fraction and a negative one.
SCALINGS = ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (-0.5, 0.0), (1.75, -2.25), (0.0, 0.0))
INTEGER_SCALINGS = ((1, 0), (1, 1), (0, 1), (-3, 0), (7, -5), (2**31 - 1, -(2**31)))

ACTIVATIONS = tuple(epilogue.ACTIVATIONS)

#: Those for which kernels have code apart from that for all.
_TABLE = (Path(__file__).parents[2] / "ffi/activation.h").read_text()
SHORT_ACTIVATIONS = tuple(re.findall(r'"(\w+)", CodeLength::kShort', _TABLE))

#: What a test gives an option whose row lists no values: any integer from 0 up.
FREE_OPTION_VALUES = (0, 1, 2, 3, 7)


def covering(types: tuple[tuple[str, ...], ...]) -> list[tuple[str, ...]]:
    """A kernel's types (of a, b, d, sums), but of 8-bit floats each pair once, whose results take turns. A pair's types
    differ in how a result is written alone, and test_bytes.py has every one.
    """
    floats = [t for t in types if t[0].startswith("float8")]
    pairs = list(dict.fromkeys(t[:2] for t in floats))
    turns = [[t for t in floats if t[:2] == pair] for pair in pairs]
    kept = {results[i % len(results)] for i, results in enumerate(turns)}
    return [t for t in types if t not in floats or t in kept]


def in_turn(types: tuple[tuple[str, ...], ...], turn: int) -> list[tuple[str, ...]]:
    """For what is tested many times: of 8-bit integers, and of 8-bit floats, one pair each, which take turns."""
    kept = covering(types)
    for kind in ("int8", "uint8"), ("float8_e4m3fn", "float8_e5m2"):
        pairs = [t for t in kept if t[0] in kind]
        kept = [t for t in kept if t not in pairs or t == pairs[turn % len(pairs)]]
    return kept
