"""Scaled products of the rows of many matrices: one launch however the rows lie, in every transformation."""

from __future__ import annotations

import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export, lax
from jaxprs import equations
from scaled import check, exact, lost, scale, values

import jaxgemm
from jaxgemm.choice import rules
from jaxgemm.products.scaled import scaled_p

M, N, K = 6, 10, 24
ONE_LAUNCH = rules.SCALED_ONE_LAUNCH.name


def explained(f, *args):
    """The one product of a program for a GPU."""
    (product,) = jaxgemm.explain(f, *args, platform="cuda").products
    return product


def lowered(f, *args):
    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


# --- Shapes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [((2, 3, 4), 5, 0), ((4,), 5, 0), ((2, 3, 0), 5, 4), ((0, 3, 4), 5, 6), ((2, 3), 0, 6), ((0,), 0, 0)],
)
def test_nothing_to_multiply(rows, n, k, dtype, rng):
    """An empty sum is 0, and the bias and the activation follow it."""
    a, b, bias = values(rng, (*rows, k), dtype), values(rng, (k, n), dtype), array(rng.standard_normal(n), np.float32)
    for shape in ((*rows, 1), (1,) * (len(rows) + 1), ()):
        f = partial(jaxgemm.gemm, activation="relu")
        given = {"a_scale": scale(rng, shape), "b_scale": scale(rng, (1, n)), "bias": bias}
        for got in (f(a, b, **given), jax.jit(f)(a, b, **given)):
            np.testing.assert_array_equal(got, np.broadcast_to(np.maximum(bias, 0), (*rows, n)))
        lowered(partial(f, **given), a, b)


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "transposed"),
    [
        ((2, 1, M, K), (K, N), (False, False)),
        ((1, M, K), (K, N), (False, False)),
        ((2, 3, M, K), (1, 1, K, N), (False, False)),
        ((M, K), (1, 1, N, K), (False, True)),
        ((1, K, M), (K, N), (True, False)),
        ((1, 1, K, M), (1, N, K), (True, True)),
    ],
)
def test_a_batch_of_one_is_one_matrix(shape_a, shape_b, transposed, rng):
    a, b = values(rng, shape_a, "int8"), values(rng, shape_b, "int8")
    x, y = (np.swapaxes(z, -1, -2) if t else np.asarray(z) for z, t in zip((a, b), transposed, strict=True))
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    given = scale(rng, (*lead, M, 1)), scale(rng, (*(1,) * len(lead), 1, N))

    def f(a, b, s, t):
        how = {"transpose_a": transposed[0], "transpose_b": transposed[1]}
        return jaxgemm.gemm(a, b, a_scale=s, b_scale=t, activation="relu", **how)

    check(jax.jit(f)(a, b, *given), np.maximum(exact(x, y, *given), 0))
    assert explained(f, a, b, *given).decision.choice.rule == ONE_LAUNCH


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int32"])
def test_a_bias_of_another_type(dtype, out, rng):
    """It is added in float32. A kernel adds one of the result's type only, and is given no other."""
    a, b, bias = values(rng, (2, M, K), "int8"), values(rng, (K, N), "int8"), array(rng.integers(-9, 9, N), dtype)

    def f(a, b, bias):
        return jaxgemm.gemm(a, b, a_scale=0.25, bias=bias, out_dtype=out)

    got = jax.jit(f)(a, b, bias)
    assert got.dtype == out
    check(got, 0.25 * exact(a, b) + np.asarray(bias, np.float64), float(jnp.finfo(out).eps))
    product = explained(f, a, b, bias)
    one = out in ("float32", dtype)
    assert (product.decision.choice.rule == ONE_LAUNCH) == one
    assert one or f"the bias is of {dtype}, and kernels add one of the result's type, bfloat16" in product.scaled


# --- vmap -----------------------------------------------------------------------------------------------------

