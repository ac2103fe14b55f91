"""Products of 8 bits by `sm90`: integers exactly, and floats within what the tensor core's sums keep."""

import itertools
from dataclasses import replace

import cases
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
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


def products(calls, layout="NN"):
    """The results of all calls, which are (a, b, keywords), by one program."""
    given, transposed = [], {}
    for a, b, keywords in calls:
        a, b, transposed = stored(a, b, layout)
        more = {name: x for name, x in keywords.items() if isinstance(x, np.ndarray)}
        given.append({"a": a, "b": b, **more})

    def program(given):
        return [
            jaxgemm.gemm(**{**keywords, **x}, kernel="sm90", **transposed)
            for (_, _, keywords), x in zip(calls, given, strict=True)
        ]

    return [np.asarray(x) for x in jax.jit(program)(given)]


def exact(a, b):
    """Exact of integers: products are below 2^16, and float64 holds sums of them below 2^53."""
    return a.astype(np.float64) @ b.astype(np.float64)


def check_integers(got, z):
    """``z``: the exact sums."""
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, z.astype(np.int64).astype(np.int32))


def sums(a, b):
    """Exact ones, and those of magnitudes."""
    return exact(a, b), exact(abs(a.astype(np.float64)), abs(b.astype(np.float64)))


def check_floats(got, z, of_magnitudes, k):
    rounding = {2: 2.0**-8 if got.dtype == ml_dtypes.bfloat16 else 2.0**-11, 4: 2.0**-23}[got.dtype.itemsize]
    bound = sum_eps("float8", k) * of_magnitudes + rounding * abs(z) + 2.0**-24
    worst = np.max(abs(got.astype(np.float64) - z) / bound, initial=0.0)
    assert worst <= 1, f"{got.shape} of k = {k}: {worst:.3g} times the bound"


def check(calls, layout="NN"):
    """Of integers, or of floats; those of the same operands have one reference."""
    known = {}
    for (a, b, keywords), got in zip(calls, products(calls, layout), strict=True):
        if (id(a), id(b)) not in known:
            known[id(a), id(b)] = sums(a, b) if a.dtype.kind not in "iu" else [exact(a, b)]
        if a.dtype.kind in "iu":
            check_integers(got, *known[id(a), id(b)])
        else:
            assert got.dtype == keywords.get("out_dtype", "float32")
            check_floats(got, *known[id(a), id(b)], a.shape[-1])


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("types", INTEGERS, ids="-".join)
def test_integers(types, layout, rng):
    check([(random(rng, (m, k), types[0]), random(rng, (k, n), types[1]), {}) for m, n, k in SHAPES], layout)


@pytest.mark.parametrize("kernel", ["auto", "sm90"])
@pytest.mark.parametrize("types", INTEGERS, ids="-".join)
def test_integers_with_an_epilogue(types, kernel, rng):
    """jnp adds to the kernel's sums; XLA computes the first of these wrongly."""
    for m, n, k in ((35, 640, 6), (300, 200, 100)):
        a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
        c, bias = (rng.integers(-9999, 9999, shape, np.int32) for shape in ((m, n), n))
        z = -3 * exact(a, b).astype(np.int32)
        relu = jax.jit(lambda a, b: jaxgemm.gemm(a, b, alpha=-3, activation="relu", kernel=kernel))
        np.testing.assert_array_equal(relu(a, b), np.maximum(z, 0))
        added = jax.jit(lambda a, b, c, bias: jaxgemm.gemm(a, b, c, alpha=-3, beta=2, bias=bias, kernel=kernel))
        np.testing.assert_array_equal(added(a, b, c, bias), z + 2 * c + bias)


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("types", FLOATS, ids="-".join)
def test_floats(types, layout, rng):
    calls = []
    for (m, n, k), out in zip(SHAPES, itertools.cycle(RESULTS), strict=False):
        calls.append((random(rng, (m, k), types[0]), random(rng, (k, n), types[1]), {"out_dtype": out}))
    check(calls, layout)


@pytest.mark.parametrize(("tile_m", "tile_n"), TILES)
def test_options(tile_m, tile_n, rng):
    """Every tile of K-major operands, with every type of result, swaps and clusters, and a split k."""
    m, n, k = 513, 300, 1000
    ints = random(rng, (m, k), "int8"), random(rng, (k, n), "uint8")
    floats = random(rng, (m, k), "float8_e4m3fn"), random(rng, (k, n), "float8_e5m2")
    tile = {"tile_m": tile_m, "tile_n": tile_n}
    options = [
        {"swap": swap, "cluster_m": cluster_m, "cluster_n": cluster_n}
        for swap, cluster_m, cluster_n in itertools.product((1, 2), (1, 2), (1, 2))
    ]
    calls = []
    for given in (*options, {"split_k": 3}):
        calls.append((*ints, {**tile, **given}))
        calls += [(*floats, {**tile, **given, "out_dtype": out}) for out in RESULTS]
    check(calls, "NT")


