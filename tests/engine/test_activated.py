"""sm90's epilogue for C, a bias and a usual activation, which has code of its own beside that for everything else."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from cases import SHORT_ACTIVATIONS, taken
from oracle import ACTIVATIONS, Product, check_all, check_repeats, dtype_of, with_options

import jaxgemm
from jaxgemm.choice.resolve import candidates
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import H200, find_kernel
from jaxgemm.problem import plan

ROW = find_kernel("sm90")
BF16, F16 = (next(types for types in ROW.types if types[0] == types[2] == name) for name in ("bfloat16", "float16"))
EPILOGUES = (
    {"bias": True},
    {"bias": True, "activation": "gelu", "alpha": 0.5},
    {"activation": "silu"},
    {"bias": True, "activation": "relu", "alpha": -1.5},
    {"beta": -0.5},
    {"bias": True, "activation": "gelu", "alpha": 0.5, "beta": 2.0},
)
BLOCKS = list(ROW.options).index("blocks")
#: A cooperative tile and a ping-pong one.
SCHEDULES = ({"tile_m": 128, "tile_n": 192, "schedule": 1}, {"tile_m": 128, "tile_n": 128, "schedule": 2})


def tiles():
    """tile_m, tile_n, schedule and blocks of every tile there is: a product this large may have any."""
    if not ROW.built:
        return []
    view = plan((4096, 4096), (4096, 4096), (((1,), (0,)), ((), ())))
    problem = view.problem(BF16[:3], Epilogue())
    found = candidates(ROW, (), problem, H200)
    assert found
    return sorted({(*candidate.config[:3], candidate.config[BLOCKS]) for candidate in found})


@pytest.mark.gpu
@pytest.mark.parametrize("swap", [1, 2])
@pytest.mark.parametrize(("tile_m", "tile_n", "schedule", "blocks"), tiles())
def test_every_tile(tile_m, tile_n, schedule, blocks, swap, rng):
    """Ragged in the tile's rows and columns, one step along k and several; columns of D in whole vectors."""
    options = {"tile_m": tile_m, "tile_n": tile_n, "schedule": schedule, "swap": swap, "blocks": blocks}
    rows, cols = (2 * tile_m + 24, 2 * tile_n + 40)
    m, n = (cols + 3, rows) if swap == 2 else (rows + 3, cols)
    layouts = taken(("NN", "TT"), tile_n, swap)
    products = [
        Product.random(rng, (m, n, k), BF16, layout, **epilogue)
        for epilogue, k, layout in itertools.product(EPILOGUES, (40, 200), layouts)
    ]
    check_all(products, "sm90", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("types", [BF16, F16], ids=lambda types: types[0])
def test_several_tiles_a_block(types, rng):
    """A block's later tiles have another bias and C, and take turns with it where they are ping-pong ones."""
    shape, epilogue = (2500, 2504, 96), {"bias": True, "activation": "gelu"}
    for tile, cluster in itertools.product(SCHEDULES, ((1, 1), (2, 1), (1, 2))):
        options = tile | {"cluster_m": cluster[0], "cluster_n": cluster[1]}
        check_all([Product.random(rng, shape, types, **epilogue, beta=x) for x in (0.0, 0.75)], "sm90", **options)


@pytest.mark.gpu
def test_batches(rng):
    """One bias for all products of a batch, and for each its part of C."""
    every = []
    for tile, swap in itertools.product(SCHEDULES, (1, 2)):
        shape, batches = (200, 264, 72), ((3,), (3,))
        products = [
            Product.random(rng, shape, BF16, "NN", batches, bias=True, activation="silu", beta=beta)
            for beta in (0.0, -1.0)
        ]
        every += with_options(products, **tile, swap=swap)
    check_all(every, "sm90")


@pytest.mark.gpu
@pytest.mark.parametrize("activation", SHORT_ACTIVATIONS)
@pytest.mark.parametrize("types", [BF16, F16], ids=lambda types: types[0])
def test_every_value(types, activation):
    """Of every 16-bit number, infinities and NaN among them, beside others in turn: results are rounded once.

    Factors below 2^-126 are 0.
    """
    kind = dtype_of(types[0])
    values = np.arange(1 << 16, dtype=np.uint16).view(kind)
    zeros = array(np.zeros((16, 8)), kind), array(np.zeros((8, 1 << 16)), kind)
    info = jnp.finfo(kind)
    eps, least = float(info.eps), float(info.smallest_subnormal if kind == np.float16 else info.smallest_normal)
    gemm = partial(jaxgemm.gemm, kernel="sm90", tile_m=128, tile_n=128, activation=activation)
    program = jax.jit(lambda a, b, bias: [gemm(a, b, bias=bias, swap=swap) for swap in (1, 2)])
    given = [np.random.default_rng(seed).permutation(values) if seed % 2 else values for seed in range(4)]
    results = [(given[i], program(*zeros, array(given[i]))[i // 2]) for i in range(4)]
    for bias, result in results:
        result = np.asarray(result)
        with np.errstate(invalid="ignore"):  # NaN
            result, x = result.astype(np.float64), bias.astype(np.float64)
            exact = ACTIVATIONS[activation](x)
            close = abs(result - exact) <= eps * abs(exact) + least + np.minimum(abs(x), 200) * 2.0**-126
        fine = close | (result == exact) | (np.isnan(result) & np.isnan(exact))
        assert fine.all(), f"of {bias[~fine.all(0)][:4]}"


@pytest.mark.gpu
def test_same_bits_every_time(rng):
    check_repeats(Product.random(rng, (1280, 2048, 128), BF16, bias=True, activation="gelu"), "sm90")
    check_repeats(Product.random(rng, (1280, 2048, 128), BF16, beta=1.0), "sm90")


@pytest.mark.gpu
def test_special_values_of_c(rng):
    """They are added where they lie, whatever else a strip of C holds, and relu leaves NaN as it is."""
    product = Product.random(rng, (77, 264, 40), BF16, beta=1.0, activation="relu")
    product.c[3, 5], product.c[70, 200], product.c[76, 263] = np.nan, np.inf, -np.inf
    for swap in (1, 2):
        result = product.run("sm90", tile_m=128, tile_n=128, swap=swap).astype(np.float64)
        assert np.isnan(result[3, 5])
        assert result[70, 200] == np.inf
        assert result[76, 263] == 0
        others = np.ones_like(result, bool)
        others[3, 5] = others[70, 200] = False
        assert np.isfinite(result[others]).all()
