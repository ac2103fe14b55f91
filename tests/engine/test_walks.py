"""sm90's walks over the tiles: any order computes every tile once, with the same bits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from oracle import Product, run_all

from jaxgemm.choice.resolve import candidates
from jaxgemm.kernels import H200, configuration, find_kernel
from jaxgemm.measure.case import Case

ROW = find_kernel("sm90")
TYPES = next(types for types in ROW.types if types[0] == types[2] == "bfloat16")
TILE = {"tile_m": 64, "tile_n": 128, "cluster_m": 1, "cluster_n": 1, "swap": 1}
#: The columns first, heights that divide the rows of tiles or do not, the rows first, and what the model chooses.
HEIGHTS = (1, 2, 3, 8, 1 << 30, 0)
CASES = {
    "one wave": ((520, 650, 104), {}),
    "one wave, transposed": ((520, 650, 104), {"swap": 2}),
    "one wave of partial results": ((520, 260, 520), {"split_k": 3}),
    "one wave, two blocks at a time": ((520, 650, 104), {"blocks": 2, "tile_n": 32}),
    "several waves": ((1300, 2600, 72), {}),
    "several waves of a grid of tiles": ((1300, 2600, 72), {"grid": 2}),
    "clusters": ((1300, 2600, 72), {"cluster_m": 2, "cluster_n": 2}),
    "clusters that share sums": ((520, 650, 520), {"tile_n": 32, "split_k": 4, "reduction": 2}),
    "one column": ((1300, 72, 72), {}),
    "one row": ((40, 1300, 72), {}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_every_walk_computes_every_tile(case, rng):
    shape, more = CASES[case]
    products = [Product.random(rng, shape, TYPES, layout) for layout in ("NN", "TT")]
    products += [Product.random(rng, shape, TYPES, "NT", ((3,), (1,)))]
    found = [run_all(products, "sm90", **{**TILE, **more}, walk_height=height) for height in HEIGHTS]
    for product, result in zip(products, found[0], strict=True):
        product.check(result, "sm90")
    for results, i in itertools.product(found[1:], range(len(products))):
        assert results[i].tobytes() == found[0][i].tobytes()


def expected(benchmark_script, case, device=H200, **options):
    """Microseconds by the model, of the best configuration with these options."""
    config = configuration(ROW, tuple(options.items()))
    return candidates(ROW, config, benchmark_script("tune").problem_of(case), device)[0].microseconds


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
def test_the_model_knows_what_blocks_of_a_gpc_ask_for_alike(benchmark_script):
    """Of 16 such, 16 rows by one column load more than 8 by two; a cluster of two columns loads their row once."""
    case = Case(3328, 9088, 2240, "bfloat16")
    tile = {"tile_m": 128, "tile_n": 128, "schedule": 2, "swap": 1}
    alone, both = ({"cluster_m": 1, "cluster_n": n} for n in (1, 2))
    tall, square = (expected(benchmark_script, case, **tile, **alone, walk_height=height) for height in (26, 8))
    assert square < 0.95 * tall
    assert expected(benchmark_script, case, **tile, **both, walk_height=26) < tall


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
def test_the_model_asks_how_fast_memory_is(benchmark_script):
    half, unknown = (replace(H200, bandwidth=bandwidth) for bandwidth in (H200.bandwidth / 2, 0.0))
    few, many = Case(16, 8192, 8192, "bfloat16"), Case(4096, 4096, 4096, "bfloat16")
    times = {device: [expected(benchmark_script, case, device) for case in (few, many)] for device in (H200, half)}
    assert times[half][0] > 1.5 * times[H200][0]
    assert times[half][1] < 1.2 * times[H200][1]
    assert [expected(benchmark_script, case, unknown) for case in (few, many)] == times[H200]


@pytest.mark.skipif(not ROW.built, reason="needs the CUDA kernels")
@pytest.mark.parametrize(("n", "large"), [(8832, False), (8792, True)])
def test_blocks_of_large_tiles_share_what_takes_long_to_load(benchmark_script, n, large):
    """More than two of them only where rows straddle lines of L2: they load little for what they multiply."""
    ranked = candidates(ROW, (), benchmark_script("tune").problem_of(Case(896, n, 5696, "bfloat16")), H200)
    given = [dict(zip(ROW.options, x.config, strict=True)) for x in ranked]
    sharing = [x for x in given if x["tile_m"] * x["tile_n"] > 128 * 128 and x["cluster_m"] * x["cluster_n"] > 2]
    assert bool(sharing) == large
