"""sm90 on an operand of unaligned rows that is realigned on its way, instead of a copy of it."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
from oracle import Product, check_all, check_repeats, check_special_values, with_options

import jaxgemm
from jaxgemm.kernels import find_kernel

ROW = find_kernel("sm90")
BF16, F16 = (next(types for types in ROW.types if types[0] == types[2] == name) for name in ("bfloat16", "float16"))
TILES = ((64, 64), (64, 128), (128, 128))
#: Rows begin at every place in a vector, and end anywhere: several tiles, steps and waves, or less than one.
SHAPES = ((131, 517, 203), (5, 16411, 67), (1031, 1049, 1291), (3, 5, 7))


def options(tile, swap=1, **others):
    return {"tile_m": tile[0], "tile_n": tile[1], "swap": swap, "unaligned": 2, **others}


def products(rng, shape, layouts=("NN", "NT", "TN", "TT"), types=BF16, **keywords):
    return [Product.random(rng, shape, types, layout, **keywords) for layout in layouts]


def columns_or_rows(shape, swap):
    return shape if swap == 1 else (shape[1], shape[0], shape[2])


@pytest.mark.gpu
@pytest.mark.parametrize("swap", [1, 2])
@pytest.mark.parametrize("tile", TILES)
def test_layouts(tile, swap, rng):
    every = [p for shape in SHAPES for p in products(rng, columns_or_rows(shape, swap))]
    check_all(every, "sm90", **options(tile, swap))


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES)
def test_pitches(tile, rng):
    """By how much rows differ in where they begin: by any even number, by nothing, and by all."""
    every = []
    for n in (1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008):
        every += products(rng, (40, n, 200), ("NN", "TN")) + products(rng, (40, 200, n), ("NT", "TT"))
    check_all(every, "sm90", **options(tile))


@pytest.mark.gpu
@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize("tile", TILES)
def test_lines(tile, along_k, rng):
    """Lines come by eights: any number of them, of a tile and of less than eight."""
    every = []
    for lines in (*range(1, 9), *range(257, 264)):
        shape, layouts = ((40, lines, 203), ("NT", "TT")) if along_k else ((40, 203, lines), ("NN", "TN"))
        every += products(rng, shape, layouts)
    check_all(every, "sm90", **options(tile))


@pytest.mark.gpu
@pytest.mark.parametrize("types", [BF16, F16], ids=lambda types: types[0])
def test_epilogues(types, rng):
    epilogues = ({"bias": True}, {"bias": True, "activation": "gelu", "alpha": 0.5}, {"beta": -0.5}, {"alpha": 2.0})
    every = []
    for tile, epilogue in itertools.product(TILES, epilogues):
        # Results of unaligned rows, and of aligned ones.
        given = products(rng, (70, 261, 136), ("NN", "TN"), types, **epilogue)
        given += products(rng, (70, 264, 131), ("NT", "TT"), types, **epilogue)
        every += with_options(given, **options(tile))
    single = next(row for row in ROW.types if row[0] == types[0] and row[2] == "float32")
    check_all([*every, *with_options(products(rng, (70, 261, 131), types=single), **options(TILES[1]))], "sm90")


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES)
def test_batches(tile, rng):
    """Products begin at vectors: k is a multiple of 8 for the one operand, and n for the other."""
    for batches in (((5,), (5,)), ((3, 1), (1, 4)), ((6,), ())):
        nn = Product.random(rng, (70, 261, 136), BF16, "NN", batches)
        nt = Product.random(rng, (70, 264, 131), BF16, "NT", batches)
        check_all([nn, nt], "sm90", **options(tile))


@pytest.mark.gpu
def test_splits_and_grids(rng):
    every = []
    for tile, split_k in itertools.product(TILES, (2, 3, 5)):
        every += with_options(products(rng, (33, 261, 1291), ("NN", "NT")), **options(tile, split_k=split_k))
    check_all(every, "sm90")
    for grid, height in itertools.product((1, 2), (1, 2, 8)):
        shape = (519, 4099, 333)
        check_all(products(rng, shape, ("NN",)), "sm90", **options(TILES[1], grid=grid, walk_height=height))


@pytest.mark.gpu
@pytest.mark.parametrize("swap", [1, 2])
@pytest.mark.parametrize("tile", TILES)
def test_special_values_stay_where_they_are(tile, swap, rng):
    """What lies behind a row's end, or in another row, must not reach its products."""
    check_special_values(rng, (515, 1031, 2051), BF16, "sm90", **options(tile, swap))


@pytest.mark.gpu
def test_the_same_bits_as_of_copies(rng):
    """What becomes of an operand's rows changes nothing, and nothing changes from run to run."""
    product = Product.random(rng, (200, 5003, 1027), BF16)
    tile = options(TILES[1])
    copied = product.run("sm90", **(tile | {"unaligned": 1}))
    for _ in range(4):
        assert product.run("sm90", **tile).tobytes() == copied.tobytes()
    check_repeats(Product.random(rng, (16, 30001, 512), BF16), "auto")


def chosen(m, n, k, layout="NN", **keywords):
    """The kernel and its options, if it has any."""
    a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((m, k), (n, k) if layout == "NT" else (k, n)))
    choice = jaxgemm.explain(a, b, platform="cuda", transpose_b=layout == "NT", **keywords).products[0].decision.choice
    return choice.kernel and choice.kernel.name, dict(zip(choice.kernel.options, choice.config, strict=False))


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
def test_when_rows_are_realigned():
    """By the model, large weights for few rows are, of which a copy would take longer than the product."""
    for m in (1, 8, 64, 128):
        kernel, config = chosen(m, 50257, 768)
        assert (kernel, config["unaligned"], config["swap"]) == ("sm90", 2, 1)
    for shape in ((4096, 4095, 4097), (64, 50256, 768)):
        assert chosen(*shape, kernel="sm90")[1]["unaligned"] == 1
    for n in (4096, 4095):
        assert chosen(64, n, 12001, layout="NT", kernel="sm90")[1]["unaligned"] == 2


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
def test_products_of_a_batch_begin_at_vectors():
    a, b = jax.ShapeDtypeStruct((3, 63, 131), jnp.bfloat16), jax.ShapeDtypeStruct((3, 131, 261), jnp.bfloat16)
    with pytest.raises(jaxgemm.UnsupportedError, match="no tile configuration"):
        jaxgemm.explain(a, b, platform="cuda", kernel="sm90", unaligned=2)
