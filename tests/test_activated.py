"""sm90's epilogue for a bias and an activation alone, which every tile has beside the one that does everything."""

from __future__ import annotations

import itertools

import pytest
from oracle import Product, check_all, check_repeats

from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import H200, find_kernel
from jaxgemm.problem import Problem, plan
from jaxgemm.select import candidates

ROW = find_kernel("sm90")
BF16, F16 = (next(types for types in ROW.types if types[0] == types[2] == name) for name in ("bfloat16", "float16"))
EPILOGUES = (
    {"bias": True},
    {"bias": True, "activation": "gelu", "alpha": 0.5},
    {"activation": "silu"},
    {"bias": True, "activation": "relu", "alpha": -1.5},
)


def tiles():
    """tile_m, tile_n and schedule of every tile there is: a product this large may have any."""
    if not ROW.built:
        return []
    view = plan((4096, 4096), (4096, 4096), (((1,), (0,)), ((), ())))
    problem = Problem(view.m, view.n, view.k, view.batch, view.a, view.b, BF16[:3], Epilogue())
    found = candidates(ROW, (), problem, H200)
    return sorted({candidate.config[:3] for candidate in found})


@pytest.mark.gpu
@pytest.mark.parametrize("swap", [1, 2])
@pytest.mark.parametrize(("tile_m", "tile_n", "schedule"), tiles())
def test_every_tile(tile_m, tile_n, schedule, swap, rng):
    """Ragged in the tile's rows and columns, one step along k and several; columns of D in whole vectors."""
    options = {"tile_m": tile_m, "tile_n": tile_n, "schedule": schedule, "swap": swap}
    rows, cols = (2 * tile_m + 24, 2 * tile_n + 40)
    m, n = (cols + 3, rows) if swap == 2 else (rows + 3, cols)
    for epilogue, k in itertools.product(EPILOGUES, (40, 200)):
        products = [Product.random(rng, (m, n, k), BF16, layout, **epilogue) for layout in ("NN", "TT")]
        check_all(products, "sm90", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("types", [BF16, F16], ids=lambda types: types[0])
def test_several_tiles_a_block(types, rng):
    """A block's later tiles have another bias, and take turns with it where they are ping-pong ones."""
    for schedule, cluster in itertools.product((1, 2), ((1, 1), (2, 1), (1, 2))):
        options = {"tile_m": 128, "tile_n": 128, "schedule": schedule}
        options |= {"cluster_m": cluster[0], "cluster_n": cluster[1]}
        product = Product.random(rng, (2500, 2504, 96), types, bias=True, activation="gelu")
        check_all([product], "sm90", **options)


@pytest.mark.gpu
def test_batches(rng):
    """One bias for all products of a batch."""
    for schedule, swap in itertools.product((1, 2), (1, 2)):
        products = [Product.random(rng, (200, 264, 72), BF16, "NN", ((3,), (3,)), bias=True, activation="silu")]
        check_all(products, "sm90", tile_m=128, tile_n=128, schedule=schedule, swap=swap)


@pytest.mark.gpu
def test_same_bits_every_time(rng):
    check_repeats(Product.random(rng, (1280, 2048, 128), BF16, bias=True, activation="gelu"), "sm90")
