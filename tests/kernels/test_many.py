"""Many products of different shapes by kernels that share launches: what they compute, how often they launch, and what
a call of them must be."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from arrays import array
from calls import ints
from fuzz_many import TILES
from guards import guarded, wrote_outside
from oracle import Product, dtype_of, poison

import jaxgemm
from jaxgemm import wire
from jaxgemm._runtime import ffi
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import H200, find_kernel
from jaxgemm.measure.timing import device_recorder
from jaxgemm.problem import Matrix, Problem

ROW = find_kernel("sm90")
#: Planes, and operands of 8 bits, are of single products.
TYPES = [types[0::2] for types in ROW.types if dtype_of(types[0]).itemsize == 2]
built = pytest.mark.skipif(not ROW.built, reason="this build has no such kernel")
#: Products in a launch at most, and unaligned operands in a copy's: as many as a kernel's parameters hold.
IN_A_LAUNCH, IN_A_COPY = 63, 315

#: (m, n, k): around the tiles' edges, unaligned in each operand and in the result, and empty in every way.
SHAPES = (
    *((1, 1, 1), (3, 5, 7), (17, 33, 65), (64, 64, 64), (65, 63, 66), (128, 256, 64), (129, 257, 63), (200, 40, 328)),
    *((0, 8, 8), (8, 0, 8), (8, 8, 0), (1, 300, 130), (300, 1, 130), (255, 264, 8), (72, 136, 1000)),
)


def whole(rng, shape, dtype):
    """Integers so small that sums of few hundred products are exact in every type of a result."""
    return rng.integers(-1, 2, shape).astype(dtype_of(dtype))


def sides(shapes, layout="NN"):
    """The shapes of all a, and of all b, as they are stored."""
    a = [(k, m) if layout[0] == "T" else (m, k) for m, _, k in shapes]
    return a, [(n, k) if layout[1] == "T" else (k, n) for _, n, k in shapes]


def operands(rng, shapes, dtype="bfloat16", layout="NN", draw=whole):
    """Operands as they are stored."""
    return [[draw(rng, shape, dtype) for shape in side] for side in sides(shapes, layout)]


def program(layout="NN", **keywords):
    keywords.setdefault("kernel", "sm90")

    def run(a, b):
        a = [x.T for x in a] if layout[0] == "T" else a
        b = [y.T for y in b] if layout[1] == "T" else b
        return jaxgemm.grouped_gemm(a, b, **keywords)

    return jax.jit(run)


def on_device(given):
    return [array(x) for x in given]


def run(a, b, out, layout="NN", **keywords):
    """Results of a compiled program, in memory that held NaN."""
    arrays = on_device(a), on_device(b)
    compiled = program(layout, preferred_element_type=out, **keywords).lower(*arrays).compile()
    poison([z.shape for z in jax.tree.leaves(compiled.out_info)], out)
    return [np.asarray(z) for z in compiled(*arrays)]


def check(got, a, b, layout="NN", label=""):
    """Against exact sums, rounded to the results' type: integers as `whole` draws them."""
    assert len(got) == len(a)
    for i, (z, x, y) in enumerate(zip(got, a, b, strict=True)):
        x, y = (x.T if layout[0] == "T" else x), (y.T if layout[1] == "T" else y)
        want = (x.astype(np.float64) @ y.astype(np.float64)).astype(z.dtype)
        np.testing.assert_array_equal(z, want, err_msg=f"{label} product {i} of {x.shape} and {y.shape}")