#: How a, its scale and b lie, mapped along the axis that is named; and whether that is one launch.
MAPPED = {
    "rows": ((4, M, K), 0, (4, M, 1), 0, True),
    "another axis": ((M, 4, K), 1, (M, 1, 4), 2, True),
    "one scale for all": ((4, M, K), 0, (), None, True),
    "a scale of rows for all": ((M, K, 4), 2, (M, 1), None, True),
    "a scale of each": ((4, M, K), 0, (4,), 0, True),
    "no scale": ((4, M, K), 0, None, None, True),
    "several matrices each": ((2, 4, M, K), 1, (4, 1, M, 1), 0, True),
    "only the scale": ((M, K), None, (4, M, 1), 0, False),
}


@pytest.mark.parametrize("case", MAPPED)
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_mapped_rows_are_rows(case, dtype, rng):
    shape, axis, of_scale, scale_axis, one = MAPPED[case]
    a, b, b_scale = values(rng, shape, dtype), values(rng, (K, N), dtype), scale(rng, (1, N))
    s, bias = None if of_scale is None else scale(rng, of_scale), array(rng.standard_normal(N), np.float32)

    def each(a, s):
        return jaxgemm.gemm(a, b, a_scale=s, b_scale=b_scale, bias=bias)

    f = jax.vmap(each, in_axes=(axis, scale_axis))
    x = np.asarray(a, np.float64) if axis is None else np.moveaxis(np.asarray(a, np.float64), axis, 0)
    t = np.ones(()) if s is None else np.asarray(s) if scale_axis is None else np.moveaxis(np.asarray(s), scale_axis, 0)
    t = t.reshape(4, *(1,) * (x.ndim - 1)) if t.ndim == 1 else t  # a number of each
    t = t.reshape(4, *(1,) * (x.ndim - t.ndim), *t.shape[1:]) if t.ndim > 2 else t
    want = exact(x, b, t, b_scale) + np.asarray(bias)
    check(jax.jit(f)(a, s), want, 2.0**-20, lost(array(x, dtype), b, t, b_scale))
    assert [eqn.primitive for eqn in equations(f, a, s)].count(scaled_p) == one
    product = explained(f, a, s)
    assert (product.decision.choice.rule == ONE_LAUNCH) == one
    assert product.decision.problem.m == np.prod(x.shape[:-1])


def test_mapped_transposed_and_twice(rng):
    a, b, s = values(rng, (2, 3, K, M), "uint8"), values(rng, (N, K), "int8"), scale(rng, (3, M, 1))

    def each(a, s):
        return jaxgemm.gemm(a, b, a_scale=s, transpose_a=True, transpose_b=True)

    f = jax.vmap(jax.vmap(each), in_axes=(0, None))
    check(jax.jit(f)(a, s), exact(np.swapaxes(np.asarray(a), -1, -2), np.asarray(b).T, s))
    assert explained(f, a, s).decision.choice.rule == ONE_LAUNCH


@pytest.mark.parametrize("moved", ["b", "b_scale", "bias"])
def test_what_else_is_mapped_is_composed(moved, rng):
    given = {"a": values(rng, (3, M, K), "int8"), "b": values(rng, (K, N), "int8"), "a_scale": scale(rng, (3, M, 1))}
    given |= {"b_scale": scale(rng, (1, N)), "bias": array(rng.standard_normal(N), np.float32)}
    given[moved] = jnp.stack([given[moved]] * 3)
    axes = {name: 0 if name in ("a", "a_scale", moved) else None for name in given}
    got = jax.jit(jax.vmap(lambda x: jaxgemm.gemm(**x), in_axes=(axes,)))(given)
    each = [{name: x if axes[name] is None else x[i] for name, x in given.items()} for i in range(3)]
    check(got, np.stack([exact(x["a"], x["b"], x["a_scale"], x["b_scale"]) + np.asarray(x["bias"]) for x in each]))


# --- Transpositions in front of operands ----------------------------------------------------------------------