@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize("tile_n", TURNED)
def test_x_from_registers(tile_n, layout, rng):
    """Weights as rows of k, and A as columns: all tiles, types of results, clusters and walks, and a split k."""
    calls = []
    for m, n, k in ((528, 304, 1000), (16, 512, 320), (144, 128, 33), (1008, 1040, 130)):
        ints = random(rng, (m, k), "uint8"), random(rng, (k, n), "int8")
        floats = random(rng, (m, k), "float8_e5m2"), random(rng, (k, n), "float8_e4m3fn")
        for cluster_m, cluster_n, more in ((1, 1, {}), (2, 1, {}), (1, 2, {"grid": 2}), (1, 1, {"split_k": 3})):
            given = {"tile_m": 128, "tile_n": tile_n, "cluster_m": cluster_m, "cluster_n": cluster_n} | more
            given["swap"] = 2 if layout == "NN" else 1
            calls.append((*ints, given))
            calls += [(*floats, {**given, "out_dtype": out}) for out in RESULTS]
    check(calls, layout)


def test_sums_wrap():
    """As int32 does."""
    k = 140_000
    check([(np.full((70, k), -128, np.int8), np.full((k, 33), -128, np.int8), {})], "NT")


@pytest.mark.parametrize("batches", cases.BATCHES)
def test_batches(batches, rng):
    calls = [
        (random(rng, (*batches[0], 70, 130), dtype), random(rng, (*batches[1], 130, 90), dtype), {})
        for dtype in ("int8", "float8_e4m3fn")
    ]
    for layout in ("NN", "TT", "NT"):
        check(calls, layout)


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_epilogue_of_floats(layout, rng):
    """C, a bias and an activation; results whose rows are aligned, and others, from shared memory and registers."""
    for m, n, k in ((208, 272, 320), (208, 261, 336)):
        a, b = random(rng, (m, k), "float8_e4m3fn"), random(rng, (k, n), "float8_e4m3fn")
        c, bias = rng.standard_normal((m, n)), rng.standard_normal(n)
        given = []
        for out, activation in itertools.product(RESULTS, (None, "relu", "gelu")):
            p = Product(a, b, out=out, c=c.astype(np.dtype(out)), bias=bias.astype(np.dtype(out)))
            p = replace(p, alpha=0.5, beta=2.0, activation=activation)
            given += [p, replace(p, c=None, beta=0.0)]
        calls = []
        for p in given:
            more = {"c": p.c, "beta": p.beta} if p.beta else {}
            more |= {"out_dtype": p.out, "bias": p.bias, "alpha": p.alpha, "activation": p.activation}
            calls.append((a, b, more))
        for p, got in zip(given, products(calls, layout), strict=True):
            p.check(got, "sm90")


def test_epilogue_of_integers(rng):
    """The kernel scales; what is added is jnp's."""
    a, b = random(rng, (70, 96), "int8"), random(rng, (96, 48), "uint8")
    z = exact(a, b).astype(np.int64)
    c, bias = rng.integers(-999, 999, (70, 48), np.int32), rng.integers(-999, 999, 48, np.int32)
    more = {"c": c, "beta": 2, "bias": bias, "activation": "relu"}
    for layout in cases.LAYOUTS:
        scaled, got = products([(a, b, {"alpha": -3}), (a, b, {"alpha": -3, **more})], layout)
        np.testing.assert_array_equal(scaled, -3 * z)
        np.testing.assert_array_equal(got, np.maximum(-3 * z + 2 * c + bias, 0))


def test_nothing_to_add_up():
    types = [*INTEGERS, *FLOATS]
    calls = [(np.zeros((5, 0), np.dtype(a)), np.zeros((0, 7), np.dtype(b)), {}) for a, b in types]
    for got, (a, _) in zip(products(calls), types, strict=True):
        assert got.shape == (5, 7), a
        assert not got.any(), a


SCALES = tuple(itertools.product(("none", "whole", "lines"), repeat=2))[1:]


def scales_of(rng, kinds, m, n):
    shapes = {"none": None, "whole": ((), ()), "lines": ((m, 1), (1, n))}
    given = {}
    for i, (name, kind) in enumerate(zip(("a_scale", "b_scale"), kinds, strict=True)):
        if shapes[kind] is not None:
            given[name] = rng.uniform(0.0005, 0.005, shapes[kind][i]).astype(np.float32)
    return given


def check_scaled(a, b, got, given, bias=None, activation=None, known=None):
    """``known``: of operands that are multiplied several times, their ``sums``."""
    factor = np.asarray(given.get("a_scale", 1.0), np.float64) * np.asarray(given.get("b_scale", 1.0), np.float64)
    z, of_magnitudes = known or sums(a, b)
    want = z * factor + (0 if bias is None else bias.astype(np.float64))
    lost = 2.0**-22 if a.dtype.kind in "iu" else sum_eps("float8", a.shape[-1])
    bound = (lost + 2.0**-21) * of_magnitudes * factor + 2.0**-21 * abs(want)
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
    calls = []
    for (m, n, k), kinds, out in zip(shapes * 2, itertools.cycle(SCALES), itertools.cycle(RESULTS), strict=False):
        a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
        given = scales_of(rng, kinds, m, n)
        calls.append((a, b, {"out_dtype": out, **given}))
        bias = rng.standard_normal(n).astype(np.dtype(out))
        calls.append((a, b, {"out_dtype": out, "bias": bias, "activation": "relu", **given}))
    for (a, b, given), got in zip(calls, products(calls, layout), strict=True):
        assert got.dtype == given["out_dtype"]
        check_scaled(a, b, got, given, given.get("bias"), given.get("activation"))