# --- What the kernel computes ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "out"), TYPES)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_layouts_and_types(dtype, out, layout, rng):
    a, b = operands(rng, SHAPES, dtype, layout)
    check(run(a, b, out, layout), a, b, layout)
    aligned = [tuple(-(-x // 8) * 8 for x in shape) for shape in SHAPES]
    a, b = operands(rng, aligned, dtype, layout)
    check(run(a, b, out, layout), a, b, layout)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "{tile_m}x{tile_n}".format(**tile))
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_tiles(tile, layout, rng):
    """Every tile at its own edges, with one row of tiles walked at a time, several, and more than 32 bits count."""
    m, n = tile["tile_m"], tile["tile_n"]
    shapes = [(m + i, n + j, 64 + d) for i in (-1, 0, 1, 8) for j in (-1, 0, 8) for d in (-8, 0, 1)]
    shapes += [(m // 2, n, 72), (m // 2 + 1, n, 72), (3 * m, 5 * n, 40), (5 * m + 7, 3 * n + 8, 136), (2, 2, 2)]
    a, b = operands(rng, shapes, layout=layout)
    for height in (1, 2, 1000, 2**32):
        for out in ("bfloat16", "float32"):
            check(run(a, b, out, layout, **tile, walk_height=height), a, b, layout, f"height {height}, {out}:")


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2, 37, IN_A_LAUNCH, IN_A_LAUNCH + 1, 300])
def test_any_number_of_products(count, rng):
    """Of random shapes, one in ten empty."""
    shapes = [tuple(int(x) for x in np.where(rng.random(3) < 0.04, 0, 2 ** rng.uniform(0, 8, 3))) for _ in range(count)]
    a, b = operands(rng, shapes)
    for out in ("bfloat16", "float32"):
        check(run(a, b, out), a, b, label=out)


@pytest.mark.gpu
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_random_numbers(out, rng):
    """Sums of any length, within float64's bounds."""
    shapes = [(300, 520, 4096), (64, 72, 20000), (1, 9, 3001), (129, 1000, 72), (77, 333, 1001)]
    given = [Product.random(rng, shape, ("bfloat16", "bfloat16", out, "float32")) for shape in shapes]
    got = run([p.a for p in given], [p.b for p in given], out)
    for p, z in zip(given, got, strict=True):
        p.check(z, "sm90")


@pytest.mark.gpu
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "{tile_m}x{tile_n}".format(**tile))
def test_many_more_tiles_than_blocks(tile, rng):
    """Rings and buffers go round, warpgroups take turns, and results leave in different ways one after the other."""
    shapes = [(2000, 1000 + i % 9, 64 + 8 * i) for i in range(12)] + [(1 + i, 4096, 200) for i in range(20)]
    a, b = operands(rng, shapes)
    for out in ("bfloat16", "float32"):
        check(run(a, b, out, **tile), a, b)


@pytest.mark.gpu
def test_nothing_is_written_beside_results(rng):
    a, b = operands(rng, [s for s in SHAPES if all(s)])
    for out in ("bfloat16", "float32"):
        with guarded() as called:
            got = [np.asarray(z) for z in program(preferred_element_type=out)(on_device(a), on_device(b))]
        assert called == ["sm90"]
        assert not any(map(wrote_outside, got))
        check(got, a, b)


@pytest.mark.gpu
def test_special_values_stay_in_their_products(rng):
    """Those of one product, its neighbours in memory and in the launch apart."""
    shapes = [(70, 40, 72), (65, 66, 67), (70, 40, 72), (5, 9, 3)]
    a, b = operands(rng, shapes)
    for hurt in range(len(shapes)):
        x, y = [v.copy() for v in a], [v.copy() for v in b]
        x[hurt][:], y[hurt][:] = np.nan, np.inf
        for i, (z, m, n) in enumerate(zip(run(x, y, "bfloat16"), a, b, strict=True)):
            if i == hurt:
                assert np.isnan(z.astype(np.float32)).all()
            else:
                check([z], [m], [n])


@pytest.mark.gpu
def test_the_same_bits_every_time(rng):
    shapes = [(700, 520, 1000), (129, 1001, 77), (8, 64, 4096), (1000, 72, 333)]
    draw = lambda rng, shape, dtype: rng.standard_normal(shape).astype(dtype_of(dtype))  # noqa: E731
    a, b = operands(rng, shapes, draw=draw)
    first = [z.tobytes() for z in run(a, b, "float32")]
    for _ in range(5):
        assert [z.tobytes() for z in run(a, b, "float32")] == first


@pytest.mark.gpu
def test_gradients(rng):
    """Backward passes are of the two other layouts."""
    shapes = [s for s in SHAPES if all(s)]
    a, b = operands(rng, shapes)
    cts = [whole(rng, (m, n), "bfloat16") for m, n, _ in shapes]
    arrays = [on_device(given) for given in (a, b, cts)]

    @jax.jit
    def backward(a, b, cts):
        return jax.vjp(lambda *x: jaxgemm.grouped_gemm(*x, kernel="sm90"), a, b)[1](cts)

    text = backward.lower(*arrays).as_text()
    assert text.count("@jaxgemm_many_gemm") == 2
    da, db = ([np.asarray(x) for x in of] for of in backward(*arrays))
    check(da, cts, b, "NT")
    check(db, a, cts, "TN")


def kernels_of(compiled, *arrays):
    """The names of the kernels that a call of a compiled program runs."""
    recorder, how = device_recorder("cuda")
    if recorder is None:
        pytest.skip(how)
    jax.block_until_ready(compiled(*arrays))
    recorder.start()
    try:
        jax.block_until_ready(compiled(*arrays))
    finally:
        records = recorder.stop()
        recorder.detach()
    return [name for name, *_ in records]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2, 37, 300])
