"""float32 products of planes in bfloat16 by `sm90`: errors within their bounds, exact where they promise it."""

import itertools
import os
import subprocess
import sys

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracle import ACTIVATIONS, STEEPEST, random
from scipy import special

import jaxgemm
from jaxgemm.choice.resolve import least_exact

BF16 = ("BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9")
#: Those whose parts hold all bits of a number.
WHOLE = BF16[2:]
#: Scaled parts in float16; with a guard up, BF16_BF16_F32_X6.
SCALED = "TF32_TF32_F32_X3"
PRESETS = (*BF16, SCALED)
SHAPES = ((64, 64, 64), (192, 128, 64), (300, 200, 100), (1, 7, 3), (513, 257, 1000), (129, 65, 4099), (5, 3, 20000))
TILES = ((192, 128), (128, 128), (128, 64))

pytestmark = [pytest.mark.gpu]


@pytest.fixture(autouse=True)
def scaled():
    """Small products are scaled too, which other arithmetics should be faster for."""
    with least_exact():
        yield


#: What bfloat16 loses of the smallest numbers, where it has few parts of them.
SMALLEST = {"BF16_BF16_F32": 2.0**-131, "BF16_BF16_F32_X3": 2.0**-140}


def bound(precision, a, b):
    """How far each element of A B may be from the exact one."""
    a, b = abs(a.astype(np.float64)), abs(b.astype(np.float64))
    k = a.shape[-1]
    of_a, of_b = a.sum(-1)[..., :, None], b.sum(-2)[..., None, :]
    total = jaxgemm.error_bound(precision, k) * (a @ b) + k * 2.0**-145
    total += SMALLEST.get(precision, 2.0**-147) * (of_a + of_b)
    if precision == SCALED:
        finite_a, finite_b = (np.where(np.isfinite(x), x, 0) for x in (a, b))
        total += 2.0**-50 * (finite_a.max(-1)[..., :, None] * of_b + finite_b.max(-2)[..., None, :] * of_a)
    return total


def check(result, precision, a, b):
    error = abs(np.asarray(result, np.float64) - a.astype(np.float64) @ b.astype(np.float64))
    worst = np.max(error / bound(precision, a, b), initial=0.0)
    assert worst <= 1, f"{a.shape} x {b.shape}, {precision}: {worst:.3g} times the bound"


def stored(a, b, layout):
    swap = [
        np.ascontiguousarray(np.swapaxes(x, -1, -2)) if side == "T" else x
        for x, side in zip((a, b), layout, strict=True)
    ]
    return *swap, {"transpose_a": layout[0] == "T", "transpose_b": layout[1] == "T"}


def product(a, b, precision, layout="NN", **keywords):
    (got,) = products([call(a, b, precision, layout, **keywords)])
    return got


def call(a, b, precision, layout="NN", **keywords):
    """Arrays and keywords of a product."""
    a, b, transposed = stored(a, b, layout)
    keywords |= {"precision": precision, "kernel": "sm90", **transposed}
    arrays = {"a": a, "b": b} | {name: x for name, x in keywords.items() if isinstance(x, np.ndarray)}
    return arrays, {name: x for name, x in keywords.items() if name not in arrays}


def products(calls):
    """The results of all calls by one program."""

    def program(given):
        return [jaxgemm.gemm(**arrays, **keywords) for arrays, (_, keywords) in zip(given, calls, strict=True)]

    return [np.asarray(x) for x in jax.jit(program)([arrays for arrays, _ in calls])]


def check_all(given):
    """Of (a, b, precision, layout)."""
    for (a, b, precision, _), got in zip(given, products([call(*x) for x in given]), strict=True):
        check(got, precision, a, b)


@pytest.mark.parametrize("precision", PRESETS)
@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_shapes(precision, layout, rng):
    check_all(
        [(random(rng, (m, k), "float32"), random(rng, (k, n), "float32"), precision, layout) for m, n, k in SHAPES]
    )


@pytest.mark.parametrize("precision", PRESETS)
def test_kinds_of_data(precision, rng):
    """Of one sign, of wide exponents, sums that cancel, and rows of a softmax."""
    m, n, k = 200, 130, 2050
    normal = random(rng, (m, k), "float32"), random(rng, (k, n), "float32")
    wide = [x * np.exp2(rng.integers(-20, 20, x.shape)).astype(np.float32) for x in normal]
    cancelling = np.concatenate([normal[0], normal[0]], 1), np.concatenate([normal[1], -normal[1]], 0)
    rows = special.softmax(4 * normal[0], axis=-1)
    given = normal, map(abs, normal), wide, cancelling, (rows, normal[1])
    check_all([(a, b, precision, "NN") for a, b in given])