@pytest.mark.parametrize("types", [("int8", "uint8"), ("float8_e4m3fn", "float8_e5m2")], ids="-".join)
def test_scales_in_every_tile(types, rng):
    m, n, k = 528, 304, 400
    a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
    given, known = scales_of(rng, ("lines", "lines"), m, n), sums(a, b)
    for layout, tiles, swaps in ("NT", TILES, (1, 2)), ("NN", [(128, columns) for columns in TURNED], (2,)):
        calls = [
            (a, b, {"out_dtype": out, "tile_m": tile_m, "tile_n": tile_n, "swap": swap, **given})
            for (tile_m, tile_n), out, swap in itertools.product(tiles, RESULTS, swaps)
        ]
        for got in products(calls, layout):
            check_scaled(a, b, got, given, known=known)


# Of sums of one sign: an instruction cuts each of its 33 addends (32 products and the sum before them) to 13 bits below
# the largest, so it loses half a bit of each on average. Of the four that add up 128 products the largest addend is a
# product, then 1/4, 1/2 and 3/4 of the result.
PROMOTED = 33 * 0.5 * 1.5 * 2.0**-13


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("types", FLOATS, ids="-".join)
def test_promoted_sums(types, layout, rng):
    """At the highest precision the error does not grow with k; C, a bias and scales follow as ever."""
    shapes = (64, 64, 128), (200, 144, 4096), (65, 33, 20000), (16, 512, 1000)
    calls, wanted = [], []
    for (m, n, k), out in zip(shapes, itertools.cycle(RESULTS), strict=False):
        a, b = abs(random(rng, (m, k), types[0])), abs(random(rng, (k, n), types[1]))  # of one sign
        z, highest = exact(a, b), {"precision": "highest", "out_dtype": out}
        c, bias = (rng.standard_normal(s).astype(np.dtype(out)) for s in ((m, n), (n,)))
        given = scales_of(rng, ("lines", "whole"), m, n)
        calls += [(a, b, {**highest, **more}) for more in ({}, {"c": c, "bias": bias}, given)]
        allowed = PROMOTED + float(jnp.finfo(out).eps)
        wanted.append((z, allowed * z))
        wanted.append((z + c.astype(np.float64) + bias.astype(np.float64), allowed * (z + 8)))
        scaled = z * given["a_scale"] * given["b_scale"]
        wanted.append((scaled, allowed * scaled + 1e-30))
    for got, (want, bound) in zip(products(calls, layout), wanted, strict=True):
        assert (abs(got.astype(np.float64) - want) <= bound).all()


@pytest.mark.parametrize("types", [INTEGERS[1], FLOATS[1]], ids="-".join)
@pytest.mark.parametrize("slices", [2, 4, 8])
@pytest.mark.parametrize("layout", ["NN", "TT", "NT"])
def test_blocks_of_a_cluster_that_share_k(types, layout, slices, rng):
    """x from registers (B of NN, A of TT), where all warps share a tile, and from shared memory (NT)."""
    calls = []
    for tile_n, (n, m, k) in itertools.product((16, 64), ((304, 16, 2048), (144, 203, 4099), (32, 1, 1030))):
        m, n = (n, m) if layout == "TT" else (m, n)  # rows of what is turned begin at multiples of 16 bytes
        tile = {"tile_m": 64 if layout == "NT" else 128, "tile_n": tile_n}
        given = {**tile, "split_k": slices, "reduction": 2}
        a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
        calls.append((a, b, given if a.dtype.kind in "iu" else given | {"out_dtype": "bfloat16"}))
    check(calls, layout)
    for first, again in zip(*(products(calls, layout) for _ in range(2)), strict=True):
        assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("types", [*INTEGERS[1:3], *FLOATS[1:3]], ids="-".join)
@pytest.mark.parametrize(("layout", "split", "reduction"), [("NN", 2, 1), ("NT", 7, 1), ("NN", 4, 2), ("NT", 2, 2)])
def test_scales_of_sums_that_are_split(types, layout, split, reduction, rng):
    """What adds up the pieces of k scales them: with a bias and an activation, and rows that are cut."""
    shapes, calls = ((16, 256, 4096), (33, 130, 2000), (5, 7, 1000)), []
    for (m, n, k), kinds, out in zip(shapes * 3, itertools.cycle(SCALES), itertools.cycle(RESULTS), strict=False):
        a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
        given = {"out_dtype": out, "split_k": split, "reduction": reduction, **scales_of(rng, kinds, m, n)}
        bias = rng.standard_normal(n).astype(np.dtype(out))
        calls += [(a, b, given), (a, b, {"bias": bias, "activation": "relu", **given})]
    for (a, b, given), got in zip(calls, products(calls, layout), strict=True):
        check_scaled(a, b, got, given, given.get("bias"), given.get("activation"))
