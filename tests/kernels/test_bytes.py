"""Products of 8 bits by `sm90`: integers exactly, and floats within what the tensor core's sums keep."""

import itertools
from dataclasses import replace

import cases
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from arrays import array
from oracle import Product, sum_eps

import jaxgemm

INTEGERS = tuple(itertools.product(("int8", "uint8"), repeat=2))
FLOATS = tuple(itertools.product(("float8_e4m3fn", "float8_e5m2"), repeat=2))
RESULTS = ("float32", "bfloat16", "float16")
SHAPES = ((64, 64, 128), (128, 256, 64), (300, 200, 100), (1, 7, 3), (513, 257, 1000), (129, 65, 4099), (16, 512, 1024))
TILES = ((128, 256), (128, 128), (128, 64), (64, 64), (64, 16))
#: Columns of tiles that take x from registers.
TURNED = (256, 128, 64, 16)


pytestmark = [pytest.mark.gpu]


def random(rng, shape, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype.endswith("int8"):
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    return rng.standard_normal(shape).astype(kind)


def stored(a, b, layout):
    swap = [
        np.ascontiguousarray(np.swapaxes(x, -1, -2)) if side == "T" else x
        for x, side in zip((a, b), layout, strict=True)
    ]
    return *swap, {"transpose_a": layout[0] == "T", "transpose_b": layout[1] == "T"}


def product(a, b, layout="NN", **keywords):
    a, b, transposed = stored(a, b, layout)
    run = jax.jit(lambda a, b: jaxgemm.gemm(a, b, kernel="sm90", **transposed, **keywords))
    return np.asarray(run(a, b))


def check_integers(a, b, got):
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32))


def check_floats(a, b, got):
    a, b = a.astype(np.float64), b.astype(np.float64)
    rounding = {2: 2.0**-8 if got.dtype == ml_dtypes.bfloat16 else 2.0**-11, 4: 2.0**-23}[got.dtype.itemsize]
    bound = sum_eps("float8", a.shape[-1]) * (abs(a) @ abs(b)) + rounding * abs(a @ b) + 2.0**-24
    worst = np.max(abs(got.astype(np.float64) - a @ b) / bound, initial=0.0)
    assert worst <= 1, f"{a.shape} x {b.shape}: {worst:.3g} times the bound"


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("types", INTEGERS, ids="-".join)
def test_integers(types, layout, rng):
    for m, n, k in SHAPES:
        a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
        check_integers(a, b, product(a, b, layout))


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("types", FLOATS, ids="-".join)
def test_floats(types, layout, rng):
    for (m, n, k), out in zip(SHAPES, itertools.cycle(RESULTS), strict=False):
        a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
        check_floats(a, b, product(a, b, layout, out_dtype=out))


@pytest.mark.parametrize(("tile_m", "tile_n"), TILES)
def test_options(tile_m, tile_n, rng):
    """Every tile of K-major operands, with every type of result, swaps and clusters, and a split k."""
    m, n, k = 513, 300, 1000
    ints = random(rng, (m, k), "int8"), random(rng, (k, n), "uint8")
    floats = random(rng, (m, k), "float8_e4m3fn"), random(rng, (k, n), "float8_e5m2")
    for swap, cluster_m, cluster_n in itertools.product((1, 2), (1, 2), (1, 2)):
        given = {"tile_m": tile_m, "tile_n": tile_n, "swap": swap, "cluster_m": cluster_m, "cluster_n": cluster_n}
        check_integers(*ints, product(*ints, "NT", **given))
        for out in RESULTS:
            check_floats(*floats, product(*floats, "NT", out_dtype=out, **given))
    check_integers(*ints, product(*ints, "NT", tile_m=tile_m, tile_n=tile_n, split_k=3))
    for out in RESULTS:
        check_floats(*floats, product(*floats, "NT", out_dtype=out, tile_m=tile_m, tile_n=tile_n, split_k=3))


