"""Scales of operands of 8 bits: what they mean, their shapes, their derivatives, and what is refused."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export
from jax.sharding import PartitionSpec as P
from meshes import KINDS, mesh, put
from scaled import check, exact, lost, scale, values

import jaxgemm

TYPES = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")
PAIRS = [
    *itertools.product(TYPES[:2], repeat=2),
    *itertools.product(TYPES[2:], repeat=2),
]
M, N, K = 6, 10, 24


def with_values(x, at):
    x = np.array(x)
    for i, value in at.items():
        x[i] = value
    return array(x)


OUTS = (None, "bfloat16", "float16", "float32")


@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_values_times_scales(types, rng):
    """Of the whole operand, of rows and columns, one or both; a result in any type of floats, which take turns."""
    a, b = values(rng, (M, K), types[0]), values(rng, (K, N), types[1])
    shapes = itertools.product((None, (), (M, 1), (1, 1)), (None, (), (1, N), (1, 1)))
    every = [
        {n: scale(rng, s) for n, s in zip(("a_scale", "b_scale"), x, strict=True) if s is not None} for x in shapes
    ]
    every = [given for given in every if given]
    outs = list(itertools.islice(itertools.cycle(OUTS), PAIRS.index(types), PAIRS.index(types) + len(every)))

    @jax.jit
    def products(a, b, every):
        return [jaxgemm.gemm(a, b, out_dtype=out, **given) for out, given in zip(outs, every, strict=True)]

    for out, given, got in zip(outs, every, products(a, b, every), strict=True):
        assert got.dtype == (out or "float32")
        rounding = float(jnp.finfo(got.dtype).eps) * (2 if out in ("bfloat16", "float16") else 8)
        check(got, exact(a, b, **given), rounding, lost(a, b, **given))


def test_scales_from_numpy(rng):
    a, b = values(rng, (M, K), "int8"), values(rng, (K, N), "int8")
    given = {"a_scale": np.full((M, 1), 0.5, np.float32), "b_scale": np.full((1, N), 0.25, np.float32)}
    check(jaxgemm.gemm(a, b, **given), exact(a, b, **given))


def test_in_batches_and_transposed(rng):
    a, b = values(rng, (3, 1, K, M), "int8"), values(rng, (2, N, K), "uint8")
    shapes = ((3, 1, M, 1), (2, 1, N)), ((3, 1, 1, 1), (1, 1, N)), ((M, 1), (2, 1, 1)), ((), ())
    scales = [(scale(rng, shape_a), scale(rng, shape_b)) for shape_a, shape_b in shapes]

    @jax.jit
    def products(a, b, scales):
        return [jaxgemm.gemm(a, b, transpose_a=True, transpose_b=True, a_scale=s, b_scale=t) for s, t in scales]

    turned = [np.swapaxes(np.asarray(x), -1, -2) for x in (a, b)]
    for got, given in zip(products(a, b, scales), scales, strict=True):
        check(got, exact(*turned, *given))


def test_before_what_follows(rng):
    """alpha, C, the bias and the activation are applied to the scaled product."""
    a, b = values(rng, (M, K), "int8"), values(rng, (K, N), "int8")
    a_scale, b_scale = scale(rng, (M, 1)), scale(rng, (1, N))
    c, bias = (array(rng.standard_normal(s), np.float32) for s in ((M, N), (N,)))
    given = {"a_scale": a_scale, "b_scale": b_scale, "c": c, "bias": bias, "alpha": 0.5, "beta": 2.0}
    got = jax.jit(partial(jaxgemm.gemm, activation="relu"))(a, b, **given)
    z = 0.5 * exact(a, b, a_scale, b_scale) + 2.0 * np.asarray(c) + np.asarray(bias)
    check(got, np.maximum(z, 0))


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_derivatives(dtype, rng):
    """Nothing is divided by a scale, which may be 0; integers have none."""
    a, b = values(rng, (M, K), dtype), values(rng, (K, N), dtype)
    a_scale, b_scale = with_values(scale(rng, (M, 1)), {2: 0.0}), scale(rng, (1, N))
    weights = array(rng.standard_normal((M, N)), np.float32)

    def loss(a, b, a_scale, b_scale):
        return (weights * jaxgemm.gemm(a, b, a_scale=a_scale, b_scale=b_scale)).sum()

    da, db, da_scale, db_scale = jax.jit(jax.grad(loss, (0, 1, 2, 3), allow_int=True))(a, b, a_scale, b_scale)
    z, w = exact(a, b), np.asarray(weights, np.float64)
    off = abs(w) * lost(a, b)
    for got, scales, axis in ((da_scale, b_scale, 1), (db_scale, a_scale, 0)):
        want, cut = ((x * np.asarray(scales)).sum(axis, keepdims=True) for x in (w * z, off))
        check(got, want, 1e-5, cut)
    assert da.dtype == db.dtype == (jax.dtypes.float0 if dtype == "int8" else dtype)


def test_vmap_scan_and_remat(rng):
    a, b = values(rng, (4, M, K), "int8"), values(rng, (K, N), "int8")
    a_scale, b_scale = scale(rng, (4, M, 1)), scale(rng, (1, N))
    want = exact(a, b, a_scale, b_scale)

    def product(a, a_scale):
        return jax.checkpoint(lambda a, s: jaxgemm.gemm(a, b, a_scale=s, b_scale=b_scale))(a, a_scale)

    @jax.jit
    def results(a, a_scale):
        mapped = jax.vmap(product)(a, a_scale)
        scanned = jax.lax.scan(lambda carry, x: (carry, product(*x)), 0, (a, a_scale))[1]
        return mapped, scanned, jax.vmap(lambda s: jaxgemm.gemm(a[0], b, a_scale=s))(a_scale)

    mapped, scanned, of_scales = results(a, a_scale)
    check(mapped, want)
    check(scanned, want)
    check(of_scales, exact(np.asarray(a)[:1], b, a_scale))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("a_scale", (M,)), ("a_scale", (1, N)), ("a_scale", (M, 2)), ("b_scale", (N, 1)), ("b_scale", (2, 1, N))],
)
def test_shapes_that_do_not_fit(name, shape, rng):
    a, b = values(rng, (M, K), "int8"), values(rng, (K, N), "int8")
    with pytest.raises(ValueError, match=rf"gemm: {name} must have shape .* got \({shape[0]}"):
        jaxgemm.gemm(a, b, **{name: scale(rng, shape)})


def test_types_that_take_no_scale():
    for dtype in ("float32", "bfloat16", "int16"):
        x = array(np.ones((4, 4)), dtype)
        with pytest.raises(TypeError, match=f"gemm: a_scale is for operands of 8 bits, got {dtype} and {dtype}"):
            jaxgemm.gemm(x, x, a_scale=array(1, "float32"))


@pytest.mark.parametrize("dtype", ["float8_e8m0fnu", "bfloat16", "int32"])
def test_scales_of_another_type(dtype):
    x = array(np.ones((4, 4)), "float8_e4m3fn")
    with pytest.raises(TypeError, match=f"gemm: b_scale must be of float32, got {dtype}"):
        jaxgemm.gemm(x, x, b_scale=array(1, dtype))


def test_results_of_integers_are_refused():
    x = array(np.ones((4, 4)), "int8")
    with pytest.raises(TypeError, match="out_dtype of a scaled product must be a floating-point type, got int32"):
        jaxgemm.gemm(x, x, a_scale=array(1, "float32"), out_dtype="int32")


def test_results_of_no_type_are_refused():
    x = array(np.ones((4, 4)), "int8")
    with pytest.raises(TypeError, match="out_dtype or preferred_element_type: expected an element type, got 'fp32'"):
        jaxgemm.gemm(x, x, a_scale=0.5, out_dtype="fp32")


def test_results_below_8_bits_are_refused():
    x = array(np.ones((4, 4)), "int8")
    for product in (partial(jaxgemm.gemm, x, x, a_scale=0.5), partial(jaxgemm.gated_gemm, x, x, x, x_scale=0.5)):
        with pytest.raises(TypeError, match="out_dtype of a scaled product must have 8 bits or more, got float4"):
            product(out_dtype="float4_e2m1fn")


def test_numbers_that_jax_cannot_hold():
    x = array(np.ones((4, 4)), "int8")
    with jax.enable_x64(False), pytest.raises(TypeError, match="gemm: a_scale: expected an array, got int: "):
        jaxgemm.gemm(x, x, a_scale=2**40)


@pytest.mark.parametrize(
    ("types", "most"), [(("int8", "int8"), 131_071), (("uint8", "uint8"), 33_025), (("int8", "uint8"), 65_793)]
)
def test_sums_that_may_wrap_are_refused(types, most):
    """From the first length on at which operands exist whose sums int32 does not hold."""

    def call(k):
        a, b = (jax.ShapeDtypeStruct(s, t) for s, t in zip(((2, k), (k, 3)), types, strict=True))
        return jax.eval_shape(lambda a, b: jaxgemm.gemm(a, b, a_scale=jnp.float32(1)), a, b)

    assert call(most).dtype == np.float32
    with pytest.raises(ValueError, match=f"may pass what int32 holds; with scales, k is {most} at"):
        call(most + 1)
    # Without scales they wrap, as lax's do.
    k = most + 1
    a, b = (np.full(s, np.iinfo(t).min or np.iinfo(t).max, t) for s, t in zip(((1, k), (k, 1)), types, strict=True))
    got = int(np.asarray(jax.jit(jaxgemm.gemm)(a, b))[0, 0])
    assert got == int(np.int64(int(a[0, 0]) * int(b[0, 0]) * k).astype(np.int32))


def test_infinities_and_nan(rng):
    a, b = values(rng, (M, K), "float8_e4m3fn"), values(rng, (K, N), "float8_e4m3fn")
    a_scale = with_values(scale(rng, (M, 1)), {1: np.nan, 3: np.inf})
    got = np.asarray(jaxgemm.gemm(a, b, a_scale=a_scale))
    assert np.isnan(got[1]).all()
    assert not np.isfinite(got[3]).any()
    assert np.isfinite(got[[0, 2, 4, 5]]).all()


@pytest.mark.parametrize("shape", [(4, 6), (2, 1), (3, 2, 5)])
def test_rows_of_several_matrices_are_one_product(shape, rng):
    """Scales of rows that all of a batch has, and of some of it."""
    a, b = values(rng, (*shape, K), "float8_e4m3fn"), values(rng, (K, N), "float8_e4m3fn")
    every = [
        {"a_scale": scale(rng, rows), "b_scale": scale(rng, (1, N)), "bias": array(rng.standard_normal(N), np.float32)}
        for rows in (((*shape[:-1], shape[-1], 1), (shape[-1], 1), (*(1,) * len(shape[:-1]), shape[-1], 1)))
    ]
    products = jax.jit(lambda a, b, every: [jaxgemm.gemm(a, b, activation="relu", **given) for given in every])
    for given, got in zip(every, products(a, b, every), strict=True):
        scales = given["a_scale"], given["b_scale"]
        want = np.maximum(exact(a, b, *scales) + np.asarray(given["bias"]), 0)
        check(got, want, 2.0**-20, lost(a, b, *scales))


@pytest.mark.parametrize("shape", [(4, 6), (2, 1), (3, 2, 5)])
def test_scales_of_each_product_of_one_matrix(shape, rng):
    """Of a matrix that all of a batch multiply by: its columns have scales for each product."""
    a, b = values(rng, (*shape, K), "int8"), values(rng, (K, N), "int8")
    for lead in (shape[:-1], (1,) * len(shape[:-1])):
        b_scale = scale(rng, (*lead, 1, N))
        check(jaxgemm.gemm(a, b, b_scale=b_scale), exact(a, b, 1.0, b_scale))


@pytest.mark.parametrize("types", PAIRS[::3], ids="-".join)
@pytest.mark.parametrize("rows", [(), (M,), (3, M)])
def test_gated_pairs(types, rows, rng):
    """Two scaled products: each of the three operands may have a scale."""
    x = values(rng, (*rows, K), types[0])
    gate, up = (values(rng, (K, N), types[1]) for _ in range(2))
    scales = {"x_scale": scale(rng, (*rows, 1)), "gate_scale": scale(rng, (1, N)), "up_scale": scale(rng, ())}
    every = [{name: scales[name] for name in names} for names in (list(scales), ["x_scale"], ["up_scale"])]

    @jax.jit
    def program(x, gate, up, every, scales):
        def total(s):
            return jaxgemm.gated_gemm(x, gate, up, **{**scales, "up_scale": s}).sum()

        results = [jaxgemm.gated_gemm(x, gate, up, activation="relu", **given) for given in every]
        return results, jax.grad(total)(scales["up_scale"]), total(np.float32(1))

    results, gradient, whole = program(x, gate, up, every, scales)
    np.testing.assert_allclose(gradient, whole, rtol=1e-4)
    for given, got in zip(every, results, strict=True):
        assert got.shape == (*rows, N)
        assert got.dtype == np.float32
        of_x, of_gate, of_up = (given.get(name, 1.0) for name in scales)
        pair = [exact(x, gate, of_x, of_gate), exact(x, up, of_x, of_up)]
        off = [lost(x, gate, of_x, of_gate), lost(x, up, of_x, of_up)]
        cut = abs(pair[0]) * off[1] + abs(pair[1]) * off[0] + off[0] * off[1]
        check(got, (np.maximum(pair[0], 0) * pair[1]).reshape(got.shape), 2.0**-19, np.reshape(cut, got.shape))
    with pytest.raises(ValueError, match="gated_gemm: gate_scale must have shape"):
        jaxgemm.gated_gemm(x, gate, up, gate_scale=scale(rng, (N, 1)))
    with pytest.raises(TypeError, match="gated_gemm: up_scale must be of float32"):
        jaxgemm.gated_gemm(x, gate, up, up_scale=array(1, "bfloat16"))
    with pytest.raises(ValueError, match="inner dimensions differ"):
        jaxgemm.gated_gemm(x, *(array(np.asarray(w)[1:]) for w in (gate, up)), **scales)
    if "int8" in types[0]:
        with pytest.raises(TypeError, match=r"expected floating-point operands, got .*; operands of 8 bits need"):
            jaxgemm.gated_gemm(x, gate, up)


@pytest.mark.parametrize(
    ("a_spec", "b_spec", "sent"),
    [
        (P("x", None), P(None, "y"), set()),  # rows and columns, with their scales
        (P("x", "y"), P("y", None), {"all-reduce"}),  # sums are added up before they are scaled
    ],
)
def test_over_several_devices(a_spec, b_spec, sent, rng):
    """Scales of rows and columns lie with these, and none is gathered."""
    on = mesh()
    a, b = values(rng, (16, 32), "int8"), values(rng, (32, 24), "int8")
    a_scale, b_scale = scale(rng, (16, 1)), scale(rng, (1, 24))
    placed = (
        put(a, on, a_spec),
        put(b, on, b_spec),
        put(a_scale, on, P(a_spec[0], None)),
        put(b_scale, on, P(None, b_spec[1])),
    )
    run = jax.jit(lambda a, b, s, t: jaxgemm.gemm(a, b, a_scale=s, b_scale=t, activation="relu")).lower(*placed)
    compiled = run.compile()
    check(compiled(*placed), np.maximum(exact(a, b, a_scale, b_scale), 0))
    assert {name for name in KINDS if f" {name}(" in compiled.as_text()} == sent


def test_inside_of_a_shard_map(rng):
    on = mesh((4,), ("x",))
    a, b = values(rng, (16, 32), "float8_e4m3fn"), values(rng, (32, 24), "float8_e4m3fn")
    a_scale, b_scale = scale(rng, (16, 1)), scale(rng, (1, 24))

    def local(a, b, a_scale, b_scale):
        return jaxgemm.gemm(a, b, a_scale=a_scale, b_scale=b_scale)

    mapped = jax.jit(jax.shard_map(local, mesh=on, in_specs=(P("x"), P(), P("x"), P()), out_specs=P("x")))
    check(mapped(a, b, a_scale, b_scale), exact(a, b, a_scale, b_scale), 2.0**-20, lost(a, b, a_scale, b_scale))


def test_exported(rng):
    """Also with extents that are not known."""
    (m,) = export.symbolic_shape("m")
    types = [jax.ShapeDtypeStruct(s, t) for s, t in (((m, K), "int8"), ((K, N), "int8"), ((m, 1), "float32"))]
    made = export.export(jax.jit(lambda a, b, s: jaxgemm.gemm(a, b, a_scale=s, bias=jnp.ones(N))))(*types)
    loaded = export.deserialize(made.serialize())
    for rows in (3, M):
        a, b, s = values(rng, (rows, K), "int8"), values(rng, (K, N), "int8"), scale(rng, (rows, 1))
        check(loaded.call(a, b, s), exact(a, b, s) + 1)
    (k,) = export.symbolic_shape("k")
    types = [jax.ShapeDtypeStruct(s, "int8") for s in ((M, k), (k, N))]
    with pytest.raises(ValueError, match="sums of k = k products may pass what int32 holds; with scales, k must"):
        export.export(jax.jit(lambda a, b: jaxgemm.gemm(a, b, a_scale=jnp.float32(2))))(*types)


def test_what_explain_says_of_scales():
    a, b, a_scale, b_scale = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((512, 256), "int8"), ((256, 384), "int8"), ((512, 1), "float32"), ((1, 384), "float32"))
    )

    def call(a, b, a_scale, b_scale):
        return jaxgemm.gemm(a, b, a_scale=a_scale, b_scale=b_scale, alpha=2.0, activation="relu")

    launched = str(jaxgemm.explain(call, a, b, a_scale, b_scale, platform="cuda"))
    assert "epilogue   relu(2 * a b * a_scale * b_scale)" in launched
    composed = str(jaxgemm.explain(call, a, b, a_scale, b_scale, platform="cpu"))
    assert "scales     applied by jnp: no kernel for cpu has a form for scales (no-scaled-form)" in composed


@pytest.mark.parametrize(
    "program",
    [
        lambda a, b, s, t, c: jaxgemm.gemm(a, b, c, a_scale=s, b_scale=t),
        lambda a, b, s, t, c: jaxgemm.gemm(a, b, alpha=c[0, 0], a_scale=s, b_scale=t),
        lambda a, b, s, t, _: jaxgemm.gemm(jnp.stack([a, a]), b, a_scale=s, b_scale=jnp.stack([t, t + 1])),
        lambda a, b, s, t, _: jaxgemm.gemm(a, b, out_dtype="int32").astype("float32") * s * t,
        lambda a, b, s, _t, _: jaxgemm.gemm(a, b, a_scale=s) / 2,
        lambda a, b, s, t, _: jaxgemm.gemm(a, b, a_scale=s) * t,
    ],
    ids=["c", "alpha", "b_scale", "after", "a number after", "b_scale after"],
)
def test_what_explain_says_of_scales_outside_of_a_launch(program):
    """It holds for who gave scales to ``gemm``, and for who did not."""
    shapes = ((16, 8), (8, 16), (16, 1), (1, 16), (16, 16))
    args = [jax.ShapeDtypeStruct(s, t) for s, t in zip(shapes, ("int8",) * 2 + ("float32",) * 3, strict=True)]
    (found,) = jaxgemm.explain(program, *args, platform="cuda").products
    assert found.scaled.startswith(
        "applied by jnp: a launch takes them as jaxgemm.gemm's a_scale and b_scale, without a c, with a number as "
        "alpha and with one b_scale for all rows"
    )


def test_what_explain_says_of_more_scales_than_a_launch_takes():
    a, s, t = (jax.ShapeDtypeStruct(*x) for x in (((8, 8), "int8"), ((8, 1), "float32"), ((1, 8), "float32")))
    for program in (
        lambda a, s, t: jaxgemm.gemm(a, a, a_scale=s, b_scale=t) / 2,
        lambda a, s, t: jaxgemm.gemm(a, a, a_scale=s) * (s + t),
        lambda a, _, t: jaxgemm.gemm(a, a, b_scale=t) * t,
    ):
        (found,) = jaxgemm.explain(program, a, s, t, platform="cuda").products
        assert found.scaled.startswith("applied by jnp: a launch takes one scale of rows, one of columns, and one of")


def test_few_rows_are_split_along_k():
    """On a GPU that would be idle otherwise: the kernel that adds the pieces up applies the scales."""
    a, b = (jax.ShapeDtypeStruct(shape, "float8_e4m3fn") for shape in ((16, 16384), (16384, 1024)))
    scale = jax.ShapeDtypeStruct((1, 1024), np.float32)
    program = lambda a, b, scale: jaxgemm.gemm(a, b, b_scale=scale)  # noqa: E731
    (found,) = jaxgemm.explain(program, a, b, scale, platform="cuda").products
    choice = found.decision.choice
    assert dict(zip(choice.kernel.options, choice.config, strict=True))["split_k"] > 1


def test_what_a_kernel_multiplies_is_said_once():
    x = jax.ShapeDtypeStruct((8, 8), "int16")
    with pytest.raises(jaxgemm.UnsupportedError) as error:
        jaxgemm.explain(x, x, kernel="sm90", platform="cuda")
    assert str(error.value).count("float32 x float32 -> float32") == 1
