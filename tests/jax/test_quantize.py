"""jaxgemm.quantize: values and scales, special numbers, devices, and what is refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh, put

import jaxgemm
from jaxgemm.products.quantization import TYPES

SHAPES = {"tensor": lambda _: (), "row": lambda s: (*s[:-1], 1), "column": lambda s: (*s[:-2], 1, s[-1])}
AXIS = {"tensor": None, "row": -1, "column": -2}
#: How far a value may be from x / scale: of x, and for integers in units.
RELATIVE = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3, "int8": 0.0}
LEAST = {"float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17, "int8": 0.5}


def most(dtype):
    return float(jnp.iinfo(dtype).max if dtype == "int8" else jnp.finfo(dtype).max)


@pytest.mark.parametrize("scaling", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("given", ["float32", "bfloat16", "float16", "float64"])
def test_products_are_about_x(dtype, scaling, given, rng):
    for shape in ((7, 30), (3, 5, 8), (1, 1), (2, 3, 4, 5)):
        x = array(rng.standard_normal(shape) * np.exp2(rng.integers(-8, 8, shape)), given)
        values, scales = jax.jit(partial(jaxgemm.quantize, dtype=dtype, scaling=scaling))(x)
        assert (values.dtype, scales.dtype) == (dtype, np.float32)
        assert (values.shape, scales.shape) == (shape, SHAPES[scaling](shape))
        x, scales = np.asarray(x, np.float64), np.asarray(scales, np.float64)
        largest = abs(x).max(axis=AXIS[scaling], keepdims=AXIS[scaling] is not None)
        np.testing.assert_allclose(scales, largest / most(dtype), rtol=2.0**-22)
        error = abs(np.asarray(values, np.float64) * scales - x)
        assert (error <= (RELATIVE[dtype] * abs(x) + LEAST[dtype] * scales) * (1 + 1e-6)).all()


@pytest.mark.parametrize("scaling", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_zeros_and_the_smallest_numbers(dtype, scaling):
    x = jnp.zeros((4, 6), jnp.float32)
    values, scales = jaxgemm.quantize(x, dtype, scaling)
    assert (np.asarray(scales) == 1).all()
    assert not np.asarray(values, np.float32).any()
    _, scales = jaxgemm.quantize(jnp.full((4, 6), 1e-37, jnp.float32), dtype, scaling)
    assert (np.asarray(scales) >= np.float32(2.0**-126)).all()
    values, scales = jaxgemm.quantize(jnp.zeros((0, 6)) if scaling != "column" else jnp.zeros((6, 0)), dtype, scaling)
    assert values.size == 0


@pytest.mark.parametrize("scaling", SHAPES)
def test_the_largest_numbers(scaling):
    x = array([[3.4028235e38, -3.4028235e38], [1.0, 0.5]], np.float32)
    for dtype in TYPES:
        values, scales = jaxgemm.quantize(x, dtype, scaling)
        got = np.asarray(values, np.float64) * np.asarray(scales, np.float64)
        np.testing.assert_allclose(got[0], np.asarray(x, np.float64)[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_that_are_not_finite(dtype):
    x = np.asarray([[1.0, np.nan, 2.0], [np.inf, 4.0, -np.inf], [3.0, 1.0, 2.0]], np.float32)
    values, scales = (np.asarray(v, np.float32) for v in jaxgemm.quantize(x, dtype, "row"))
    if dtype == "int8":
        np.testing.assert_array_equal(np.isnan(scales[:, 0]), [True, True, False])
    else:
        np.testing.assert_allclose(scales[:, 0] * most(dtype), [2.0, 4.0, 3.0], rtol=1e-6)
        assert np.isnan(values[0, 1])
        assert not np.isfinite(values[1, [0, 2]]).any()
        assert dtype != "float8_e5m2" or (values[1, 0], values[1, 2]) == (np.inf, -np.inf)
    a, b = array(values, dtype), jnp.ones((3, 2), dtype)
    product = np.asarray(jaxgemm.gemm(a, b, a_scale=array(scales)))
    assert np.isnan(product[0]).all()
    assert np.isfinite(product[2]).all()


def test_a_product_of_quantized_operands(rng):
    x, w = (array(rng.standard_normal(s), np.float32) for s in ((40, 300), (300, 50)))
    exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    for dtype, error in (("int8", 0.02), ("float8_e4m3fn", 0.06), ("float8_e5m2", 0.12)):
        (a, a_scale), (b, b_scale) = jaxgemm.quantize(x, dtype, "row"), jaxgemm.quantize(w, dtype, "column")
        got = np.asarray(jaxgemm.gemm(a, b, a_scale=a_scale, b_scale=b_scale), np.float64)
        assert np.linalg.norm(got - exact) <= error * np.linalg.norm(exact)


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P(("x", "y")), P("x", "y")])
def test_an_axis_that_is_divided_over_devices(spec, rng):
    devices = mesh((2, 2))
    x = array(rng.standard_normal((8, 16)), np.float32)
    placed = jax.device_put(x, NamedSharding(devices, spec))
    for scaling in SHAPES:
        for got, want in zip(
            jax.jit(partial(jaxgemm.quantize, dtype="int8", scaling=scaling))(placed),
            jaxgemm.quantize(x, "int8", scaling),
            strict=True,
        ):
            np.testing.assert_array_equal(got, want)


def test_it_is_not_differentiable():
    x = jnp.ones((3, 4))

    def loss(x, stop):
        values, scales = jaxgemm.quantize(stop(x), "float8_e4m3fn")
        return (values.astype(jnp.float32) * scales).sum() + x.sum()

    with pytest.raises(TypeError, match="quantize is not differentiable"):
        jax.grad(loss)(x, lambda x: x)
    np.testing.assert_array_equal(jax.grad(loss)(x, lax.stop_gradient), jnp.ones((3, 4)))


def test_vmap(rng):
    x = array(rng.standard_normal((3, 4, 5)), np.float32)
    for scaling in SHAPES:
        values, scales = jax.vmap(partial(jaxgemm.quantize, dtype="int8", scaling=scaling))(x)
        for i in range(3):
            want = jaxgemm.quantize(x[i], "int8", scaling)
            np.testing.assert_array_equal(values[i], want[0])
            np.testing.assert_array_equal(scales[i], want[1])


def test_what_is_refused():
    with pytest.raises(ValueError, match="dtype must be one of int8, float8_e4m3fn, float8_e5m2, got 'fp8'"):
        jaxgemm.quantize(jnp.ones((2, 2)), "fp8")
    x = jnp.ones((3, 4))
    with pytest.raises(TypeError, match="x must be of a floating-point type, got int32"):
        jaxgemm.quantize(jnp.ones((3, 4), jnp.int32), "int8")
    with pytest.raises(ValueError, match="dtype must be one of int8, float8_e4m3fn, float8_e5m2, got uint8"):
        jaxgemm.quantize(x, "uint8")
    with pytest.raises(ValueError, match="scaling must be one of tensor, row, column, got 'block'"):
        jaxgemm.quantize(x, "int8", "block")
    with pytest.raises(ValueError, match=r"scaling 'row' is for shapes \(..., m, n\), got \(4,\)"):
        jaxgemm.quantize(x[0], "int8", "row")


def calls(function, *args):
    text = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    return text.count("custom_call @jaxgemm_quantize")


@pytest.mark.parametrize("scaling", ["tensor", "row", "column"])
def test_one_launch_on_a_gpu(scaling):
    def quantized(x):
        return jaxgemm.quantize(x, "int8", scaling)

    for dtype in ("float32", "bfloat16", "float16"):
        assert calls(quantized, jnp.ones((3, 4, 8), dtype)) == 1
    assert calls(quantized, jnp.ones((4, 8), jnp.float64)) == 0
    assert calls(quantized, jnp.ones((4, 0), jnp.float32)) == 0
    assert calls(jax.vmap(quantized), jnp.ones((3, 4, 8), jnp.float32)) == (scaling != "tensor")
    local = jax.shard_map(quantized, mesh=mesh((4,), ("x",)), in_specs=P("x"), out_specs=P("x"))
    if scaling != "tensor":
        assert calls(local, put(jnp.ones((8, 8), jnp.float32), mesh((4,), ("x",)), P("x"))) == 1
    # XLA divides the program, and has to see what is computed.
    assert calls(quantized, put(jnp.ones((8, 8), jnp.float32), mesh((4,), ("x",)), P("x"))) == 0
