"""sm90 on operands and results whose rows begin anywhere: copies of the one, and vectors made of two for the other."""

from __future__ import annotations

import itertools

import pytest
from oracle import Product, check_all, check_repeats, check_special_values, with_options

from jaxgemm.kernels import find_kernel

ROW = find_kernel("sm90")
TYPES = next(types for types in ROW.types if types[0] == types[2] == "bfloat16")
TILE = {"tile_m": 128, "tile_n": 192, "schedule": 1}
#: Rows begin at every place in a vector, and end anywhere.
SHAPES = ((515, 1031, 2051), (1027, 521, 1291), (300, 2049, 1025))


def products(rng, shape, layouts=("NN", "NT", "TN", "TT")):
    return [Product.random(rng, shape, TYPES, layout) for layout in layouts]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_layouts(shape, rng):
    every = with_options(products(rng, shape), **TILE) + with_options(products(rng, shape), **TILE, swap=2)
    every += with_options(products(rng, shape, ("NN", "TT")), tile_m=128, tile_n=128, unaligned=1)
    check_all(every, "sm90")


@pytest.mark.gpu
def test_one_operand_unaligned(rng):
    check_all(products(rng, (1031, 1032, 2048)) + products(rng, (1032, 1031, 2048)), "sm90", **TILE)


@pytest.mark.gpu
def test_large_copies(rng):
    """So much to copy that a thread has two vectors."""
    check_all(products(rng, (40, 4099, 4101), ("NN", "NT")), "sm90")


@pytest.mark.gpu
def test_splits_clusters_and_grids(rng):
    every = []
    for split_k, cluster in itertools.product((1, 2, 3, 5), ((1, 1), (2, 1), (2, 2))):
        options = TILE | {"split_k": split_k, "cluster_m": cluster[0], "cluster_n": cluster[1]}
        every += with_options(products(rng, SHAPES[0], ("NN", "NT")), **options)
    check_all(every, "sm90")
    for grid in (1, 2):
        check_all(products(rng, (2051, 4099, 1033), ("NN",)), "sm90", **TILE, grid=grid)


@pytest.mark.gpu
@pytest.mark.parametrize(("tile_m", "tile_n"), [*((64, n) for n in (16, 32, 64, 96, 128, 192)), (128, 256)])
def test_every_width(tile_m, tile_n, rng):
    """Rows of results that end anywhere in a strip, and from a batch's second product on begin anywhere in a vector."""
    widths = (1, 3, 7, 8, 9, 17, 33, 63, 65, tile_n - 1, tile_n + 1, tile_n + 7, 2 * tile_n + 5)
    check_all(
        [Product.random(rng, (67, n, 40), TYPES, "NT", ((3,), (3,))) for n in sorted(set(widths))],
        "sm90",
        tile_m=tile_m,
        tile_n=tile_n,
    )


@pytest.mark.gpu
def test_special_values_stay_where_they_are(rng):
    """What lies behind a row's end, or in another row, must not reach its products."""
    check_special_values(rng, SHAPES[0], TYPES, "sm90", **TILE)


@pytest.mark.gpu
def test_repeats_bit_for_bit(rng):
    check_repeats(Product.random(rng, (2047, 2049, 2051), TYPES), "sm90")