def test_launches(count, rng):
    """As many as parameters make them: of products, and of the copies of unaligned operands."""
    for k, copies in ((64, 0), (65, 2 * count)):
        a, b = operands(rng, [(8 + i, 24 + k % 8, k) for i in range(count)])
        arrays = on_device(a), on_device(b)
        found = kernels_of(program().lower(*arrays).compile(), *arrays)
        assert sum("gemm_sm90" in name for name in found) == -(-count // IN_A_LAUNCH)
        assert sum("repack" in name for name in found) == -(-copies // IN_A_COPY)
        assert len([name for name in found if "sm90" in name]) == len(found)


# --- When they share launches ---------------------------------------------------------------------------------


def lowered(shapes, dtype="bfloat16", layout="NN", **keywords):
    keywords.setdefault("kernel", "auto")
    given = [[jax.ShapeDtypeStruct(s, dtype_of(dtype)) for s in side] for side in sides(shapes, layout)]
    return program(layout, **keywords).trace(*given).lower(lowering_platforms=("cuda",)).as_text()


@built
def test_auto_shares_launches():
    assert lowered([(64, 64, 64)] * 300).count("@jaxgemm_many_gemm") == 1
    mixed = lowered(SHAPES)
    assert mixed.count("@jaxgemm_many_gemm") == 1
    assert "dot_general" not in mixed
    for text in (lowered([(64, 64, 64), (8, 0, 8)]), lowered(SHAPES, "float32")):
        assert "@jaxgemm_many_gemm" not in text
    assert lowered([(64, 64, 64)], kernel="sm90").count("@jaxgemm_many_gemm") == 1
    assert "jaxgemm_many" not in lowered(SHAPES, kernel="xla")


@built
def test_transpositions_are_read_in_place():
    for layout, wanted in (("NT", "[0, 1]"), ("TN", "[1, 0]"), ("TT", "[1, 0]")):
        assert f"transposed = dense<{wanted}>" in lowered([(64, 72, 80), (8, 16, 24)], layout=layout)


def explained(shapes, dtype="bfloat16", **keywords):
    given = [[jax.ShapeDtypeStruct(s, dtype_of(dtype)) for s in side] for side in sides(shapes)]
    return jaxgemm.explain(program(**keywords), *given, platform="cuda").products


@built
@pytest.mark.parametrize(
    ("shapes", "dtype", "asked", "chosen", "rule"),
    [
        (SHAPES, "bfloat16", "auto", "sm90", "many-one-launch"),
        (SHAPES, "float16", "sm90", "sm90", "by-name"),
        ([(64, 64, 64), (8, 0, 8)], "bfloat16", "auto", None, "few-products"),
        ([(8, 0, 8)], "bfloat16", "sm90", None, "few-products"),
        (SHAPES, "float32", "auto", None, "no-kernel-fits"),
        (SHAPES, "bfloat16", "sm80", None, "no-many-form"),
        (SHAPES, "bfloat16", "xla", None, "by-name"),
    ],
)
def test_explain_says_how_each_is_computed(shapes, dtype, asked, chosen, rule):
    found = explained(shapes, dtype, kernel=asked)
    assert len(found) == len(shapes)
    for product, (m, n, k) in zip(found, shapes, strict=True):
        problem = product.decision.problem
        assert problem is None or (problem.m, problem.n, problem.k) == (m, n, k)
        if chosen is None:
            assert product.many.startswith("by itself: ")
            assert f"({rule})" in product.many
        else:
            assert (product.kernel, product.decision.choice.rule) == (chosen, rule)
            assert product.many == (f"one of {len(shapes)}" if m and n and k else "zeros, without a launch")
            assert "  many " in str(product)


@built
def test_what_the_kernel_cannot_do_is_said():
    with pytest.raises(jaxgemm.UnsupportedError, match="multiplies planes of fp32 operands in single products"):
        lowered(SHAPES, "float32", kernel="sm90")
    with pytest.raises(
        jaxgemm.UnsupportedError, match="many products of kernel 'sm90' have a cluster_m and a cluster_n of 1"
    ):
        lowered(SHAPES, kernel="sm90", cluster_m=2)
    with pytest.raises(jaxgemm.UnsupportedError, match="no tile of many products matches the options"):
        lowered(SHAPES, kernel="sm90", split_k=2)


def problem(m, n, k, transposed=(False, False), types=("bfloat16",) * 3):
    a, b = (Matrix(t, max(pitch, 1), (0, 0)) for t, pitch in zip(transposed, (k, n), strict=True))
    return Problem(m, n, k, (1, 1), a, b, types, Epilogue())


def checked(problems, arch=90, **changed):
    """(what is wrong with a call, its workspace), as the check says that is made while tracing."""
    attributes = wire.many_attributes("sm90", (), problems) | changed
    return ffi.check_many({name: x for name, x in attributes.items() if x is not None}, list(problems[0].dtypes), arch)


@built
def test_workspace_holds_what_is_unaligned():
    """Rows of 33 elements are copied to whole lines."""
    assert checked([problem(64, 64, 64), problem(8, 16, 24)]) == ("", 0)
    one = checked([problem(64, 64, 33)])[1]
    assert one >= 64 * 40 * 2
    assert checked([problem(64, 64, 33), problem(64, 64, 64), problem(64, 64, 33)]) == ("", 2 * one)


@built
def test_two_transposed_operands_have_no_tiles():
    wrong = checked([problem(64, 64, 64, (True, True))])[0]
    assert wrong == "kernel 'sm90' has no tiles of many products for two transposed operands"
    assert "must not be empty" in checked([problem(64, 64, 64), problem(64, 0, 64)])[0]
    assert "2^31" in checked([problem(1 << 31, 1, 1)])[0]
    assert "2^29 tiles" in checked([problem(1 << 30, 64 << 10, 1)])[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kernel": None}, "attribute 'kernel': it is missing"),
        ({"kernel": "none"}, "attribute 'kernel': no kernel is named 'none'"),
        ({"kernel": "host"}, "kernel 'host' has no form for many products"),
        ({"dims": ints()}, "attribute 'dims': expected 3 integers (m, n, k) for each product, got 0"),
        ({"dims": ints(1, 2, 3, 4)}, "attribute 'dims': expected 3 integers (m, n, k) for each product, got 4"),
        ({"dims": ints(1, -2, 3)}, "attribute 'dims': n must not be negative, got -2"),
        ({"dims": ints(1 << 40, 1 << 40, 1)}, "passes 2^60 elements"),
        ({"dims": 3}, "attribute 'dims': it has a wrong type"),
        ({"transposed": ints(0)}, "attribute 'transposed': expected 2 integers (of a, of b), each 0 or 1"),
        ({"transposed": ints(0, 2)}, "attribute 'transposed': expected 2 integers (of a, of b), each 0 or 1"),
        ({"config": ints(1, 2)}, "got 2 values"),
        ({"config": None}, "attribute 'config': it is missing"),
        ({"arithmetic": None}, "attribute 'arithmetic': it is missing"),
        (
            {"arithmetic": "exact"},
            "attribute 'arithmetic': got 'exact', expected one of plain, tf32, bf16, bf16_x3, bf16_x6, bf16_x9, f16_x3",
        ),
        ({"alpha": 1.0}, "expected 5 attributes, got 6"),
    ],
    ids=str,
)
def test_attributes(changed, message):
    assert message in checked([problem(8, 8, 8)], **changed)[0]


def test_a_type_or_a_device_without_the_form():
    if not ROW.built:
        assert checked([problem(8, 8, 8)])[0] == "kernel 'sm90' is a CUDA kernel and this build has none"
        return
    assert "the device has 8.0" in checked([problem(8, 8, 8)], arch=80)[0]
    wrong = checked([problem(8, 8, 8, types=("float32",) * 3)])[0]
    assert wrong.startswith("kernel 'sm90' multiplies float32 x float32 -> float32 in the arithmetic")
    wrong = checked([problem(8, 8, 8)], arithmetic="tf32")[0]
    assert wrong.endswith("bfloat16 x bfloat16 -> bfloat16 in the arithmetic 'plain', got 'tf32'")
    with pytest.raises(ValueError, match="expected the types of a, b and d"):
        ffi.check_many(wire.many_attributes("sm90", (), [problem(8, 8, 8)]), ["bfloat16"], H200.arch)