@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize("tile_n", TURNED)
def test_x_from_registers(tile_n, layout, rng):
    """Weights as rows of k, and A as columns: all tiles, types of results, clusters and walks, and a split k."""
    for m, n, k in ((528, 304, 1000), (16, 512, 320), (144, 128, 33), (1008, 1040, 130)):
        ints = random(rng, (m, k), "uint8"), random(rng, (k, n), "int8")
        floats = random(rng, (m, k), "float8_e5m2"), random(rng, (k, n), "float8_e4m3fn")
        for cluster_m, cluster_n, more in ((1, 1, {}), (2, 1, {}), (1, 2, {"grid": 2}), (1, 1, {"split_k": 3})):
            given = {"tile_m": 128, "tile_n": tile_n, "cluster_m": cluster_m, "cluster_n": cluster_n} | more
            given["swap"] = 2 if layout == "NN" else 1
            check_integers(*ints, product(*ints, layout, **given))
            for out in RESULTS:
                check_floats(*floats, product(*floats, layout, out_dtype=out, **given))


def test_sums_wrap():
    """As int32 does."""
    k = 140_000
    a, b = np.full((70, k), -128, np.int8), np.full((k, 33), -128, np.int8)
    check_integers(a, b, product(a, b, "NT"))


@pytest.mark.parametrize("batches", cases.BATCHES)
def test_batches(batches, rng):
    for types, check in ((("int8", "int8"), check_integers), (("float8_e4m3fn", "float8_e4m3fn"), check_floats)):
        a, b = random(rng, (*batches[0], 70, 130), types[0]), random(rng, (*batches[1], 130, 90), types[1])
        for layout in ("NN", "TT", "NT"):
            check(a, b, product(a, b, layout))


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_epilogue_of_floats(layout, rng):
    """C, a bias and an activation; results whose rows are aligned, and others, from shared memory and registers."""
    for m, n, k in ((208, 272, 320), (208, 261, 336)):
        a, b = random(rng, (m, k), "float8_e4m3fn"), random(rng, (k, n), "float8_e4m3fn")
        c, bias = rng.standard_normal((m, n)), rng.standard_normal(n)
        for out, activation in itertools.product(RESULTS, (None, "relu", "gelu")):
            p = Product(a, b, out=out, c=c.astype(np.dtype(jnp.dtype(out))), bias=bias.astype(np.dtype(jnp.dtype(out))))
            p = replace(p, alpha=0.5, beta=2.0, activation=activation)
            more = {"c": array(p.c), "bias": array(p.bias), "alpha": 0.5, "beta": 2.0}
            p.check(product(a, b, layout, out_dtype=out, activation=activation, **more), "sm90")
            p = replace(p, c=None, beta=0.0)
            p.check(product(a, b, layout, out_dtype=out, activation=activation, bias=more["bias"], alpha=0.5), "sm90")


def test_epilogue_of_integers(rng):
    """The kernel scales; what is added is jnp's."""
    a, b = random(rng, (70, 96), "int8"), random(rng, (96, 48), "uint8")
    exact = a.astype(np.int64) @ b.astype(np.int64)
    c, bias = rng.integers(-999, 999, (70, 48), np.int32), rng.integers(-999, 999, 48, np.int32)
    for layout in cases.LAYOUTS:
        np.testing.assert_array_equal(product(a, b, layout, alpha=-3), -3 * exact)
        got = product(a, b, layout, alpha=-3, c=c, beta=2, bias=bias, activation="relu")
        np.testing.assert_array_equal(got, np.maximum(-3 * exact + 2 * c + bias, 0))


@pytest.mark.parametrize("types", [*INTEGERS, *FLOATS], ids="-".join)
def test_nothing_to_add_up(types):
    a, b = jnp.zeros((5, 0), types[0]), jnp.zeros((0, 7), types[1])
    got = jaxgemm.gemm(a, b, kernel="sm90")
    assert got.shape == (5, 7)
    assert not np.asarray(got).any()


SCALES = tuple(itertools.product(("none", "whole", "lines"), repeat=2))[1:]


def scales_of(rng, kinds, m, n):
    shapes = {"none": None, "whole": ((), ()), "lines": ((m, 1), (1, n))}
    given = {}
    for i, (name, kind) in enumerate(zip(("a_scale", "b_scale"), kinds, strict=True)):
        if shapes[kind] is not None:
            given[name] = rng.uniform(0.0005, 0.005, shapes[kind][i]).astype(np.float32)
    return given


