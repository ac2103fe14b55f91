"""gated_gemm of 8 bits: floats without scales, as gemm multiplies them, and any operands with scales."""

from __future__ import annotations

import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export
from jax.experimental import checkify, jet
from jax.sharding import PartitionSpec as P
from meshes import assert_close, mesh, put
from oracle import dtype_of, random
from pairs import exact
from twins import JNP

import jaxgemm
from jaxgemm import gated_gemm
from jaxgemm.kernels import find_kernel

FP8 = ("float8_e4m3fn", "float8_e5m2")
TRIPLES = [*itertools.product(FP8, repeat=3)]
#: Rounding to a type: of a value, and of one below the normal ones.
ROUNDING = {"float8_e4m3fn": (2.0**-4, 2.0**-10), "float8_e5m2": (2.0**-3, 2.0**-17)}
M, N, K = 6, 10, 24
EVERY = range(3)
SCALES = ("x_scale", "gate_scale", "up_scale")
GIVEN = [names for count in (1, 2, 3) for names in itertools.combinations(SCALES, count)]

for_cuda = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no CUDA kernels")


def operands(rng, types=FP8[:1] * 3, rows=(M,), k=K, n=N):
    return [array(random(rng, s, t)) for s, t in zip(((*rows, k), (k, n), (k, n)), types, strict=True)]


def scale(rng, shape):
    return array(rng.uniform(0.01, 0.1, shape), np.float32)


def wide(arrays):
    return [np.asarray(x, np.float64) for x in arrays]


def theirs(activation="silu"):
    return lambda x, gate, up: JNP[activation](jnp.matmul(x, gate)) * jnp.matmul(x, up)


def scaled(x, gate, up, x_scale=1.0, gate_scale=1.0, up_scale=1.0, activation="silu"):
    """The result in float64."""
    x, gate, up, x_scale, gate_scale, up_scale = wide((x, gate, up, x_scale, gate_scale, up_scale))
    return exact(x * x_scale, gate * gate_scale, up * up_scale, activation)


# --- Floats without scales ------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", TRIPLES, ids="-".join)
def test_floats_are_multiplied_as_they_are(types, rng):
    """Each in its own type, for a result in float32, which may be far beyond what theirs holds."""
    every = [[4 * x for x in operands(rng, types, rows, n=n)] for rows, n in (((33,), 20), ((), 7), ((2, 3), 5))]
    results = jax.jit(lambda every: [gated_gemm(*args, activation="gelu") for args in every])(every)
    for args, got in zip(every, results, strict=True):
        assert [x.dtype for x in args] == [*types]
        assert (got.dtype, got.shape) == (np.float32, (*args[0].shape[:-1], args[1].shape[1]))
        assert_close(got, exact(*args, "gelu"))
    assert np.abs(results[0]).max() > 448


@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("kernel", ["auto", "xla"])
def test_results_in_other_types(kernel, out, rng):
    args = operands(rng)
    got = gated_gemm(*args, out_dtype=out, kernel=kernel)
    assert got.dtype == dtype_of(out)
    assert_close(got, exact(*args), rtol=max(4 * float(jnp.finfo(out).eps), 1e-5))


@pytest.mark.parametrize("given", ["float8_e4m3fn", "bfloat16", "int8"])
@pytest.mark.parametrize("out", FP8)
@pytest.mark.parametrize("activation", ["gelu_erf", "sigmoid", None])
def test_results_of_8_bits_are_rounded_once(activation, out, given, rng):
    """If they are asked for: no product and no activation is rounded to them."""
    args = operands(rng, (given,) * 3)
    keywords = {name: np.float32(0.01) for name in SCALES} if given == "int8" else {}
    call = jax.jit(partial(gated_gemm, activation=activation, **keywords), static_argnames="out_dtype")
    want = np.asarray(call(*args, out_dtype="float32"))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(call(*args, out_dtype=out), want.astype(dtype_of(out)))
    if not keywords and activation != "gelu_erf":  # jet has another form of that
        got, _ = jet.jet(partial(call, out_dtype=out), args, [[x] for x in args])
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got, want.astype(dtype_of(out)))


