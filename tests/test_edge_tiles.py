"""sm90's narrow tiles: a last column of tiles that multiplies only the columns it has."""

from __future__ import annotations

import itertools

import pytest
from oracle import Product, check_all

from jaxgemm.kernels import find_kernel

ROW = find_kernel("sm90")
TYPES = next(types for types in ROW.types if types[0] == types[2] == "bfloat16")
#: The tiles wide enough to have a narrow form, as ffi/cuda/sm90/configs.h has them.
TILES = [(128, n) for n in (96, 128, 160, 192, 224, 256)]
TILES += [(64, n) for n in (96, 128, 192, 256)] + [(192, 160), (192, 192)]


def products(rng, edge, swap, layouts=("NN", "NT", "TN")):
    """Widths of one tile and a little, on the side that rides the tile's columns, and heights of more than one tile."""
    high, wide = 200, edge
    shape = (wide, high, 96) if swap == 2 else (high, wide, 96)
    return [Product.random(rng, shape, TYPES, layout) for layout in layouts]


@pytest.mark.gpu
@pytest.mark.parametrize(("tile_m", "tile_n"), TILES)
def test_narrow_columns(tile_m, tile_n, rng):
    for swap, rest in itertools.product((1, 2), (1, 40, 64)):
        for clusters in ((1, 1), (2, 1), (1, 2), (4, 2), (2, 4)):
            if tile_n % (8 * clusters[0]):
                continue  # not whole periods of the swizzle
            options = {"tile_m": tile_m, "tile_n": tile_n, "swap": swap}
            options |= {"cluster_m": clusters[0], "cluster_n": clusters[1]}
            check_all(products(rng, 2 * tile_n + rest, swap, ("NT",) if rest == 40 else ("NN",)), "sm90", **options)


@pytest.mark.gpu
def test_narrow_columns_with_all_else(rng):
    """Split along k, batched, with an epilogue, alone in the product, and more tiles than the machine has blocks."""
    tile = {"tile_m": 128, "tile_n": 256}
    check_all(products(rng, 300, 1), "sm90", **tile, split_k=2)
    check_all(products(rng, 24, 1), "sm90", **tile)
    batches = [Product.random(rng, (130, 264, 72), TYPES, layout, ((3,), (3,))) for layout in ("NN", "TT")]
    check_all(batches, "sm90", **tile)
    epilogue = {"alpha": 0.5, "beta": 2.0, "bias": True, "activation": "gelu"}
    check_all([Product.random(rng, (130, 261, 72), TYPES, **epilogue)], "sm90", **tile)
    for shape in ((2049, 2049, 64), (129, 20000, 40), (20000, 129, 40)):
        check_all([Product.random(rng, shape, TYPES)], "sm90", **tile)
