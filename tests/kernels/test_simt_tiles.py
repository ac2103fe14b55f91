"""Every tile of simt, with every way of copying operands and of finishing results."""

from __future__ import annotations

import jax
import pytest
from oracle import Product, check_all

import jaxgemm
from jaxgemm.kernels import find_kernel

ROW = find_kernel("simt")
#: How many tiles there are, by the type of the operands.
TILES = {"float32": 10, "float64": 2, "float16": 2, "bfloat16": 2}
LAYOUTS = ("NN", "NT", "TN", "TT")
#: Rows that begin anywhere, and rows of whole vectors; too small for copies of the operands to pay.
SHAPES = ((69, 67, 83), (72, 68, 84))


@pytest.mark.skipif(not ROW.built, reason="this build has no CUDA kernels")
@pytest.mark.parametrize("dtype", TILES)
def test_there_are_no_others(dtype):
    operand = jax.ShapeDtypeStruct((64, 64), dtype)
    f = jax.jit(lambda a, b: jaxgemm.gemm(a, b, kernel="simt", tile=TILES[dtype] + 1))
    with pytest.raises(jaxgemm.UnsupportedError, match=f"have tiles 1 to {TILES[dtype]}$"):
        f.trace(operand, operand).lower(lowering_platforms=("cuda",))


@pytest.mark.gpu
@pytest.mark.parametrize("tile", range(1, TILES["float32"] + 1))
def test_copies(tile, rng):
    types = next(types for types in ROW.types if types[0] == "float32")
    check_all([Product.random(rng, s, types, layout) for s in SHAPES for layout in LAYOUTS], "simt", tile=tile)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", [1, 2])
@pytest.mark.parametrize("types", [types for types in ROW.types if types[0] != "float32"], ids="-".join)
def test_results(types, tile, rng):
    """One kernel has results of either width, and one adds up the parts of all sums in f32."""
    check_all(
        [
            Product.random(rng, (69, 67, 1051), types, "NN"),
            Product.random(rng, (72, 64, 1056), types, "TT", bias=True, alpha=-0.5, beta=1.5),
            Product.random(rng, (201, 187, 29), types, "TN", bias=True, activation="gelu"),
            Product.random(rng, (256, 192, 32), types, "NT"),
        ],
        "simt",
        tile=tile,
    )
