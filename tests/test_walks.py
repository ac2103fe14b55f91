"""sm90's walks over the tiles: any order computes every tile once, with the same bits."""

from __future__ import annotations

import itertools

import pytest
from oracle import Product, run_all

from jaxgemm.kernels import find_kernel

ROW = find_kernel("sm90")
TYPES = next(types for types in ROW.types if types[0] == types[2] == "bfloat16")
TILE = {"tile_m": 64, "tile_n": 128, "cluster_m": 1, "cluster_n": 1, "swap": 1}
#: The columns first, groups that divide the rows of tiles or do not, the rows first, and what the model chooses.
GROUPS = (1, 2, 3, 8, 1 << 30, 0)
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
    found = [run_all(products, "sm90", **{**TILE, **more}, group=group) for group in GROUPS]
    for product, result in zip(products, found[0], strict=True):
        product.check(result, "sm90")
    for results, i in itertools.product(found[1:], range(len(products))):
        assert results[i].tobytes() == found[0][i].tobytes()