#: How a and b are stored and then transposed, and the layout that is read.
TRANSPOSED = {
    "b": ((M, K), None, (N, K), (1, 0), "NT"),
    "a": ((K, M), (1, 0), (K, N), None, "TN"),
    "both": ((K, M), (1, 0), (N, K), (1, 0), "TT"),
    "k in front of all rows": ((K, 3, M), (1, 2, 0), (N, K), (1, 0), "TT"),
    "k between rows is copied": ((3, K, M), (0, 2, 1), (N, K), (1, 0), "NT"),
    "another order of rows is copied": ((M, 3, K), (1, 0, 2), (K, N), None, "NN"),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transpositions_are_read_through(case, rng):
    shape_a, order_a, shape_b, order_b, layout = TRANSPOSED[case]
    a, b, b_scale = values(rng, shape_a, "int8"), values(rng, shape_b, "int8"), scale(rng, (1, N))
    turned = [np.asarray(x) if order is None else np.transpose(x, order) for x, order in ((a, order_a), (b, order_b))]
    a_scale = scale(rng, (*turned[0].shape[:-1], 1))

    def f(a, b, a_scale, b_scale):
        x, y = (x if order is None else lax.transpose(x, order) for x, order in ((a, order_a), (b, order_b)))
        return jaxgemm.gemm(x, y, a_scale=a_scale, b_scale=b_scale, activation="relu")

    args = a, b, a_scale, b_scale
    check(jax.jit(f)(*args), np.maximum(exact(*turned, a_scale, b_scale), 0))
    product = explained(f, *args)
    assert product.decision.problem.layout == layout
    assert product.decision.choice.rule == ONE_LAUNCH
    assert re.search(r"custom_call @jaxgemm_scaled_gemm\(\S+, %arg1, ", lowered(f, *args))


# --- What is given ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("number", [0.5, 2, 1e-3, float("inf")])
def test_numbers_are_scales(number, x64, rng):
    """Also traced, where JAX makes 64 bits of them, which give way."""
    a, b = np.asarray(values(rng, (2, M, K), "int8")), np.asarray(values(rng, (K, N), "int8"))
    with jax.enable_x64(x64):
        program = lambda s: jaxgemm.gemm(a, b, a_scale=s, b_scale=0.5)  # noqa: E731
        for got in (program(number), jax.jit(program)(number), program(np.float32(number))):
            assert got.dtype == np.float32
            assert not got.weak_type
            np.testing.assert_allclose(got, exact(a, b) * np.float64(np.float32(number)) * 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    "given", [np.float64(0.5), np.full((), 0.5), np.int32(2), True, 1j, np.ones((M, 1)), array(0.5, np.float64)]
)
def test_arrays_of_another_type_are_no_scales(given, rng):
    a, b = values(rng, (M, K), "int8"), values(rng, (K, N), "int8")
    with pytest.raises(TypeError, match=r"gemm: a_scale must be of float32, got (float64|int32|bool|complex128)"):
        jaxgemm.gemm(a, b, a_scale=given)


@pytest.mark.parametrize(("lhs", "rhs"), [("int8", "float8_e4m3fn"), ("float8_e5m2", "uint8")])
def test_an_integer_by_a_float_is_refused(lhs, rhs, rng):
    """Where jnp would make floats of integers."""
    a, b = values(rng, (M, K), lhs), values(rng, (K, N), rhs)
    with pytest.raises(TypeError, match=f"gemm: a_scale is for two integers or two floats of 8 bits, got {lhs} and"):
        jax.eval_shape(lambda a, b: jaxgemm.gemm(a, b, a_scale=0.5), a, b)
    with pytest.raises(TypeError, match=f"gated_gemm: .* is for two integers or .* got {lhs} and {rhs}"):
        jaxgemm.gated_gemm(a, b, b, x_scale=0.5)


def test_types_are_those_that_were_given(rng):
    """Not those that jnp promotes to, but for operands that give way."""
    a, b = values(rng, (M, K), "int8"), values(rng, (K, N), "int8")
    for other in ("bfloat16", "bool", "float8_e4m3b11fnuz"):
        with pytest.raises(TypeError, match=f"is for operands of 8 bits, got int8 and {other}"):
            jaxgemm.gemm(a, b.astype(other), a_scale=0.5)
    # Nor does it matter whether jnp promotes them at all.
    for lhs, rhs in (("bfloat16", "float8_e4m3fn"), ("int4", "int8"), ("float8_e4m3fn", "float8_e4m3b11fnuz")):
        for x, y in ((lhs, rhs), (rhs, lhs)):
            with pytest.raises(TypeError, match=f"gemm: b_scale is for operands of 8 bits, got {x} and {y}"):
                jax.eval_shape(lambda a, b: jaxgemm.gemm(a, b, b_scale=0.5), a.astype(x), b.astype(y))
    with jax.numpy_dtype_promotion("strict"):
        for x, says in (("bfloat16", "operands"), ("float8_e5m2", "two integers or two floats")):
            with pytest.raises(TypeError, match=f"gemm: a_scale is for {says} of 8 bits, got {x} and int8"):
                jaxgemm.gemm(a.astype(x), b, a_scale=0.5)
    check(jaxgemm.gemm(lax.full((M, K), 2), b, a_scale=0.5), exact(np.ones((M, K)), b))


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_alpha_that_is_traced_and_c(dtype, out, rng):
    """c of every type that the result's holds; both are arrays, so jnp scales."""
    a, b, s, t = values(rng, (2, M, K), dtype), values(rng, (K, N), dtype), scale(rng, (2, M, 1)), scale(rng, (1, N))
    types, shapes = ("float32", "bfloat16", "float16", "float64", "int32", "bool"), ((M, N), (2, M, N), (1, N)) * 2
    every = [array(rng.integers(0, 2, shape), x) for x, shape in zip(types, shapes, strict=True)]

    @jax.jit
    def results(every, alpha, beta):
        f = partial(jaxgemm.gemm, a, b, a_scale=s, b_scale=t, out_dtype=out)
        both = [f(c=c, alpha=alpha, beta=beta) for c in every]
        return both, [f(c=c, alpha=0.5, beta=3.0) for c in every], f(alpha=alpha)

    both, static, without = results(every, np.float32(0.5), np.float32(3))
    z, off = 0.5 * exact(a, b, s, t), lost(a, b, s, t)
    rounding = 2.0**-20 if out == "float32" else 2.0**-8
    check(without, z, rounding, off)
    for got in (both, static):
        for x, c in zip(got, every, strict=True):
            assert x.dtype == out
            check(x, z + 3 * np.asarray(c, np.float64), rounding, off)


def test_c_and_alpha_of_another_kind_are_refused(rng):
    a, b = values(rng, (M, K), "int8"), values(rng, (K, N), "int8")
    with pytest.raises(TypeError, match="both must be of one kind"):
        jaxgemm.gemm(a, b, array(np.ones((M, N)), np.complex64), a_scale=0.5)
    with pytest.raises(TypeError, match="both must be of one kind"):
        jaxgemm.gemm(a, b, a_scale=0.5, alpha=array(1j, np.complex64))


@pytest.mark.parametrize("promotion", [("jax_numpy_rank_promotion", "raise"), ("jax_numpy_dtype_promotion", "strict")])
def test_under_strict_promotion(promotion, rng):
    a, b, bias = values(rng, (2, M, K), "int8"), values(rng, (K, N), "uint8"), array(np.ones(N), np.float32)
    name, value = promotion
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        of_rows = None, 0.5, scale(rng, (2, M, 1)), scale(rng, (M, 1))
        for s, t in itertools.product(of_rows, (0.5, scale(rng, (1, N)))):
            got = jaxgemm.gemm(a, b, a_scale=s, b_scale=t, bias=bias)
            check(got, exact(a, b, 1.0 if s is None else s, t) + 1)
    finally:
        jax.config.update(name, before)


@pytest.mark.parametrize("unknown", ["batch", "m", "n"])
@pytest.mark.parametrize("with_c", [False, True])
def test_extents_that_are_not_known(unknown, with_c, rng):
    (x,) = export.symbolic_shape(unknown)

    def shapes(of):
        lead, m, n = (of if name == unknown else size for name, size in (("batch", 3), ("m", M), ("n", N)))
        return (lead, m, K), (K, n), (lead, m, 1), (1, n)

    def f(a, b, s, t):
        return jaxgemm.gemm(a, b, 1.0 if with_c else None, a_scale=s, b_scale=t, activation="relu")

    types = [jax.ShapeDtypeStruct(s, t) for s, t in zip(shapes(x), ("int8", "int8", "float32", "float32"), strict=True)]
    made = export.export(jax.jit(f), platforms=["cpu", "cuda"])(*types)
    loaded = export.deserialize(made.serialize())
    for size in (1, 5):
        a, b, s, t = shapes(size)
        args = values(rng, a, "int8"), values(rng, b, "int8"), scale(rng, s), scale(rng, t)
        check(loaded.call(*args), np.maximum(exact(*args) + with_c, 0))
    assert explained(f, *types).decision.choice.rule == rules.SYMBOLIC.name


def test_sums_of_floats_of_a_length_that_is_not_known(rng):
    (k,) = export.symbolic_shape("k")
    types = [jax.ShapeDtypeStruct(s, "float8_e4m3fn") for s in ((2, M, k), (k, N))]
    made = export.export(jax.jit(lambda a, b: jaxgemm.gemm(a, b, a_scale=0.5)))(*types)
    a, b = values(rng, (2, M, K), "float8_e4m3fn"), values(rng, (K, N), "float8_e4m3fn")
    check(made.call(a, b), 0.5 * exact(a, b), 2.0**-20, lost(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_on_a_gpu(dtype, rng):
    """Rows of several matrices, mapped, transposed, with scales that broadcast, and with nothing to multiply."""
    a, b = values(rng, (4, 2, 48, 64), dtype), values(rng, (96, 64), dtype)
    turned, t, bias = np.asarray(b).T, scale(rng, (1, 96)), array(rng.standard_normal(96), np.float32)
    for shape in ((4, 2, 48, 1), (4, 1, 1, 1), (1, 2, 1, 1), (48, 1), ()):
        s = scale(rng, shape)
        got = jax.jit(lambda a, b, s: jaxgemm.gemm(a, b.T, a_scale=s, b_scale=t, bias=bias))(a, b, s)
        check(got, exact(a, turned, s, t) + np.asarray(bias), 2.0**-20, lost(a, array(turned), s, t))
    s = scale(rng, (4, 48, 1))
    each = jax.vmap(lambda a, s: jaxgemm.gemm(a, b.T, a_scale=s), in_axes=(0, 0))
    check(jax.jit(each)(a, s), exact(a, turned, s[:, None]), 2.0**-20, lost(a, array(turned), s[:, None]))
    first = jnp.transpose(a, (3, 0, 1, 2))  # k in front of all rows
    got = jax.jit(lambda x, b: jaxgemm.gemm(jnp.transpose(x, (1, 2, 3, 0)), b.T, a_scale=0.5))(first, b)
    check(got, 0.5 * exact(a, turned), 2.0**-20, lost(a, array(turned), 0.5))
    for rows, k in (((2, 3, 4), 0), ((2, 0), 64), ((0, 4), 64)):
        x, w = values(rng, (*rows, k), dtype), values(rng, (k, 96), dtype)
        got = jax.jit(lambda x, w: jaxgemm.gemm(x, w, a_scale=0.5, bias=bias))(x, w)
        np.testing.assert_array_equal(got, np.broadcast_to(bias, (*rows, 96)))
    half = bias.astype("float16")
    for out in ("float32", "bfloat16"):
        f = jax.jit(partial(jaxgemm.gemm, transpose_b=True, a_scale=0.5, out_dtype=out))
        want = 0.5 * exact(a, turned) + np.asarray(half, np.float64)
        check(f(a, b, bias=half), want, float(jnp.finfo(out).eps) * 4, lost(a, array(turned), 0.5))
