"""quantize's launch on a GPU: the bits of IEEE arithmetic, which NumPy has."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quantized

import jaxgemm
from jaxgemm.products import quantization

FROM = ("float32", "bfloat16", "float16")
SHAPES = ((1, 1), (1, 7), (5, 64), (33, 130), (3, 4096), (2, 20_001), (1030, 36), (257, 1000), (2, 3, 40, 24))


def numbers(rng, shape, dtype):
    """Of many magnitudes, with rows and columns of zeros."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, (*shape[:-1], 1))
    x[..., shape[-2] // 2, :] = 0
    x[..., :, shape[-1] // 2] = 0
    return x.astype(jnp.dtype(dtype))


def check(x, dtype, scaling):
    run = jax.jit(lambda x: jaxgemm.quantize(x, dtype, scaling))
    quantized.check(run(jax.device_put(x, jax.devices("cuda")[0])), x, dtype, scaling)


@pytest.mark.gpu
@pytest.mark.parametrize("scaling", quantized.AXES)
@pytest.mark.parametrize("dtype", quantization.TYPES)
def test_the_same_bits(dtype, scaling, rng):
    for shape, source in itertools.product(SHAPES, FROM):
        check(numbers(rng, shape, source), dtype, scaling)


@pytest.mark.gpu
@pytest.mark.parametrize("scaling", quantized.AXES)
@pytest.mark.parametrize("dtype", quantization.TYPES)
def test_special_numbers(dtype, scaling, rng):
    """NaN and infinities, of either sign, and numbers whose scale would be too small."""
    for special in (np.nan, np.inf, -np.inf):
        x = numbers(rng, (40, 72), "float32")
        x[3, 5], x[7, 64] = special, -special
        check(x, dtype, scaling)
    check(np.full((4, 8), 1e-42, np.float32), dtype, scaling)
    check(np.full((4, 8), np.inf, np.float32), dtype, scaling)
    check(np.full((4, 8), np.finfo(np.float32).max, np.float32), dtype, scaling)


@pytest.mark.gpu
@pytest.mark.parametrize("scaling", quantized.AXES)
def test_more_than_the_device_runs_at_once(scaling, rng):
    """Again and again: blocks of a launch wait for each other."""
    x = rng.standard_normal((2048, 4100)).astype(np.float32)
    for dtype in quantization.TYPES:
        check(x, dtype, scaling)
    on = jax.device_put(x, jax.devices("cuda")[0])
    run = jax.jit(lambda x: jaxgemm.quantize(x, "int8", scaling))
    first = jax.device_get(run(on))
    for _ in range(20):
        for ours, before in zip(jax.device_get(run(on)), first, strict=True):
            assert ours.tobytes() == before.tobytes()


@pytest.mark.gpu
def test_beside_other_launches(rng):
    """In a program, mapped, and in a loop, which XLA may capture."""
    x = rng.standard_normal((6, 40, 64)).astype(np.float32)
    on = jax.device_put(x, jax.devices("cuda")[0])

    def step(total, x):
        values, scales = jaxgemm.quantize(x, "float8_e4m3fn", "row")
        return total + (values.astype(jnp.float32) * scales).sum(), scales

    _, scanned = jax.jit(lambda x: jax.lax.scan(step, jnp.float32(0), x))(on)
    mapped = jax.jit(jax.vmap(lambda x: jaxgemm.quantize(x, "float8_e4m3fn", "row")[1]))(on)
    whole = jaxgemm.quantize(on, "float8_e4m3fn", "row")[1]
    np.testing.assert_array_equal(scanned, whole)
    np.testing.assert_array_equal(mapped, whole)
