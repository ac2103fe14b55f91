"""The direct kernel: every tile with every number of warps, and what lies around its operands."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from cases import LAYOUTS, SHORT_ACTIVATIONS
from oracle import Product, check_all, check_special_values, random, run_all

from jaxgemm.choice.resolve import candidates, check
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import H200, UnsupportedError, find_kernel
from jaxgemm.problem import plan

ROW = find_kernel("direct")
OPTIONS = list(itertools.product(*(values[1:] for values in ROW.options.values())))
#: Chunks of k that are whole, cut, fewer than warps, and more than a warp has on their way; rows of every alignment.
SHAPES = ((16, 32, 32), (40, 72, 64), (33, 65, 31), (17, 31, 257), (100, 57, 192), (96, 250, 160), (64, 40, 1000))
SHAPES += ((5, 9, 3), (31, 33, 1029), (130, 8, 520))
#: More blocks than run at a time, whose warps have fewer chunks on their way.
MANY = ((600, 264, 328), (600, 259, 331))


def options(tile, warps):
    return dict(zip(ROW.options, (tile, warps), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize(("tile", "warps"), OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_and_warps(tile, warps, layout, rng):
    for types in ROW.types:
        products = [Product.random(rng, shape, types, layout) for shape in SHAPES + MANY]
        check_all(products, "direct", **options(tile, warps))


@pytest.mark.gpu
@pytest.mark.parametrize(("tile", "warps"), OPTIONS)
def test_with_all_else(tile, warps, rng):
    epilogue = {"alpha": 0.5, "beta": 2.0, "bias": True, "activation": "gelu"}
    for types in ROW.types:
        products = [Product.random(rng, shape, types, "NT", **epilogue) for shape in SHAPES]
        products += [Product.random(rng, (40, 72, 96), types, "TN", ((2, 3), (3,)), bias=True)]
        products += [Product.random(rng, (33, 65, 31), types, "NN", ((5,), (5,)), activation="relu")]
        check_all(products, "direct", **options(tile, warps))


@pytest.mark.gpu
@pytest.mark.parametrize("activation", [None, "relu", *SHORT_ACTIVATIONS])
def test_usual_activations(activation, rng):
    """Where results are stored in fours these have code of their own, with a bias and without."""
    for types, bias in itertools.product(ROW.types, (True, False)):
        epilogue = {"alpha": -0.75, "bias": bias, "activation": activation}
        products = [Product.random(rng, shape, types, "NN", **epilogue) for shape in ((40, 36, 64), (130, 260, 1029))]
        products += [Product.random(rng, shape, types, "TT", **epilogue) for shape in ((3, 4, 5), (33, 68, 200))]
        products += [Product.random(rng, (40, 76, 96), types, "NT", ((2, 3), (3,)), **epilogue)]
        for warps in ROW.options["warps"][1:]:
            check_all(products, "direct", warps=warps)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", ROW.options["tile"][1:])
def test_special_values_stay_where_they_are(tile, rng):
    """What lies behind the end of a line is the next line's, and is loaded with it where lines are not aligned."""
    for shape in ((40, 72, 64), (33, 65, 31), (41, 67, 257)):
        check_special_values(rng, shape, ROW.types[0], "direct", tile=tile)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NN", "TN"])
def test_rows_have_the_same_bits_in_any_number(layout, rng):
    """Also where the operand's alignment, and so the code, follows that number."""
    a, b = random(rng, (96, 520), "bfloat16"), random(rng, (520, 136), "bfloat16")
    for tile in ROW.options["tile"]:
        products = []
        for m in (1, 2, 8, 15, 16, 17, 32, 33, 64, 96):
            rows = a[:m] if layout == "NN" else np.ascontiguousarray(a[:m].T)
            products.append(Product(rows, b, layout, "bfloat16"))
        *some, whole = run_all(products, "direct", tile=tile, warps=8)
        for part in some:
            assert part.tobytes() == whole[: len(part)].tobytes()


@pytest.mark.skipif(not ROW.built, reason="this build has no such kernel")
def test_limits_and_candidates():
    view = plan((64, 96), (96, 72), (((1,), (0,)), ((), ())))
    problem = view.problem(ROW.types[0][:3], Epilogue())
    assert check(ROW, (0, 0), problem, H200)[0] == ""
    for beyond, limit in (
        (replace(problem, m=1 << 21), "65535 rows of tiles"),
        (replace(problem, batch=(1, 1 << 16)), "2^16"),
        (replace(problem, m=1 << 20, batch=(1, 1 << 12)), "2^31"),
    ):
        reason = check(ROW, (0, 0), beyond, H200)[0]
        assert reason.startswith("kernel 'direct': ")
        assert limit in reason
    every = candidates(ROW, (0, 0), problem, H200)
    assert sorted(one.config for one in every) == sorted(OPTIONS)
    assert [one.microseconds for one in every] == sorted(one.microseconds for one in every)
    (kept,) = candidates(ROW, (2, 4), problem, H200)
    assert kept.config == (2, 4)


@pytest.mark.gpu
def test_more_rows_of_tiles_than_a_grid_counts():
    """The smaller tile would need more of them, so it gives way; asked for, it is refused."""
    m = 16 * 65535 + 1
    a = jnp.ones((m, 8), jnp.bfloat16).at[-1].set(2)
    product = Product(np.asarray(a), np.ones((8, 8), a.dtype), out="bfloat16")
    with pytest.raises(UnsupportedError, match="65535 rows of tiles"):
        product.run("direct", tile=1)
    d = np.asarray(product.run("direct"), np.float32)
    assert (d[:-1] == 8).all()
    assert (d[-1] == 16).all()
