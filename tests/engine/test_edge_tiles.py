"""sm90's tiles at the edges of a product: those load what there is, and narrow ones multiply only that."""

from __future__ import annotations

import itertools

import pytest
from cases import LAYOUTS, taken
from oracle import Product, check_all, with_options

from jaxgemm.choice.resolve import candidates
from jaxgemm.kernels import H200, configuration, find_kernel
from jaxgemm.measure.case import Case

ROW = find_kernel("sm90")
TYPES = next(types for types in ROW.types if types[0] == types[2] == "bfloat16")
WIDE = next(types for types in ROW.types if types[0] == "bfloat16" and types[2] == "float32")
#: The tiles wide enough to have a narrow form, as ffi/cuda/sm90/configs.h has them.
TILES = [(128, n) for n in (96, 112, 128, 144, 160, 192, 224, 256)]
TILES += [(64, n) for n in (96, 128, 192)] + [(192, 160)]
#: Some of those, and narrow ones.
CUT = [(64, 16), (64, 64), (64, 192), (128, 96), (128, 112), (128, 144), (128, 224), (128, 256), (192, 160)]
#: Those whose strips of results do not divide them: the last one has columns of the one before too.
OVERLAPPING = [(tile_m, n) for tile_m, n in TILES if n % 32]


def products(rng, edge, swap, layouts=("NN", "NT", "TN")):
    """Widths of one tile and a little, on the side that rides the tile's columns, and heights of more than one tile."""
    high, wide = 200, edge
    shape = (wide, high, 96) if swap == 2 else (high, wide, 96)
    return [Product.random(rng, shape, TYPES, layout) for layout in layouts]


@pytest.mark.gpu
@pytest.mark.parametrize(("tile_m", "tile_n"), TILES)
def test_narrow_columns(tile_m, tile_n, rng):
    every = []
    for swap, rest in itertools.product((1, 2), (1, 40, 64)):
        for clusters in ((1, 1), (2, 1), (1, 2), (4, 2), (2, 4)):
            if tile_n % (8 * clusters[0]):
                continue  # not whole periods of the swizzle
            options = {"tile_m": tile_m, "tile_n": tile_n, "swap": swap}
            options |= {"cluster_m": clusters[0], "cluster_n": clusters[1]}
            layouts = taken(("NT",) if rest == 40 else ("NN", "NT"), tile_n, swap)
            every += with_options(products(rng, 2 * tile_n + rest, swap, layouts[:1]), **options)
    check_all(every, "sm90")


@pytest.mark.gpu
def test_narrow_columns_with_all_else(rng):
    """Split along k, batched, with an epilogue, alone in the product, and more tiles than the machine has blocks."""
    tile = {"tile_m": 128, "tile_n": 256}
    every = products(rng, 24, 1)
    every += [Product.random(rng, (130, 264, 72), TYPES, layout, ((3,), (3,))) for layout in ("NN", "TT")]
    epilogue = {"alpha": 0.5, "beta": 2.0, "bias": True, "activation": "gelu"}
    every += [Product.random(rng, (130, 261, 72), TYPES, **epilogue)]
    every += [Product.random(rng, s, TYPES) for s in ((2049, 2049, 64), (129, 20000, 40), (20000, 129, 40))]
    every = with_options(every, **tile)
    check_all([*every, *with_options(products(rng, 300, 1), **tile, split_k=2)], "sm90")


@pytest.mark.gpu
@pytest.mark.parametrize("grid", [1, 2])
@pytest.mark.parametrize("cluster_m", [1, 2, 4])
@pytest.mark.parametrize(("tile_m", "tile_n", "schedule"), [(128, 192, 1), (128, 128, 2), (64, 192, 2)])
def test_narrow_columns_after_all_others(tile_m, tile_n, schedule, cluster_m, grid, rng):
    """Of 132 blocks those without a tile in the last wave of whole ones get the narrow tiles, or all blocks do."""
    options = {"tile_m": tile_m, "tile_n": tile_n, "schedule": schedule, "grid": grid}
    waves = ((16, 16), (13, 11), (33, 4), (44, 6), (65, 2), (130, 1), (9, 29))  # whole tiles, down and across
    check_all(
        [Product.random(rng, (tile_m * down - 3, tile_n * across + 9, 72), TYPES) for down, across in waves],
        "sm90",
        **options,
        cluster_m=cluster_m,
        cluster_n=1,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("clusters", [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("swap", [1, 2])
@pytest.mark.parametrize(("tile_m", "tile_n"), CUT)
def test_cut_tiles(tile_m, tile_n, swap, clusters, rng):
    """Rows and columns of every layout that fill one tile, or several, but for any part of the last."""
    every = []
    for rows, columns in ((-1, 9), (17, -25), (-56, -1), (40, 33)):
        high, wide = (clusters[0] + 1) * tile_m + rows, (clusters[1] + 1) * tile_n + columns % tile_n
        shape = (wide, high, 136) if swap == 2 else (high, wide, 136)
        options = {"tile_m": tile_m, "tile_n": tile_n, "swap": swap}
        options |= {"cluster_m": clusters[0], "cluster_n": clusters[1]}
        layouts = taken(LAYOUTS, tile_n, swap)
        every += [Product.random(rng, shape, TYPES, layout) for layout in layouts]
    check_all(every, "sm90", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("swap", [1, 2])
@pytest.mark.parametrize(("tile_m", "tile_n"), OVERLAPPING)
def test_strips_that_overlap(tile_m, tile_n, swap, rng):
    """Of whole vectors or not, of 16 bits or fp32, with all that an epilogue adds, in whole tiles and a cut one."""
    options = {"tile_m": tile_m, "tile_n": tile_n, "swap": swap}
    every = []
    for types, epilogue in itertools.product((TYPES, WIDE), ({}, {"bias": True, "activation": "gelu", "beta": 0.5})):
        for columns in (tile_n + 40, 2 * tile_n - 8, 2 * tile_n - 13, 2 * tile_n):
            shape = (columns, 139, 72) if swap == 2 else (139, columns, 72)
            every.append(Product.random(rng, shape, types, "NT", **epilogue))
    check_all(every, "sm90", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 24, 100])
def test_fewer_stages(rows, rng):
    """Of wide weights all blocks together load so much that stages of the ring stay empty: in waves, and split."""
    wide = [Product.random(rng, (rows, 40008, 1000), TYPES, layout) for layout in ("NN", "NT")]
    for options in ({}, {"grid": 2}, {"grid": 1}, {"split_k": 2}, {"cluster_m": 4, "cluster_n": 1}):
        check_all(wide, "sm90", swap=2, **options)
    check_all([Product.random(rng, (rows, 4104, 1000), TYPES, "NN", ((12,), (12,)))], "sm90")


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
@pytest.mark.parametrize("tile_n", [112, 144])
def test_widths_that_want_rows_along_k(benchmark_script, tile_n):
    """Blocks of another operand would straddle lines of L2."""
    for layout, swap in itertools.product(LAYOUTS, (1, 2)):
        problem = benchmark_script("tune").problem_of(Case(1024, 1024, 1024, "bfloat16", layout=layout))
        found = candidates(ROW, configuration(ROW, (("tile_n", tile_n), ("swap", swap))), problem, H200)
        assert bool(found) == (layout in taken(LAYOUTS, tile_n, swap))