@pytest.mark.parametrize(("tile_m", "tile_n"), TILES)
def test_options(tile_m, tile_n, rng):
    """Every tile with a swap, a split k, clusters, walks and slabs."""
    a, b = random(rng, (513, 1000), "float32"), random(rng, (1000, 300), "float32")
    options = {
        "swap": (1, 2),
        "split_k": (1, 3),
        "cluster_m": (1, 2),
        "cluster_n": (1, 2),
        "grid": (1, 2),
        "slabs": (1, 3),
    }
    every = [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]
    given = [call(a, b, "highest", **x, tile_m=tile_m, tile_n=tile_n, walk_height=2) for x in every]
    exact, limit = a.astype(np.float64) @ b, bound("highest", a, b)
    for x, got in zip(every, products(given), strict=True):
        assert (abs(got - exact) <= limit).all(), x


@pytest.mark.parametrize("precision", ["highest", "BF16_BF16_F32_X3", SCALED])
@pytest.mark.parametrize("tail", [2, 3, 8])
def test_tails(tail, precision, rng):
    """Tiles beyond whole waves are cut along k: with C and a bias in slabs, whatever is swapped, and few steps."""
    calls, operands = [], []
    for (m, n, k), swap, slabs in (((1900, 1500, 130), 1, 1), ((1500, 1901, 700), 2, 2), ((2000, 1300, 60), 1, 1)):
        a, b = random(rng, (m, k), "float32"), random(rng, (k, n), "float32")
        c, bias = random(rng, (m, n), "float32"), random(rng, (n,), "float32")
        given = {"tile_m": 128, "tile_n": 128, "cluster_m": 1, "cluster_n": 1, "swap": swap, "slabs": slabs}
        for more in ({}, {"c": c, "beta": 2.0, "bias": bias, "activation": "relu"}):
            calls.append(call(a, b, precision, tail=tail, **given, **more))
        operands.append((a, b, c, bias))
    results = products(calls)
    for (a, b, c, bias), plain, got in zip(operands, results[::2], results[1::2], strict=True):
        exact, limit = a.astype(np.float64) @ b, bound(precision, a, b)
        assert (abs(plain - exact) <= limit).all()
        z = exact + 2.0 * c + bias
        assert (abs(got - np.maximum(z, 0)) <= limit + 2.0**-19 * (abs(z) + abs(c) + abs(bias))).all()


def test_single_parts_have_tiles_of_16_bits(rng):
    """Operands that are rounded once are multiplied as any of bfloat16 are, in slabs too."""
    a, b = random(rng, (513, 1000), "float32"), random(rng, (1000, 300), "float32")
    options = {"tile_n": 256}, {"tile_n": 96, "swap": 2}, {"split_k": 5}, {"slabs": 3, "tile_m": 64}
    for got in products([call(a, b, "BF16_BF16_F32", **given) for given in options]):
        check(got, "BF16_BF16_F32", a, b)


@pytest.mark.parametrize("slabs", [1, 2, 7])
def test_epilogue(slabs, rng):
    """alpha A B + beta C + bias and each activation, whatever the slabs: C is added once, and so is the bias."""
    for m, n, k in ((300, 200, 500), (65, 33, 1000)):
        a, b = random(rng, (m, k), "float32"), random(rng, (k, n), "float32")
        c, bias = random(rng, (m, n), "float32"), random(rng, (n,), "float32")
        z, limit = 0.5 * (a.astype(np.float64) @ b) + 2.0 * c + bias, bound("highest", a, b)
        given = {"c": c, "alpha": 0.5, "beta": 2.0, "bias": bias, "slabs": slabs}
        activations = (None, *ACTIVATIONS)
        calls = [call(a, b, "highest", activation=activation, **given) for activation in activations]
        for activation, got in zip(activations, products(calls), strict=True):
            expected = z if activation is None else ACTIVATIONS[activation](z)
            error = STEEPEST * limit + 2.0**-19 * (abs(z) + abs(expected) + abs(c) + abs(bias))
            assert (abs(got - expected) <= error).all(), activation


@pytest.mark.parametrize("batches", cases.BATCHES)
def test_batches(batches, rng):
    a, b = random(rng, (*batches[0], 70, 130), "float32"), random(rng, (*batches[1], 130, 90), "float32")
    check_all([(a, b, "highest", layout) for layout in ("NN", "TT")])


@pytest.mark.parametrize("precision", WHOLE)
def test_parts_hold_all_bits(precision, rng):
    """A times the identity is A, and one-hot rows times a matrix are its rows, bit for bit."""
    calls, wanted = [], []
    for extent in (1, 64, 257):
        x = random(rng, (extent, extent), "float32") * np.exp2(rng.integers(-110, 110, (extent, extent))).astype(
            np.float32
        )
        x = np.where(abs(x) < 2.0**-124, np.float32(1.5), x).astype(np.float32)
        identity = np.eye(extent, dtype=np.float32)
        rows = rng.integers(0, extent, 300)
        calls += [call(*given, precision) for given in ((x, identity), (identity, x), (identity[rows], x))]
        wanted += [x, x, x[rows]]
    for got, want in zip(products(calls), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, -2e-42, 1.2e-38, 3e-39, 1.0, 3.4e38, -3.4028235e38)


