"""quantize's launch on a GPU: the bits of IEEE arithmetic, which NumPy has."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm.products import quantization

FROM = ("float32", "bfloat16", "float16")
SCALINGS = ("tensor", "row", "column")
SHAPES = ((1, 1), (1, 7), (5, 64), (33, 130), (3, 4096), (2, 20_001), (1030, 36), (257, 1000), (2, 3, 40, 24))


def numbers(rng, shape, dtype):
    """Of many magnitudes, with rows and columns of zeros."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, (*shape[:-1], 1))
    x[..., shape[-2] // 2, :] = 0
    x[..., :, shape[-1] // 2] = 0
    return x.astype(jnp.dtype(dtype))


def in_numpy(x, kind, scaling):
    """The values and scales: a division and a rounding of float32 each."""
    x, axis = x.astype(np.float32), quantization._AXES[scaling]
    finite = np.isfinite(x)
    largest = np.where(finite, abs(x), np.float32(0)).max(axis=axis, keepdims=axis is not None)
    most = np.float32(127 if kind == np.int8 else jnp.finfo(kind).max)
    scale = np.where(largest == 0, np.float32(1), np.maximum(largest / most, np.float32(2.0**-126)))
    if kind != np.int8:
        return (x / scale).astype(kind), scale
    values = np.rint(np.where(finite, x, np.float32(0)) / scale)
    whole = finite.all(axis=axis, keepdims=axis is not None)
    return np.clip(values, -127, 127).astype(np.int8), np.where(whole, scale, np.float32(np.nan))


def check(x, dtype, scaling):
    kind = np.dtype(jnp.dtype(dtype))
    want = in_numpy(x, kind, scaling)
    run = jax.jit(lambda x: jaxgemm.quantize(x, dtype, scaling))
    got = run(jax.device_put(x, jax.devices("cuda")[0]))
    for ours, theirs in zip(got, want, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_array_equal(*(np.asarray(y).astype(np.float32) for y in (ours, theirs)))


@pytest.mark.gpu
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", quantization.TYPES)
def test_the_same_bits(dtype, scaling, rng):
    for shape, source in itertools.product(SHAPES, FROM):
        check(numbers(rng, shape, source), dtype, scaling)


@pytest.mark.gpu
@pytest.mark.parametrize("scaling", SCALINGS)
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
@pytest.mark.parametrize("scaling", SCALINGS)
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