def test_without_a_sum_and_without_rows():
    for rows, k, n in (((5,), 0, 7), ((0,), 4, 7), ((2, 0), 3, 4), ((5,), 4, 0)):
        args = [array(np.ones(s), FP8[0]) for s in ((*rows, k), (k, n), (k, n))]
        for given in ({}, {"x_scale": np.ones((*rows, 1), np.float32), "gate_scale": np.ones((1, n), np.float32)}):
            got = gated_gemm(*args, activation="sigmoid", **given)
            np.testing.assert_array_equal(got, np.zeros((*rows, n), np.float32), strict=True)


def test_infinities_and_nan(rng):
    x, gate, up = (np.array(v) for v in operands(rng, ("float8_e5m2", *FP8)))
    x[1, 3], gate[5, 2], up[0, 4] = np.inf, np.nan, np.nan
    got = gated_gemm(x, gate, up)
    wrong = np.zeros(got.shape, bool)
    wrong[1], wrong[:, 2], wrong[:, 4] = True, True, True
    np.testing.assert_array_equal(np.isfinite(got), ~wrong)


@pytest.mark.parametrize("types", TRIPLES[::3], ids="-".join)
def test_derivatives(types, rng):
    """Of the operands' types, rounded once; forward they are not rounded at all."""
    args, weights = operands(rng, types), rng.standard_normal((M, N))
    tangents = operands(rng, types)

    grads = jax.jit(jax.grad(lambda *x: jnp.sum(array(weights, np.float32) * gated_gemm(*x)), EVERY))(*args)

    def apart(x, gate, y, up):
        return jnp.sum(weights * jax.nn.silu(x @ gate) * (y @ up))

    x, gate, up = wide(args)
    first, *own = jax.grad(apart, range(4))(x, gate, x, up)
    # x has two gradients, which are rounded each, and added up in its type, as in jnp.
    wanted = (first + own[1], abs(first) + abs(own[1])), (own[0], abs(own[0])), (own[2], abs(own[2]))
    for got, (want, size), dtype, times in zip(grads, wanted, types, (2, 1, 1), strict=True):
        assert got.dtype == dtype
        relative, least = ROUNDING[dtype]
        off = abs(np.asarray(got, np.float64) - want)
        assert (off <= times * (relative * size * (1 + relative) + 2 * least)).all()
    assert_close(jax.jvp(gated_gemm, args, tangents), jax.jvp(theirs(), wide(args), wide(tangents)), rtol=1e-4)
    series = [([x], [y]) for x, y in zip(tangents, wide(tangents), strict=True)]
    got = jet.jet(gated_gemm, args, [terms for terms, _ in series], factorial_scaled=False)
    want = jet.jet(theirs(None), wide(args), [terms for _, terms in series], factorial_scaled=False)
    assert_close(got[0], exact(*args))
    linear = jet.jet(partial(gated_gemm, activation=None), args, [t for t, _ in series], factorial_scaled=False)
    assert_close(linear, want, rtol=1e-4)


@pytest.mark.parametrize("axes", [(0, None, None), (1, None, None), (None, 0, None), (None, 2, 0), (1, 2, 1)])
def test_vmap(axes, rng):
    args = operands(rng, (FP8[0], FP8[1], FP8[0]))
    given = [x if i is None else jnp.stack([x, -x, x[::-1]], i) for x, i in zip(args, axes, strict=True)]
    got = jax.jit(jax.vmap(gated_gemm, axes))(*given)
    assert got.dtype == np.float32
    for i in range(3):
        one = [x if axis is None else np.asarray(x).take(i, axis) for x, axis in zip(given, axes, strict=True)]
        assert_close(got[i], exact(*one))


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
@pytest.mark.parametrize(
    "specs", [(P("x"), P(), P()), (P("x"), P(None, "y"), P(None, "y")), (P(None, "x"), P("x"), P("x"))]
)
def test_on_several_devices(specs, types, rng):
    args, on = operands(rng, (FP8[0], FP8[1], FP8[0]), (16,), k=24, n=8), mesh(types=types)
    with jax.set_mesh(on):
        placed = [put(x, on, spec) for x, spec in zip(args, specs, strict=True)]
        if types == "Auto" or specs[1] != P("x"):  # jnp, too, wants to be told how such a result is sharded
            assert_close(jax.jit(gated_gemm)(*placed), exact(*args))
            grads = jax.jit(jax.grad(lambda *x: gated_gemm(*x).sum(), EVERY))(*placed)
            assert [g.dtype for g in grads] == [x.dtype for x in args]
        if specs[1] != P("x"):
            out = P(*specs[0][:1], *specs[1][1:])
            mapped = jax.shard_map(gated_gemm, mesh=on, in_specs=specs, out_specs=out)
            assert_close(jax.jit(mapped)(*placed), exact(*args))


