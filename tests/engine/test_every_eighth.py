"""sm90 on tiles of every eighth row of A, which is loaded where it lies although its rows begin anywhere."""

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
TILES = ((128, 256), (128, 128), (64, 192))


def options(tile, **others):
    return {"tile_m": tile[0], "tile_n": tile[1], "every_eighth": 2, **others}


def products(rng, shapes, types=BF16, **keywords):
    return [Product.random(rng, shape, types, **keywords) for shape in shapes]


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES)
def test_shapes(tile, rng):
    """Rows begin at every place in a vector; several tiles, steps and waves, or less than one."""
    shapes = ((131, 517, 203), (2050, 1031, 1291), (1031, 4099, 133), (8200, 264, 67), (3, 5, 7), (1, 300, 77))
    check_all(products(rng, shapes), "sm90", **options(tile))


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES)
def test_pitches(tile, rng):
    """By how much rows differ in where they begin: in a vector, a sector or a line of L2, or not at all."""
    pitches = (*range(1001, 1009), 1016, 1024, 1032, 1040, 1056, 1120)
    check_all(products(rng, [(300, 264, k) for k in pitches]), "sm90", **options(tile))


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES)
def test_steps(tile, rng):
    """Sums end anywhere in a step, and begin before one; of one step, or less, too."""
    lengths = (*range(2, 10), *range(55, 74), *range(120, 131), 136, 248, 264)
    check_all(products(rng, [(300, 72, k) for k in lengths]), "sm90", **options(tile))


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES)
def test_rows(tile, rng):
    """Rows come by eights, and those by tiles: any number of them."""
    counts = (*range(1, 18), *range(507, 518), *range(1020, 1030), *range(2044, 2054))
    # The copy engine writes the results of 72 columns.
    check_all(products(rng, [(m, n, 131) for n in (70, 72) for m in counts]), "sm90", **options(tile))


@pytest.mark.gpu
@pytest.mark.parametrize("types", [BF16, F16], ids=lambda types: types[0])
def test_epilogues(types, rng):
    epilogues = ({"bias": True}, {"bias": True, "activation": "gelu", "alpha": 0.5}, {"beta": -0.5}, {"alpha": 2.0})
    # Results that the copy engine writes, and such as it does not.
    shapes = ((336, 264, 131), (333, 264, 131), (333, 263, 136))
    every = []
    for tile, epilogue in itertools.product(TILES, epilogues):
        every += with_options(products(rng, shapes, types, **epilogue), **options(tile))
    single = next(row for row in ROW.types if row[0] == types[0] and row[2] == "float32")
    check_all([*every, *with_options(products(rng, shapes, single), **options(TILES[1]))], "sm90")


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", [(1, 2), (2, 1), (4, 1), (2, 2), (1, 4), (4, 2)])
def test_clusters(cluster, rng):
    shapes = ((4000, 1100, 205), (4235, 1037, 1036))
    given, every = products(rng, shapes), []
    for tile in TILES:
        every += with_options(given, **options(tile, cluster_m=cluster[0], cluster_n=cluster[1]))
    check_all(every, "sm90")


@pytest.mark.gpu
def test_grids_and_walks(rng):
    given, every = products(rng, ((5519, 2099, 333),)), []
    for grid, height in itertools.product((1, 2), (1, 2, 8)):
        every += with_options(given, **options(TILES[2], grid=grid, walk_height=height))
    check_all(every, "sm90")


@pytest.mark.gpu
@pytest.mark.parametrize("k", [2051, 2056])
@pytest.mark.parametrize("tile", TILES)
def test_special_values_stay_where_they_are(tile, k, rng):
    """What lies before a row, or behind its end, must not reach its products."""
    check_special_values(rng, (515, 1031, k), BF16, "sm90", **options(tile))


@pytest.mark.gpu
def test_the_same_bits_every_time(rng):
    product = Product.random(rng, (2500, 1003, 1027), BF16)
    for tile in TILES:
        first, *others = (product.run("sm90", **options(tile)).tobytes() for _ in range(4))
        assert all(other == first for other in others)
    check_repeats(Product.random(rng, (4097, 2047, 2049), BF16), "sm90")


def chosen(m, n, k, **keywords):
    """The options that kernel sm90 chooses."""
    a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((m, k), (k, n)))
    choice = jaxgemm.explain(a, b, platform="cuda", kernel="sm90", **keywords).products[0].decision.choice
    return dict(zip(choice.kernel.options, choice.config, strict=True))


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
def test_when_tiles_have_every_eighth_row():
    """By the model, where A is large and its rows begin anywhere; there is nothing to gain where they do not."""
    for shape in ((4096, 4096, 4099), (8191, 1000, 515)):
        assert chosen(*shape)["every_eighth"] == 2
    for shape in ((4097, 4095, 4096), (64, 4096, 4099), (4097, 4096, 4096)):
        assert chosen(*shape)["every_eighth"] == 1


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
def test_rows_do_not_change_with_m_where_bits_must_not():
    for m in (64, 4097):
        assert chosen(m, 4096, 4099, batch_invariant=True)["every_eighth"] == 1


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
@pytest.mark.parametrize("options", [{"swap": 2}, {"split_k": 2}, {"unaligned": 2}, {"tile_n": 96}], ids=str)
def test_what_does_not_go_together(options):
    a, b = jax.ShapeDtypeStruct((4097, 4099), jnp.bfloat16), jax.ShapeDtypeStruct((4099, 4096), jnp.bfloat16)
    with pytest.raises(jaxgemm.UnsupportedError, match="no tile configuration"):
        jaxgemm.explain(a, b, platform="cuda", kernel="sm90", every_eighth=2, **options)


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
@pytest.mark.parametrize("transposed", ["transpose_a", "transpose_b"])
def test_other_layouts_have_no_such_tiles(transposed):
    a, b = jax.ShapeDtypeStruct((4097, 4097), jnp.bfloat16), jax.ShapeDtypeStruct((4097, 4097), jnp.bfloat16)
    with pytest.raises(jaxgemm.UnsupportedError, match="no tile configuration"):
        jaxgemm.explain(a, b, platform="cuda", kernel="sm90", every_eighth=2, **{transposed: True})
