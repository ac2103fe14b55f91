"""Products of groups in float32, of one operand or of both, split into products of bfloat16."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from grouped import SUMS as NUMBERS
from grouped import by_rows, by_sums
from jax.sharding import PartitionSpec as P
from meshes import mesh, put

import jaxgemm
from jaxgemm.choice.xla_times import dense_microseconds
from jaxgemm.kernels import H200, find_kernel
from jaxgemm.ragged import arguments, parts
from jaxgemm.ragged.form import Form, problem
from jaxgemm.ragged.product import GROUPED, grouped_p

M, K, N, GROUPS = 37, 16, 24, 5
SIZES = array([5, 0, 20, 3, 4], np.int32)
ROWS, TURNED, SUMS = Form(False, False, GROUPS), Form(False, True, GROUPS), Form(True, False, GROUPS)
FORMS = {"rows": ROWS, "transposed": TURNED, "sums": SUMS}
#: Which operands are float32.
WIDE = {"lhs": (0,), "rhs": (1,), "both": (0, 1)}
#: Largest error over the largest result, by precision: of 16 bits of 24, and of all, with what sums of 60 terms lose.
ERRORS = {None: 2.0**-16, "highest": 2.0**-19}
built = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
wide = pytest.mark.parametrize("wide", WIDE.values(), ids=WIDE)


def params_of(form, precision=None, out="float32"):
    return arguments.parameters(precision=precision, out=np.dtype(out), kernel="auto") | {"form": form}


def operands(rng, form, wide):
    """bfloat16 but for the operands of those numbers, whose rows are of very different sizes."""
    weights = (GROUPS, N, K) if form.transposed else (GROUPS, K, N)
    arrays = []
    for i, shape in enumerate([(M, K), (M, N) if form.sums else weights]):
        x = rng.standard_normal(shape)
        spread = np.exp(4 * rng.standard_normal((M, 1))) if x.ndim == 2 else 1
        arrays.append(array(x * spread, np.float32) if i in wide else array(x, jnp.bfloat16))
    return arrays


def product(x, y, params, sizes=SIZES, offset=0):
    """As a kernel of bfloat16 would be called."""
    found = parts.of((x, y), params)
    given = parts.products(found, [x, y, sizes, jnp.full(1, offset, jnp.int32)], params)
    shapes = parts.types(found, [x, y, sizes, None], params)
    for made, wanted in zip(given, shapes, strict=True):
        assert [(v.shape, v.dtype) for v in made[:2]] == [(v.shape, jnp.bfloat16) for v in wanted[:2]]
    return parts.joined(found, [grouped_p.bind(*made, **parts.result_params(params)) for made in given], params)


def exact(form, x, y):
    if form.sums:
        return by_sums(x, y, SIZES)
    return by_rows(x, y.mT if form.transposed else y, SIZES)


@pytest.mark.parametrize("precision", ERRORS)
@forms
@wide
def test_bits(form, wide, precision, rng):
    """XLA may keep more bits than a type has, and must not here: then what is left of a number would be 0."""
    x, y = operands(rng, form, wide)
    params = params_of(form, precision)
    if precision == "highest" and len(wide) == 2:
        assert parts.of((x, y), params) is None
        return
    got, want = jax.jit(partial(product, params=params))(x, y), exact(form, x, y)
    scale = np.abs(want).max(axis=-1, keepdims=True)
    assert np.max(np.abs(got - want) / np.where(scale == 0, 1, scale)) < ERRORS[precision]


@forms
@wide
def test_a_batch_and_sizes_of_any_sum(form, wide, rng):
    x, y = operands(rng, form, wide)
    sizes = array([[2**31 - 1, 3, 0, 0, 0], [-5, 10, 1, 0, 7]], np.int32)
    xs, ys = jnp.stack([x, x[::-1]]), jnp.stack([y, y + 1])
    got = product(xs, ys, params_of(form), sizes, 1)
    np.testing.assert_array_equal(got, jax.vmap(lambda x, y, s: product(x, y, params_of(form), s, 1))(xs, ys, sizes))
    for i in range(2):
        pair = [v.astype(jnp.float32) for v in (xs[i], ys[i])]
        want = grouped_p.bind(*pair, sizes[i], jnp.ones(1, jnp.int32), **params_of(form))
        scale = np.abs(want).max(axis=-1, keepdims=True)
        assert np.max(np.abs(got[i] - want) / np.where(scale == 0, 1, scale)) < 2**-14


@forms
@wide
@pytest.mark.parametrize("where", [0, 1], ids=["in lhs", "in rhs"])
def test_infinity_and_nan_stay_what_they_are(where, form, wide, rng):
    """In numbers that are their own first part, and in others; each in a group of its own."""
    arrays = [jnp.round(16 * v) / 16 for v in operands(rng, form, wide)]
    for row, group, bad in ((2, 0, np.inf), (10, 2, -np.inf), (26, 3, np.nan)):
        place = (row, 1) if arrays[where].ndim == 2 else (group, 3, 1)
        arrays[where] = arrays[where].at[place].set(bad)
    got, want = product(*arrays, params_of(form)), exact(form, *arrays)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    np.testing.assert_array_equal(got[np.isinf(got)], want[np.isinf(want)])


def test_the_largest_numbers_stay_finite():
    most = float(np.finfo(np.float32).max)
    x = jnp.full((M, K), most, jnp.float32).at[:, 1:].set(0)
    w = jnp.full((GROUPS, K, N), 0.25, jnp.float32)
    got = product(x, w, params_of(ROWS))
    np.testing.assert_allclose(got[:30], np.full((30, N), 0.25 * most, np.float32), rtol=2**-15)


def test_what_is_not_split(rng):
    x, w = (v.astype(jnp.float32) for v in operands(rng, ROWS, (0,)))
    assert parts.of((x, w), params_of(ROWS)) == parts.Parts(2, 2)
    assert parts.of((x, w), params_of(ROWS, "highest")) is None
    assert parts.of((x, w), params_of(ROWS, jax.lax.DotAlgorithmPreset.F32_F32_F32)) is None
    for types in (("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float16"), ("int8", "float32")):
        assert parts.of([v.astype(t) for v, t in zip((x, w), types, strict=True)], params_of(ROWS)) is None
    for out in ("float64", "complex64", "int32", "bool"):
        assert parts.of((x, w), params_of(ROWS, out=out)) is None


@built
def test_every_launch_is_chosen_once(monkeypatch):
    """What explain prints is what is launched: the choice has a choice for each call, and lowering makes no other."""
    operands = [jax.ShapeDtypeStruct(s, t) for s, t in (((4096, 512), "float32"), ((8, 512, 768), "float32"))]
    operands += [jax.ShapeDtypeStruct((8,), "int32"), jax.ShapeDtypeStruct((1,), "int32")]
    params = params_of(Form(False, False, 8)) | {"kernel": "sm90", "batch_invariant": True}  # which is of parts
    decision = GROUPED.decided("cuda", operands, params)
    choice = decision.choice
    (second,) = choice.further
    assert choice.kernel is second.kernel is find_kernel("sm90")
    beside = parts.microseconds(parts.of(operands, params), operands, params, H200)
    assert choice.ours == pytest.approx(beside + choice.expected + second.expected)
    launched = []

    def call(choice, problem, shape, _):
        launched.append((choice, problem.m))
        return jnp.zeros(shape, problem.dtypes[2])

    monkeypatch.setattr("jaxgemm.ragged.product.call", call)
    monkeypatch.setattr("jaxgemm.ragged.product.choose", None)
    jax.eval_shape(lambda *given: GROUPED.launch(decision, *given, **params), *operands)
    assert launched == [(choice, 2 * 4096), (second, 4096)]


@pytest.mark.parametrize("platform", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("types", [("bfloat16", "bfloat16"), ("float32", "float32"), ("float32", "bfloat16")])
def test_gradients(types, platform, rng):
    """Of both operands, and of these again, within the rounding of bfloat16, or of its pairs."""
    kernel = "sm90" if platform == "cuda" else "auto"  # which leaves products as small as these to XLA
    x, w = (array(rng.standard_normal(s) * 0.3, t) for s, t in zip(((M, K), (GROUPS, K, N)), types, strict=True))
    exactly = [v.astype(jnp.float64) for v in (x, w)]

    def of(product, x, w):
        return jnp.sum(jnp.sin(product(x, w, SIZES)))

    def second(function, x, w):
        return jax.grad(lambda x: jnp.sum(jax.grad(function, 1)(x, w).astype(x.dtype) ** 2))(x)

    ours = partial(of, partial(jaxgemm.ragged_dot, preferred_element_type=jnp.float32, kernel=kernel))
    rounding = 2.0**-7 if "bfloat16" in types else 2.0**-13
    with jax.default_device(jax.devices(platform)[0]):
        for got, want in (
            (jax.jit(jax.grad(ours, (0, 1)))(x, w), jax.grad(partial(of, by_rows), (0, 1))(*exactly)),
            ([jax.jit(partial(second, ours))(x, w)], [second(partial(of, by_rows), *exactly)]),
        ):
            for a, b, v in zip(got, want, (x, w), strict=False):
                assert a.dtype == v.dtype
                scale = float(jnp.abs(b).max())
                np.testing.assert_allclose(a.astype(jnp.float64), b, rtol=2 * rounding, atol=rounding * scale)


@pytest.mark.gpu
@forms
@pytest.mark.parametrize("kernel", ["auto", "sm90"])
def test_float32_on_a_gpu(kernel, form, rng):
    """With rows of any alignment, empty groups, and NaN in rows of no group."""
    for m, k, n, held in ((1000, 264, 200, 6), (999, 131, 67, 3)):
        x, y = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (m, n) if form.sums else (held, k, n)))
        sizes = np.array([m // 3, 0, m // 2, 1, 0, 20][:held], np.int32)
        ends = np.cumsum(sizes)
        x[ends[-1] :] = np.nan
        parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        x64, y64 = x.astype(np.float64), y.astype(np.float64)
        want = np.zeros((held, k, n) if form.sums else (m, n))
        for g, rows in enumerate(parts):
            want[g if form.sums else rows] = x64[rows].T @ y64[rows] if form.sums else x64[rows] @ y64[g]
        if form.transposed:
            y = np.ascontiguousarray(y.swapaxes(1, 2))
        numbers = {
            "dot_dimension_numbers": (((0,), (0,)) if form.sums else ((1,), (2 if form.transposed else 1,)), ((), ())),
            "lhs_ragged_dimensions": [0],
            "rhs_group_dimensions": [] if form.sums else [0],
        }
        dims = jax.lax.RaggedDotDimensionNumbers(**numbers)
        run = jax.jit(partial(jaxgemm.ragged_dot_general, ragged_dot_dimension_numbers=dims, kernel=kernel))
        got = np.asarray(run(x, y, sizes))
        bound = 2.0**-15 if kernel == "sm90" else 2.0**-10
        assert np.abs(got - want).max() < bound * np.sqrt(max(m, k)) * 4
        assert kernel == "auto" or got.tobytes() == np.asarray(run(x, y, sizes)).tobytes()


@pytest.mark.gpu
def test_float32_rows_are_invariant_on_a_gpu(rng):
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((300, 64), (3, 64, 72)))
    run = jax.jit(partial(jaxgemm.ragged_dot, batch_invariant=True, bias=np.ones((3, 72), np.float32)))
    whole = np.asarray(run(x, w, np.array([200, 30, 70])))
    np.testing.assert_array_equal(whole[200:230], np.asarray(run(x[150:], w, np.array([50, 30, 70])))[50:80])


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_on_several_devices(dtype, types, rng):
    on = mesh(types=types)
    x, w = (array(rng.standard_normal(s), dtype) for s in ((32, K), (4, K, N)))
    sizes = array([5, 0, 20, 3], np.int32)

    def total(x, w, sizes, out=None):
        z = jaxgemm.ragged_dot(x, w, sizes, preferred_element_type=jnp.float32, out_sharding=out)
        return jnp.sum(jnp.sin(z))

    want = jax.jit(jax.grad(total, (0, 1)))(x, w, sizes)
    for over in (P("y"), P("x"), P(None, None, "x")):
        out = P("y") if types == "Explicit" and over == P("x") else None
        given = put(x, on, P("y")), put(w, on, over if over != P("y") else P()), put(sizes, on, P())
        with jax.set_mesh(on):
            got = jax.jit(jax.grad(partial(total, out=out), (0, 1)))(*given)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=2**-6, atol=2**-5)


def lowered(function, *structs):
    return jax.jit(function).trace(*structs).lower(lowering_platforms=("cuda",)).as_text()


@built
def test_kernels_compute_gradients_of_float32_results():
    structs = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((8192, 1024), (GROUPS, 1024, 2048))]
    for precision, count in ((None, 2), ("highest", 3)):

        def loss(x, w, precision=precision):
            z = jaxgemm.ragged_dot(x, w, SIZES, precision=precision, preferred_element_type=jnp.float32)
            return jnp.sum(jnp.sin(z))

        gradient = jax.grad(loss, (0, 1))
        assert lowered(gradient, *structs).count("@jaxgemm_grouped_gemm") == 3
        first, *derived = jaxgemm.explain(gradient, *structs, platform="cuda").products
        assert first.decision.choice.why == "one launch for all groups"
        for found in derived:
            assert found.kernel == "sm90"
            assert f"float32 as {count} of bfloat16 each" in str(found)
            assert found.floor.unit == "16-bit tensor"


@built
def test_where_float32_is_a_kernels():
    """Where groups have many rows. Of few, parts of weights take longer to make than XLA to multiply."""

    def products(rows, k=1024, n=2048, groups=16, **options):
        structs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((rows, k), (groups, k, n))]
        sizes = jax.ShapeDtypeStruct((groups,), jnp.int32)
        function = partial(jaxgemm.ragged_dot, **options)
        (found,) = jaxgemm.explain(function, *structs, sizes, platform="cuda").products
        return found, lowered(function, *structs, sizes).count("@jaxgemm_grouped_gemm")

    found, launches = products(8192)
    assert (found.kernel, found.floor.unit, launches) == ("sm90", "tf32 tensor", 1)
    assert found.decision.choice.arithmetic == "bf16_x3"
    assert found.decision.choice.ours < found.decision.choice.theirs
    found, launches = products(8192, 2048, 8192, 64)  # weights take long to split, and their parts a launch each
    assert (found.kernel, launches) == ("sm90", 2)
    assert "float32 as 2 of bfloat16 each, a launch for each part of rhs" in str(found)
    for given in ({"rows": 16}, {"rows": 16, "precision": "highest"}, {"rows": 8192, "precision": "F32_F32_F32"}):
        found, launches = products(**given)
        assert (found.kernel, launches) == ("xla", 0)
    assert products(16, kernel="sm90")[0].kernel == "sm90"
    assert products(16, batch_invariant=True)[1] == 2


@built
def test_precisions_of_groups():
    """Full precision where XLA's sums are long, and named algorithms always, in one launch of the arithmetic."""

    def product(m, k, n, precision, sums=False, **options):
        shapes = ((m, k), (m, n)) if sums else ((m, k), (8, k, n))
        structs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
        sizes = jax.ShapeDtypeStruct((8,), jnp.int32)
        numbers = [NUMBERS] if sums else []
        function = jaxgemm.ragged_dot_general if sums else jaxgemm.ragged_dot

        def call(x, w, sizes):
            return function(x, w, sizes, *numbers, precision=precision, **options)

        (found,) = jaxgemm.explain(call, *structs, sizes, platform="cuda").products
        choice = found.decision.choice
        return found.kernel, choice.arithmetic, choice.rule

    for sums in (False, True):
        asked = product(8192, 1024, 2048, "highest", sums)
        assert asked == ("sm90", "bf16_x6", "grouped-one-launch")
    assert product(8192, 128, 2048, "highest")[::2] == ("xla", "grouped-short-sums")
    assert product(1024, 1024, 2048, "highest", sums=True)[::2] == ("xla", "grouped-short-sums")
    for precision, arithmetic in (
        ("BF16_BF16_F32", "bf16"),
        ("BF16_BF16_F32_X3", "bf16_x3"),
        ("BF16_BF16_F32_X6", "bf16_x6"),
        ("BF16_BF16_F32_X9", "bf16_x9"),
        ("TF32_TF32_F32_X3", "bf16_x6"),  # scales would follow from other groups' rows
    ):
        assert product(64, 128, 256, precision) == ("sm90", arithmetic, "grouped-named-algorithm")
    # Weights whose planes take 1.5 GiB are split and multiplied by columns.
    structs = [jax.ShapeDtypeStruct(x, jnp.float32) for x in ((64, 4096), (8, 4096, 8192))]
    large = jaxgemm.explain(
        partial(jaxgemm.ragged_dot, precision="highest", kernel="sm90"),
        *structs,
        jax.ShapeDtypeStruct((8,), jnp.int32),
        platform="cuda",
    )
    assert 3 << 28 < large.products[0].decision.choice.workspace < 1 << 30
    wide = product(1 << 17, 4096, 4096, "highest", kernel="auto")
    assert wide[0] == "xla"  # rows' planes pass the limit of the workspace
    with pytest.raises(jaxgemm.UnsupportedError, match="planes of a, and of 128 columns of b"):
        product(1 << 17, 4096, 4096, "highest", kernel="sm90")