def test_checkify_names_the_pair(rng):
    x, gate, up = operands(rng)
    checked = jax.jit(checkify.checkify(gated_gemm, errors=checkify.nan_checks))
    assert checked(x, gate, up)[0].get() is None
    assert checked(x.at[1, 2].set(jnp.nan), gate, up)[0].get().startswith("nan generated by primitive: jaxgemm_gated")


@for_cuda
def test_explain_of_floats():
    args = [jax.ShapeDtypeStruct(s, t) for s, t in (((512, 256), FP8[0]), ((256, 384), FP8[1]), ((256, 384), FP8[0]))]
    for how, kernel, why in (
        ({}, "sm90", "no kernel has a gated form for operands of 8 bits (no-gated-form)"),
        ({"kernel": "sm90"}, "sm90", "no kernel has a gated form for operands of 8 bits (no-gated-form)"),
        ({"kernel": "xla"}, "xla", "XLA's products were asked for by name (by-name)"),
        ({"batch_invariant": True}, "sm90", "each of the two products is batch-invariant by itself (batch-invariant)"),
    ):
        found = jaxgemm.explain(partial(gated_gemm, **how), *args, platform="cuda").products
        assert [(p.kernel, p.result) for p in found] == [(kernel, "float32")] * 2
        assert [p.operands.split(" x ")[1][:11] for p in found] == ["float8_e5m2", "float8_e4m3"]
        for which, product in zip(("gate", "up"), found, strict=True):
            assert product.gated == f"{which}, of two products composed in jnp: {why}"
            assert not product.scaled  # the other product is no scale
    lowered = jax.jit(gated_gemm).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count("custom_call @jaxgemm_gemm") == 2


def test_override_finds_the_pair(rng):
    args = operands(rng)

    def layer(x, gate, up):
        dot = partial(jax.lax.dot_general, dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type="float32")
        return jax.nn.silu(dot(x, gate)) * dot(x, up)

    assert_close(jax.jit(jaxgemm.override(layer))(*args), exact(*args))
    found = jaxgemm.explain(jaxgemm.override(layer), *args, platform="cpu")
    assert [p.gated.split(",")[0] for p in found.products] == ["gate", "up"]


# --- With scales ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", GIVEN, ids="-".join)
def test_each_scale_alone_and_with_others(names, rng):
    args = operands(rng, ("int8", "uint8", "int8"))
    given = {name: scale(rng, (M, 1) if name == "x_scale" else (1, N)) for name in names}
    assert_close(jax.jit(gated_gemm)(*args, **given), scaled(*args, **given))


@for_cuda
@pytest.mark.parametrize("names", GIVEN, ids="-".join)
def test_explain_of_scales(names):
    """No product has a scale that was not given, unless it would have none."""
    args = [jax.ShapeDtypeStruct(s, "int8") for s in ((512, 256), (256, 384), (256, 384))]
    given = {name: jax.ShapeDtypeStruct((512, 1) if name == "x_scale" else (1, 384), np.float32) for name in names}
    found = jaxgemm.explain(lambda given, *args: gated_gemm(*args, **given), given, *args, platform="cuda").products
    for product, own in zip(found, ("gate_scale", "up_scale"), strict=True):
        a_scale = "x_scale" in given or own not in given
        assert (" a_scale" in str(product), " b_scale" in str(product)) == (a_scale, own in given)
        assert not product.scaled  # the other product is no scale


