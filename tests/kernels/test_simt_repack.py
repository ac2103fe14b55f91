"""simt on operands that it copies first: to rows along m and n, as it multiplies them, of whole vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oracle import Product, check_all, check_repeats, check_special_values

from jaxgemm.choice.resolve import resolve
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device, find_kernel
from jaxgemm.problem import Problem, plan

ROW = find_kernel("simt")
HOPPER = Device("cuda", "NVIDIA H200", 90, 132)
TYPES = {types[0]: types for types in ROW.types if types[0] == types[2]}
#: Large enough for copies to pay. Of the first, no row is of whole vectors; of the second, all are.
SHAPES = ((1101, 1029, 1051), (1104, 1032, 1056))
LAYOUTS = ("NN", "NT", "TN", "TT")

cuda = pytest.mark.skipif(not ROW.built, reason="this build has no CUDA kernels")


def workspace(shape, layout="NN", batch=(), shared=False):
    """Bytes for products of fp32 operands; with a batch, a may be shared."""
    m, n, k = shape
    a = (*batch, *((k, m) if layout[0] == "T" else (m, k)))
    b = (*batch, *((n, k) if layout[1] == "T" else (k, n)))
    contract = ((len(a) - 1 - (layout[0] == "T"),), (len(b) - 2 + (layout[1] == "T"),))
    axes = tuple(range(len(batch)))
    view = plan(a, b, (contract, (axes, axes)))
    first = replace(view.a, batch_stride=(0, 0)) if shared else view.a
    problem = Problem(view.m, view.n, view.k, view.batch, first, view.b, ("float32",) * 3, Epilogue())
    return resolve("simt", (), problem, HOPPER).workspace


@cuda
def test_workspace_has_room_for_the_copies():
    n = 4096
    copy = 4 * n * n
    assert copy <= workspace((n, n, n), "NN") < 2 * copy
    assert 2 * copy <= workspace((n, n, n), "NT") < 3 * copy
    assert workspace((n, n, n), "TN") < copy
    assert 2 * copy <= workspace((n, n + 1, n), "NN") < 3 * copy
    # Small products are over before copies of their operands would be, and the largest operands stay as they are.
    assert workspace((256, 256, 256), "NT") == 0
    assert workspace((16384, 16384, 16384), "NT") < 2**28


@cuda
def test_shared_operands_are_copied_once():
    n = 2048
    copy = 4 * n * n
    assert 3 * copy <= workspace((n, n, n), batch=(3,)) < 4 * copy
    assert copy <= workspace((n, n, n), batch=(3,), shared=True) < 2 * copy


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_layouts(shape, dtype, rng):
    check_all([Product.random(rng, shape, TYPES[dtype], layout) for layout in LAYOUTS], "simt")


@pytest.mark.gpu
@pytest.mark.parametrize("tile", [1, 2, 3])
def test_tiles(tile, rng):
    check_all([Product.random(rng, SHAPES[0], TYPES["float32"], layout) for layout in LAYOUTS], "simt", tile=tile)


@pytest.mark.gpu
@pytest.mark.parametrize("batches", [((2,), (2,)), ((3,), ()), ((), (3,)), ((2, 1), (1, 2)), ((2, 2), (2,))])
def test_batches(batches, rng):
    check_all(
        [
            Product.random(rng, shape, TYPES["float32"], layout, batches)
            for layout in ("NN", "TT")
            for shape in ((701, 709, 1023), (704, 712, 1024))
        ],
        "simt",
    )


@pytest.mark.gpu
def test_epilogue(rng):
    check_all(
        [
            Product.random(rng, SHAPES[0], TYPES["float32"], "NN", bias=True, alpha=-0.5, beta=1.5, activation="gelu"),
            Product.random(rng, SHAPES[1], TYPES["float32"], "NT", bias=True, activation="relu"),
        ],
        "simt",
    )


@pytest.mark.gpu
def test_special_values_stay_where_they_are(rng):
    """What lies behind a row's end, or in another row, must not reach its products."""
    check_special_values(rng, SHAPES[0], TYPES["float32"], "simt")


@pytest.mark.gpu
def test_repeats_bit_for_bit(rng):
    check_repeats(Product.random(rng, (2047, 2049, 2051), TYPES["float32"]), "simt")