@pytest.mark.parametrize("precision", PRESETS)
def test_special_values(precision, rng):
    """Alone and beside ordinary values: in their own row and column as exact arithmetic has it, elsewhere nothing."""
    a, b = random(rng, (len(SPECIAL), 70), "float32"), random(rng, (70, len(SPECIAL)), "float32")
    given = []
    for alone in (False, True):
        x, y = (np.zeros_like(a), np.zeros_like(b)) if alone else (a.copy(), b.copy())
        x[:, 5] = y[5, :] = SPECIAL
        given.append((x, y))
    for (x, y), got in zip(given, products([call(x, y, precision) for x, y in given]), strict=True):
        with np.errstate(all="ignore"):
            terms = x.astype(np.float64)[:, :, None] * y.astype(np.float64)[None]
            expected = terms.sum(1)
            most = abs(terms).sum(1)
        # Fewer parts may round beyond the largest number.
        lost = 2.0**-20 if precision in WHOLE else 2 * jaxgemm.error_bound(precision, 70)
        finite = np.isfinite(expected) & (most < (1 - lost) * np.finfo(np.float32).max)
        clean = np.isfinite(x).all(1)[:, None] & np.isfinite(y).all(0)[None]
        assert np.isfinite(got[finite & clean]).all()
        with np.errstate(all="ignore"):
            limit = bound(precision, x, y)
        near = finite & clean
        assert (abs(got.astype(np.float64)[near] - expected[near]) <= limit[near]).all()
        # Infinities and NaN are as exact arithmetic has them.
        np.testing.assert_array_equal(got[~clean], expected[~clean].astype(np.float32))


def test_near_the_largest(rng):
    """Sums whose terms' magnitudes stay below the largest number are finite."""
    k = 256
    a = rng.uniform(0.5, 1, (64, k)).astype(np.float32) * np.float32(2.0**63)
    b = rng.uniform(0.5, 1, (k, 64)).astype(np.float32) * np.sign(rng.standard_normal((k, 64))).astype(np.float32)
    b *= np.float32(2.0**64)
    scale = np.finfo(np.float32).max * (1 - 2.0**-19) / (abs(a.astype(np.float64)) @ abs(b)).max()
    b = (b * scale).astype(np.float32)
    precisions = (*WHOLE, SCALED)
    results = products([call(a, y, precision) for precision in precisions for y in (b, abs(b))])
    assert all(np.isfinite(got).all() for got in results)
    for precision, got in zip(precisions, results[::2], strict=True):
        check(got, precision, a, b)


def test_slabs_that_the_workspace_asks_for(rng):
    """The planes of this product take more than the limit, so it is cut along k."""
    k = 3_000_000
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, k), (k, 64))]

    def call(a, b):
        return jaxgemm.gemm(a, b, precision="highest", kernel="sm90")

    (found,) = jaxgemm.explain(call, *shapes, platform="cuda").products
    slabs = list(found.decision.choice.kernel.options).index("slabs")
    assert found.decision.choice.config[slabs] > 1
    a, b = (rng.integers(-4, 5, s.shape).astype(np.float32) for s in shapes)
    np.testing.assert_array_equal(np.asarray(jax.jit(call)(a, b)), a.astype(np.float64) @ b)