@pytest.mark.parametrize("types", [("int8", *FP8), ("float8_e5m2", "int8", "uint8"), ("uint8", "int8", "float8_e5m2")])
def test_integers_and_floats_are_not_multiplied(types, rng):
    wrong = "gate_scale" if types[1] == "float8_e4m3fn" or types[0] == "float8_e5m2" else "up_scale"
    scales = {"gate_scale": np.float32(0.5), "up_scale": np.float32(0.25)}
    with pytest.raises(TypeError, match="is for two integers or two floats of 8 bits") as error:
        gated_gemm(*operands(rng, types, (M,)), **scales)
    assert wrong in str(error.value)


@pytest.mark.parametrize("rows", [(), (M,), (3, M), (2, 3, M)])
def test_shapes_of_scales(rows, rng):
    args = operands(rng, ("int8",) * 3, rows)
    of_x = [(), (1,) * max(len(rows) + 1, 2), (*rows, 1), *[(*rows[i:], 1) for i in range(1, len(rows))], (1,)]
    of_w = [(), (1, 1), (1, N), (1,) * max(len(rows), 1) + (N,)]
    every = [
        {"x_scale": scale(rng, s), "gate_scale": scale(rng, t), "up_scale": scale(rng, u)}
        for s, t, u in itertools.zip_longest(of_x, of_w, of_w[::-1], fillvalue=())
    ]
    results = jax.jit(lambda every: [gated_gemm(*args, **given) for given in every])(every)
    for given, got in zip(every, results, strict=True):
        x_scale, *weights = (np.asarray(given[name]) for name in SCALES)
        weights = [np.reshape(w, (1, -1)) for w in weights]
        assert_close(got, scaled(*args, np.reshape(x_scale, (-1,)) if not rows else x_scale, *weights))


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P("x", "y"), P(None, None, "x"), P(None, ("x", "y"))])
@pytest.mark.parametrize("weights", [P(), P(None, "y")])
def test_scaled_on_several_devices(weights, spec, types, rng):
    """Of several axes of rows any may be sharded."""
    if "y" in str(weights) and "y" in str(spec):
        return
    args, on = operands(rng, ("int8",) * 3, (4, 16), n=8), mesh(types=types)
    given = {"x_scale": scale(rng, (4, 16, 1)), "gate_scale": scale(rng, (1, 8))}
    specs = spec, weights, weights, P(*spec[:2]), P(None, *weights[1:])
    with jax.set_mesh(on):
        *placed, x_scale, gate_scale = (put(x, on, s) for x, s in zip((*args, *given.values()), specs, strict=True))

        def call(x_scale, gate_scale):
            return gated_gemm(*placed, x_scale=x_scale, gate_scale=gate_scale)

        got = jax.jit(call)(x_scale, gate_scale)
        assert_close(got, scaled(*args, **given))
        if types == "Explicit":
            assert jax.typeof(got).sharding.spec == P(*(*spec, None)[:2], *(*weights, None, None)[1:2])
        grads = jax.jit(jax.grad(lambda *s: call(*s).sum(), (0, 1)))(x_scale, gate_scale)
    x, gate, up = wide(args)
    want = jax.grad(lambda s, t: theirs()(x * s, gate * t, up).sum(), (0, 1))(*wide(given.values()))
    assert_close(grads, want, rtol=1e-4)


def test_gradients_of_scales_and_vmap(rng):
    x, gate, up = operands(rng, ("int8",) * 3, (3, M))
    scales = scale(rng, (3, M, 1)), scale(rng, (1, N)), scale(rng, ())

    def call(x, *scales):
        return gated_gemm(x, gate, up, **dict(zip(SCALES, scales, strict=True)))

    def wanted(*scales):
        return theirs()(*(a * s for a, s in zip(wide((x, gate, up)), scales, strict=True))).sum()

    grads = jax.jit(jax.grad(lambda *scales: call(x, *scales).sum(), EVERY))(*scales)
    assert_close(grads, jax.grad(wanted, EVERY)(*wide(scales)), rtol=1e-4)
    mapped = jax.vmap(jax.vmap(call, (0, 0, None, None)), (None, None, 0, None))
    got = mapped(x, scales[0], jnp.stack([scales[1], 2 * scales[1]]), scales[2])
    for times, result in zip((1, 2), got, strict=True):
        assert_close(result, scaled(x, gate, up, scales[0], times * scales[1], scales[2]))