def test_time_that_dense_products_take():
    """A batch of few rows, and a loop over groups; at full precision too."""

    def of(rows, **options):
        x, w, sizes = (jax.ShapeDtypeStruct(s, t) for s, t in zip(((rows, 64), (4, 64, 512), (4,)), "ffi", strict=True))
        given = problem(Form(False, False, 4), x, w, sizes, np.dtype(np.float32))
        return dense_microseconds(given, H200, **options)

    rate = 1e-6 * H200.bandwidth
    assert of(16) == pytest.approx(10 + 4 * 4 * (2 * 16 * 64 + 64 * 512 + 2 * 16 * 512) / rate)
    rows = 1 << 16
    multiply, copies = 2 * rows * 64 * 512, 4 * (rows * 64 + 3 * 64 * 512 + 3 * rows * 512) / rate
    assert of(rows) == pytest.approx(4 * (10 + multiply / 4e8 + copies))
    assert of(rows, full=True) == pytest.approx(4 * (10 + multiply / 5e7 + copies))


def test_time_of_parts():
    """That of launches, and of memory for rows and results that are read and written, and for weights with parts."""
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((M, K), (GROUPS, K, N)))
    narrow = jax.ShapeDtypeStruct(w.shape, jnp.bfloat16)
    rate = 0.75e-6 * H200.bandwidth
    where = [SIZES, jnp.zeros(1, jnp.int32)]

    def bytes_of(x, w, form=ROWS):
        found = parts.of((x, w), params_of(form))
        return (parts.microseconds(found, [x, w, *where], params_of(form), H200) - 15) * rate

    rows, weights, results = M * K, GROUPS * K * N, M * N
    assert bytes_of(x, narrow) == pytest.approx(rows * (4 + 2 * 2) + results * 4 * 3)
    assert bytes_of(x, w) == pytest.approx(rows * (4 + 3 * 2) + weights * (4 + 2 * 2) + results * 4 * 4)
    many = jax.ShapeDtypeStruct((3, *w.shape), jnp.float32)
    assert bytes_of(x, many) == pytest.approx(rows * (4 + 3 * 2) + 3 * weights * (4 + 2 * 2) + 3 * results * 4 * 4)
    y = jax.ShapeDtypeStruct((M, N), jnp.float32)
    assert bytes_of(x, y, SUMS) == pytest.approx((rows + M * N) * (4 + 3 * 2) + GROUPS * K * N * 4 * 2)