def test_a_process_that_has_used_no_planes():
    """Both products of a scaled one are prepared, whatever ran before: by both tiles, with the operands swapped too."""
    program = """
import jax, jax.numpy as jnp, jaxgemm
from jaxgemm.choice.resolve import least_exact
a, b = jnp.ones((200, 2050)), jnp.ones((2050, 130)).at[0, 0].set(1e-30)
with least_exact():
    for swap in (1, 2):
        for m, n in ((192, 128), (128, 64)):
            options = dict(kernel="sm90", tile_m=m, tile_n=n, swap=swap)
            d = jax.jit(lambda a, b: jaxgemm.gemm(a, b, precision="TF32_TF32_F32_X3", **options))(a, b)
            assert abs(d[1, 1] - 2050) < 0.01, d[1, 1]
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_slabs_of_a_huge_product(rng):
    """Each array has 4 GB, and planes many times the workspace: a sample of elements."""
    n, count = 32768, 8
    rows, columns = (np.sort(rng.choice(n, count, replace=False)) for _ in range(2))

    @jax.jit
    def sampled(key):
        a, b = (jax.random.normal(key, (n, n), "float32") for key in jax.random.split(key))
        d = jaxgemm.gemm(a, b, precision="highest", kernel="sm90")
        return d[rows[:, None], columns[None]], a[rows], b[:, columns]

    got, a, b = map(np.asarray, sampled(jax.random.key(int(rng.integers(1 << 30)))))
    check(got, "BF16_BF16_F32_X6", a, b)


def test_gradients_keep_the_precision(rng):
    a, b = random(rng, (130, 600), "float32"), random(rng, (600, 70), "float32")
    ct = random(rng, (130, 70), "float32")
    _, pull = jax.vjp(lambda a, b: jaxgemm.gemm(a, b, precision="BF16_BF16_F32_X6", kernel="sm90"), a, b)
    da, db = pull(ct)
    check(da, "BF16_BF16_F32_X6", ct, b.T)
    check(db, "BF16_BF16_F32_X6", a.T, ct)


def test_runs_agree(rng):
    for m, n, k in ((300, 200, 20000), (2000, 1000, 700)):
        a, b = random(rng, (m, k), "float32"), random(rng, (k, n), "float32")
        run = jax.jit(lambda a, b: jaxgemm.gemm(a, b, precision="highest", kernel="sm90"))
        first = np.asarray(run(a, b)).tobytes()
        assert all(np.asarray(run(a, b)).tobytes() == first for _ in range(4))


def test_algorithm_objects(rng):
    """A lax.DotAlgorithm that names the same has the same bits."""
    a, b = random(rng, (100, 300), "float32"), random(rng, (300, 60), "float32")
    for count, preset in zip((1, 3, 6, 9), BF16, strict=True):
        given = lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, jnp.float32, num_primitive_operations=count)
        np.testing.assert_array_equal(product(a, b, given), product(a, b, preset))


def test_the_guard(rng):
    """One number that scaled parts would lose, wherever it is, and the product has BF16_BF16_F32_X6's bits."""
    m, n, k = 200, 130, 1000
    same = {"tile_m": 128, "tile_n": 128, "split_k": 1, "kernel": "sm90"}
    run = jax.jit(lambda a, b: [jaxgemm.gemm(a, b, precision=x, **same) for x in (SCALED, "BF16_BF16_F32_X6")])
    a, b = random(rng, (m, k), "float32"), random(rng, (k, n), "float32")
    a, b = (np.where(abs(x) < 1e-3, np.float32(1e-3), x) for x in (a, b))
    scaled, exact = map(np.asarray, run(a, b))
    assert (scaled != exact).any()
    for side, row, column in ((0, 17, 999), (0, 199, 0), (1, 0, 129), (1, 700, 3)):
        for small in (1e-14, -1e-30, 1e-45):
            x, y = a.copy(), b.copy()
            (x, y)[side][row, column] = small
            np.testing.assert_array_equal(*run(x, y))
    # Zeros are none, nor is what is small in a row of its likes.
    x, y = a.copy(), b.copy()
    x[5], x[7, 3:], y[:, 4] = 0, 0, 1e-30 * y[:, 4]
    scaled, exact = map(np.asarray, run(x, y))
    assert (scaled != exact).any()


@pytest.mark.parametrize("precision", [SCALED, "highest"])
def test_rows_of_one_huge_value(precision, rng):
    """Rows and columns of one huge and many tiny values, of which none is lost."""
    a, b = random(rng, (130, 300), "float32"), random(rng, (300, 70), "float32")
    given = []
    for huge in (2.0**12, 2.0**30, 2.0**45, 2.0**100):
        x, y = a.copy(), b.copy()
        x[3, 7] *= huge
        y[9, 11] *= huge
        given += [(x, y, precision, layout) for layout in cases.LAYOUTS]
    check_all(given)


def test_scaled_batches_are_not_scaled(rng):
    a, b = random(rng, (3, 70, 500), "float32"), random(rng, (3, 500, 60), "float32")
    same = {"tile_m": 128, "tile_n": 64, "split_k": 1}
    np.testing.assert_array_equal(product(a, b, SCALED, **same), product(a, b, "BF16_BF16_F32_X6", **same))


def test_load():
    """Stages are not filled again while a warp still multiplies them: many products at once, each of the same bits."""
    rng = np.random.default_rng(3)
    a, b = random(rng, (1900, 900), "float32"), random(rng, (900, 1300), "float32")
    for precision in ("highest", SCALED):
        run = jax.jit(lambda a, b, x=precision: [jaxgemm.gemm(a, b, precision=x, kernel="sm90") for _ in range(3)])
        first = np.asarray(run(a, b)[0]).tobytes()
        for _ in range(20):
            assert all(np.asarray(x).tobytes() == first for x in run(a, b))
