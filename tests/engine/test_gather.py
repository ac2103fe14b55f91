"""sm90's sums that the blocks of a cluster share, a slice of K each."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from oracle import Product, check_all, with_options

from jaxgemm.choice.resolve import check
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import H200, find_kernel
from jaxgemm.problem import plan

ROW = find_kernel("sm90")
TYPES = next(types for types in ROW.types if types[0] == types[2] == "bfloat16")
FP32 = next(types for types in ROW.types if types[0] == "bfloat16" and types[2] == "float32")
#: The tiles that are shared so: what is sent must fit the staging buffers.
TILES = [(64, 16), (64, 32), (64, 64)]
CASES = [(*tile, slices) for tile in TILES for slices in (2, 4, 8)]
#: Sums of which every slice has a few steps, or one, or not the same number; aligned rows and others.
SHAPES = ((64, 64, 512), (100, 200, 1000), (65, 131, 4099), (300, 2056, 640), (1, 24, 520))


def options(tile_m, tile_n, slices, swap=0):
    return {"tile_m": tile_m, "tile_n": tile_n, "split_k": slices, "reduction": 2, "swap": swap}


@pytest.mark.gpu
@pytest.mark.parametrize(("tile_m", "tile_n", "slices"), CASES)
def test_sums(tile_m, tile_n, slices, rng):
    every = []
    for swap in (1, 2):
        products = [Product.random(rng, s, TYPES, layout) for s in SHAPES for layout in ("NN", "NT", "TN")]
        every += with_options(products, **options(tile_m, tile_n, slices, swap))
    check_all(every, "sm90")


@pytest.mark.gpu
@pytest.mark.parametrize(("tile_m", "tile_n", "slices"), CASES)
def test_with_all_else(tile_m, tile_n, slices, rng):
    """The epilogue runs once, on whole sums, which no result of 16 bits has rounded before."""
    chosen = options(tile_m, tile_n, slices)
    epilogue = {"alpha": 0.5, "beta": 2.0, "bias": True, "activation": "gelu"}
    every = [Product.random(rng, s, TYPES, "NT", **epilogue) for s in SHAPES]
    every += [Product.random(rng, s, TYPES, bias=True, activation="silu") for s in SHAPES]
    every += [Product.random(rng, s, FP32, "TT") for s in SHAPES]
    every += [Product.random(rng, (130, 72, 1032), TYPES, "NN", ((3,), ())) for _ in range(2)]
    check_all(every, "sm90", **chosen)


@pytest.mark.gpu
@pytest.mark.parametrize(("tile_m", "tile_n", "slices"), CASES)
def test_bits(tile_m, tile_n, slices, rng):
    """Slices are added in their order, as partial results in memory are: the same bits, and in every run."""
    for shape, swap in itertools.product(((100, 200, 4104), (64, 1032, 1096)), (1, 2)):
        product = Product.random(rng, shape, FP32)
        first, *others = (product.run("sm90", **options(tile_m, tile_n, slices, swap)) for _ in range(8))
        in_memory = product.run("sm90", **(options(tile_m, tile_n, slices, swap) | {"reduction": 1}))
        for other in (*others, in_memory):
            np.testing.assert_array_equal(first.view(np.int32), other.view(np.int32))


@pytest.mark.gpu
def test_more_clusters_than_run_at_a_time(rng):
    check_all([Product.random(rng, (2100, 1100, 648), TYPES)], "sm90", **options(64, 64, 8))


@pytest.mark.skipif(not ROW.built, reason="this build has no such kernel")
def test_what_a_cluster_cannot_share_is_said():
    view = plan((64, 4096), (4096, 64), (((1,), (0,)), ((), ())))
    problem = view.problem(TYPES[:3], Epilogue())
    sound = options(64, 64, 4)
    for changed, refused in (
        ({"split_k": 3}, True),  # not a power of two
        ({"tile_n": 128}, True),  # wider than what is shared
        ({"cluster_m": 2}, True),  # blocks that share loads
        ({"grid": 1}, True),  # several tiles a block
        ({"reduction": 1, "split_k": 3}, False),
        ({}, False),
    ):
        values = tuple((sound | changed).get(name, 0) for name in ROW.options)
        refusal = check(ROW, values, problem, H200)[0]
        assert refusal.startswith("no tile configuration matches the options") if refused else refusal == ""