def check_scaled(a, b, got, given, bias=None, activation=None):
    factor = np.asarray(given.get("a_scale", 1.0), np.float64) * np.asarray(given.get("b_scale", 1.0), np.float64)
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    want = a64 @ b64 * factor + (0 if bias is None else bias.astype(np.float64))
    lost = 2.0**-22 if a.dtype.kind in "iu" else sum_eps("float8", a.shape[-1])
    bound = (lost + 2.0**-21) * (abs(a64) @ abs(b64)) * factor + 2.0**-21 * abs(want)
    if activation == "relu":
        want = np.maximum(want, 0)
    bound += float(jnp.finfo(got.dtype).eps) * abs(want) + 1e-30
    worst = np.max(abs(got.astype(np.float64) - want) / bound, initial=0.0)
    assert worst <= 1, f"{a.shape} x {b.shape}: {worst:.3g} times the bound"


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("types", [*INTEGERS, *FLOATS], ids="-".join)
def test_scales(types, layout, rng):
    """Of the whole operand, of rows and of columns, in the finish; results of every type, aligned and not."""
    shapes = ((64, 64, 128), (144, 272, 320), (16, 512, 96), (513, 257, 100), (1, 7, 3))
    for (m, n, k), kinds, out in zip(shapes * 2, itertools.cycle(SCALES), itertools.cycle(RESULTS), strict=False):
        a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
        given = scales_of(rng, kinds, m, n)
        check_scaled(a, b, product(a, b, layout, out_dtype=out, **given), given)
        bias = rng.standard_normal(n).astype(jnp.dtype(out))
        got = product(a, b, layout, out_dtype=out, bias=bias, activation="relu", **given)
        check_scaled(a, b, got, given, bias, "relu")


@pytest.mark.parametrize("types", [("int8", "uint8"), ("float8_e4m3fn", "float8_e5m2")], ids="-".join)
def test_scales_in_every_tile(types, rng):
    m, n, k = 528, 304, 400
    a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
    given = scales_of(rng, ("lines", "lines"), m, n)
    tiles = [("NT", tile) for tile in TILES] + [("NN", (128, columns)) for columns in TURNED]
    for (layout, (tile_m, tile_n)), out in itertools.product(tiles, RESULTS):
        for swap in (1, 2) if layout == "NT" else (2,):
            options = {"tile_m": tile_m, "tile_n": tile_n, "swap": swap}
            check_scaled(a, b, product(a, b, layout, out_dtype=out, **options, **given), given)


# Of sums of one sign: an instruction cuts each of its 33 addends (32 products and the sum before them) to 13 bits below
# the largest, so it loses half a bit of each on average. Of the four that add up 128 products the largest addend is a
# product, then 1/4, 1/2 and 3/4 of the result.
PROMOTED = 33 * 0.5 * 1.5 * 2.0**-13


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("types", FLOATS, ids="-".join)
def test_promoted_sums(types, layout, rng):
    """At the highest precision the error does not grow with k; C, a bias and scales follow as ever."""
    for (m, n, k), out in zip(
        ((64, 64, 128), (200, 144, 4096), (65, 33, 20000), (16, 512, 1000)), itertools.cycle(RESULTS)
    ):
        a, b = abs(random(rng, (m, k), types[0])), abs(random(rng, (k, n), types[1]))  # of one sign
        got = product(a, b, layout, precision="highest", out_dtype=out)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        assert (abs(got.astype(np.float64) - exact) <= (PROMOTED + float(jnp.finfo(out).eps)) * exact).all()
        c, bias = (rng.standard_normal(s).astype(jnp.dtype(out)) for s in ((m, n), (n,)))
        got = product(a, b, layout, precision="highest", out_dtype=out, c=c, bias=bias)
        want = exact + c.astype(np.float64) + bias.astype(np.float64)
        assert (abs(got.astype(np.float64) - want) <= (PROMOTED + float(jnp.finfo(out).eps)) * (exact + 8)).all()
        given = scales_of(rng, ("lines", "whole"), m, n)
        got = product(a, b, layout, precision="highest", out_dtype=out, **given)
        want = exact * given["a_scale"] * given["b_scale"]
        assert (abs(got.astype(np.float64) - want) <= (PROMOTED + float(jnp.finfo(out).eps)) * want + 1e-30).all()
