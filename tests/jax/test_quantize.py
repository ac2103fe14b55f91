"""jaxgemm.quantize: values and scales, special numbers, devices, and what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh, put
from quantized import AXES

import jaxgemm
from jaxgemm.products.quantization import TYPES

SHAPES = {"tensor": lambda _: (), "row": lambda s: (*s[:-1], 1), "column": lambda s: (*s[:-2], 1, s[-1])}
#: How far a value may be from x / scale: of x, and for integers in units.
RELATIVE = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3, "int8": 0.0}
LEAST = {"float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17, "int8": 0.5}


def most(dtype):
    return float(jnp.iinfo(dtype).max if dtype == "int8" else jnp.finfo(dtype).max)


@pytest.mark.parametrize("scaling", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_products_are_about_x(dtype, scaling, rng):
    every = [
        array(rng.standard_normal(shape) * np.exp2(rng.integers(-8, 8, shape)), given)
        for shape, given in itertools.product(
            ((7, 30), (3, 5, 8), (1, 1), (2, 3, 4, 5)), ("float32", "bfloat16", "float16", "float64")
        )
    ]
    quantized = jax.jit(lambda every: [jaxgemm.quantize(x, dtype, scaling) for x in every])
    for x, (values, scales) in zip(every, quantized(every), strict=True):
        shape = x.shape
        assert (values.dtype, scales.dtype) == (dtype, np.float32)
        assert (values.shape, scales.shape) == (shape, SHAPES[scaling](shape))
        x, scales = np.asarray(x, np.float64), np.asarray(scales, np.float64)
        largest = abs(x).max(axis=AXES[scaling], keepdims=AXES[scaling] is not None)
        np.testing.assert_allclose(scales, largest / most(dtype), rtol=2.0**-22)
        error = abs(np.asarray(values, np.float64) * scales - x)
        assert (error <= (RELATIVE[dtype] * abs(x) + LEAST[dtype] * scales) * (1 + 1e-6)).all()


@pytest.mark.parametrize("scaling", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_zeros_and_the_smallest_numbers(dtype, scaling):
    given = [np.zeros((4, 6)), np.full((4, 6), 1e-37), np.zeros((6, 0) if scaling == "column" else (0, 6))]
    quantized = jax.jit(lambda given: [jaxgemm.quantize(x, dtype, scaling) for x in given])
    zeros, small, empty = quantized([x.astype(np.float32) for x in given])
    assert (np.asarray(zeros[1]) == 1).all()
    assert not np.asarray(zeros[0], np.float32).any()
    assert (np.asarray(small[1]) >= np.float32(2.0**-126)).all()
    assert empty[0].size == 0


@pytest.mark.parametrize("scaling", SHAPES)
def test_the_largest_numbers(scaling):
    x = array([[3.4028235e38, -3.4028235e38], [1.0, 0.5]], np.float32)
    for values, scales in jax.jit(lambda x: [jaxgemm.quantize(x, dtype, scaling) for dtype in TYPES])(x):
        got = np.asarray(values, np.float64) * np.asarray(scales, np.float64)
        np.testing.assert_allclose(got[0], np.asarray(x, np.float64)[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_that_are_not_finite(dtype):
    x = np.asarray([[1.0, np.nan, 2.0], [np.inf, 4.0, -np.inf], [3.0, 1.0, 2.0]], np.float32)
    values, scales = (np.asarray(v, np.float32) for v in jaxgemm.quantize(array(x), dtype, "row"))
    if dtype == "int8":
        np.testing.assert_array_equal(np.isnan(scales[:, 0]), [True, True, False])
    else:
        np.testing.assert_allclose(scales[:, 0] * most(dtype), [2.0, 4.0, 3.0], rtol=1e-6)
        assert np.isnan(values[0, 1])
        assert not np.isfinite(values[1, [0, 2]]).any()
        assert dtype != "float8_e5m2" or (values[1, 0], values[1, 2]) == (np.inf, -np.inf)
    a, b = array(values, dtype), array(np.ones((3, 2)), dtype)
    product = np.asarray(jaxgemm.gemm(a, b, a_scale=array(scales)))
    assert np.isnan(product[0]).all()
    assert np.isfinite(product[2]).all()


def test_a_product_of_quantized_operands(rng):
    x, w = (array(rng.standard_normal(s), np.float32) for s in ((40, 300), (300, 50)))
    exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    errors = {"int8": 0.02, "float8_e4m3fn": 0.06, "float8_e5m2": 0.12}

    def product(x, w, dtype):
        (a, a_scale), (b, b_scale) = jaxgemm.quantize(x, dtype, "row"), jaxgemm.quantize(w, dtype, "column")
        return jaxgemm.gemm(a, b, a_scale=a_scale, b_scale=b_scale)

    results = jax.jit(lambda x, w: [product(x, w, dtype) for dtype in errors])(x, w)
    for got, error in zip(results, errors.values(), strict=True):
        assert np.linalg.norm(np.asarray(got, np.float64) - exact) <= error * np.linalg.norm(exact)


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P(("x", "y")), P("x", "y")])
def test_an_axis_that_is_divided_over_devices(spec, rng):
    devices = mesh((2, 2))
    x = array(rng.standard_normal((8, 16)), np.float32)
    placed = jax.device_put(x, NamedSharding(devices, spec))
    quantized = jax.jit(lambda x: [jaxgemm.quantize(x, "int8", scaling) for scaling in SHAPES])
    jax.tree.map(np.testing.assert_array_equal, quantized(placed), quantized(x))


def test_it_is_not_differentiable():
    x = array(np.ones((3, 4)))

    def loss(x, stop):
        values, scales = jaxgemm.quantize(stop(x), "float8_e4m3fn")
        return (values.astype(jnp.float32) * scales).sum() + x.sum()

    with pytest.raises(TypeError, match="quantize is not differentiable"):
        jax.grad(loss)(x, lambda x: x)
    gradient = jax.jit(jax.grad(lambda x: loss(x, lax.stop_gradient)))
    np.testing.assert_array_equal(gradient(x), np.ones((3, 4)))


def test_vmap(rng):
    x = array(rng.standard_normal((3, 4, 5)), np.float32)

    def quantized(x):
        return [jaxgemm.quantize(x, "int8", scaling) for scaling in SHAPES]

    mapped, each = jax.jit(lambda x: (jax.vmap(quantized)(x), [quantized(x[i]) for i in range(3)]))(x)
    for i, want in enumerate(each):
        jax.tree.map(lambda got, want, i=i: np.testing.assert_array_equal(np.asarray(got)[i], want), mapped, want)


def test_what_is_refused():
    with pytest.raises(ValueError, match="dtype must be one of int8, float8_e4m3fn, float8_e5m2, got 'fp8'"):
        jaxgemm.quantize(array(np.ones((2, 2))), "fp8")
    x = array(np.ones((3, 4)))
    with pytest.raises(TypeError, match="x must be of a floating-point type, got int32"):
        jaxgemm.quantize(array(np.ones((3, 4)), "int32"), "int8")
    with pytest.raises(ValueError, match="dtype must be one of int8, float8_e4m3fn, float8_e5m2, got uint8"):
        jaxgemm.quantize(x, "uint8")
    with pytest.raises(ValueError, match="dtype must be one of int8, float8_e4m3fn, float8_e5m2, got None"):
        jaxgemm.quantize(x, None)
    with pytest.raises(ValueError, match="scaling must be one of tensor, row, column, got 'block'"):
        jaxgemm.quantize(x, "int8", "block")
    with pytest.raises(ValueError, match=r"scaling 'row' is for shapes \(..., m, n\), got \(4,\)"):
        jaxgemm.quantize(array(np.ones(4)), "int8", "row")


def ones(shape, dtype):
    return array(np.ones(shape), dtype)


def calls(function, *args):
    text = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    return text.count("custom_call @jaxgemm_quantize")


@pytest.mark.parametrize("scaling", ["tensor", "row", "column"])
def test_one_launch_on_a_gpu(scaling):
    def quantized(x):
        return jaxgemm.quantize(x, "int8", scaling)

    for dtype in ("float32", "bfloat16", "float16"):
        assert calls(quantized, ones((3, 4, 8), dtype)) == 1
    assert calls(quantized, ones((4, 8), "float64")) == 0
    assert calls(quantized, ones((4, 0), "float32")) == 0
    assert calls(jax.vmap(quantized), ones((3, 4, 8), "float32")) == (scaling != "tensor")
    local = jax.shard_map(quantized, mesh=mesh((4,), ("x",)), in_specs=P("x"), out_specs=P("x"))
    if scaling != "tensor":
        assert calls(local, put(ones((8, 8), "float32"), mesh((4,), ("x",)), P("x"))) == 1
    # XLA divides the program, and has to see what is computed.
    assert calls(quantized, put(ones((8, 8), "float32"), mesh((4,), ("x",)), P("x"))) == 0


def test_export():
    """As any custom call, by its name; a program for a CPU has none."""
    function = jax.jit(lambda x: jaxgemm.quantize(x, "int8", "row"))
    x = jax.ShapeDtypeStruct((4, 8), np.float32)
    export.export(function, platforms=["cpu"])(x)
    with pytest.raises(ValueError, match="jaxgemm_quantize"):
        export.export(function, platforms=["cuda"])(x)
    check = export.DisabledSafetyCheck.custom_call("jaxgemm_quantize")
    exported = export.export(function, platforms=["cuda"], disabled_checks=[check])(x)
    assert [aval.shape for aval in exported.out_avals] == [(4, 8), (4, 1)]