@pytest.mark.parametrize("extents", ["m", "m,3", "3,m"])
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_rows_that_are_not_known(dtype, extents, rng):
    shape = export.symbolic_shape(f"{extents},{K}")
    structs = [jax.ShapeDtypeStruct(s, dtype) for s in (shape, (K, N), (K, N))]
    structs.append(jax.ShapeDtypeStruct((*shape[:-1], 1), np.float32))
    function = jax.jit(lambda x, gate, up, s: gated_gemm(x, gate, up, x_scale=s))
    loaded = export.deserialize(export.export(function, platforms=["cpu", "cuda"])(*structs).serialize())
    args = operands(rng, (dtype,) * 3, tuple(3 if n == "3" else 5 for n in extents.split(",")))
    x_scale = scale(rng, (*args[0].shape[:-1], 1))
    assert_close(loaded.call(*args, x_scale), scaled(*args, x_scale))


# --- Errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCALES)
def test_messages_name_the_scale_that_was_given(name, rng):
    ints, floats = operands(rng, ("int8",) * 3), operands(rng, ("float32",) * 3)
    one = np.float32(1)
    for args, types in (
        (floats, "float32, float32, float32"),
        ((floats[0], *ints[1:]), "float32, int8, int8"),
        ((*ints[:2], floats[2]), "int8, int8, float32"),
    ):
        with pytest.raises(TypeError, match=re.escape(f"gated_gemm: {name} is for operands of 8 bits, got {types}")):
            gated_gemm(*args, **{name: one})
    with pytest.raises(TypeError, match=f"gated_gemm: {name} must be of float32, got float64"):
        gated_gemm(*ints, **{name: np.ones(())})
    with pytest.raises(TypeError, match=f"gated_gemm: {name}: expected an array, got str"):
        gated_gemm(*ints, **{name: "one"})
    wanted = "(6, 1)" if name == "x_scale" else "(1, 10)"
    for shape in ((M,), (N,), (M, N), (N, 1) if name != "x_scale" else (1, M), (2, 1, 1), (0, 1)):
        text = f"gated_gemm: {name} must have shape () or {wanted}, for a result of (6, 10); got {shape}"
        with pytest.raises(ValueError, match=re.escape(text)):
            gated_gemm(*ints, **{name: np.ones(shape, np.float32)})


def test_shapes_of_scales_that_do_not_fit_other_rows(rng):
    args = operands(rng, ("int8",) * 3, (3, M))
    for name, shape, wanted in (
        ("gate_scale", (3, 1, N), "(1, 10)"),
        ("up_scale", (3, 1, 1), "(1, 10)"),
        ("x_scale", (3, 1), "(3, 6, 1)"),
        ("x_scale", (1, 3, 6, 1), "(3, 6, 1)"),
    ):
        text = f"{name} must have shape () or {wanted}, for a result of (3, 6, 10); got {shape}"
        with pytest.raises(ValueError, match=re.escape(text)):
            gated_gemm(*args, **{name: np.ones(shape, np.float32)})
    text = "x_scale must have shape () or (1,), for a result of (10,); got (3,)"
    with pytest.raises(ValueError, match=re.escape(text)):
        gated_gemm(args[0][0, 0], *args[1:], x_scale=np.ones(3, np.float32))


def test_integers_need_scales(rng):
    text = "gated_gemm: expected floating-point operands, got int8, uint8, int8; operands of 8 bits need scales if they"
    with pytest.raises(TypeError, match=text):
        gated_gemm(*operands(rng, ("int8", "uint8", "int8")))
    structs = [jax.ShapeDtypeStruct(s, "int8") for s in ((2, 131_072), (131_072, 3), (131_072, 3))]
    with pytest.raises(ValueError, match="gated_gemm: sums of 131072 products of int8 and int8 may pass what int32"):
        jax.eval_shape(partial(gated_gemm, up_scale=np.float32(1)), *structs)
