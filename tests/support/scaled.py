"""Operands of 8 bits with scales, and what their products should be."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from arrays import array
from oracle import sum_eps


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "int8") -> jax.Array:
    """Integers of all values, or floats of 8 bits."""
    if dtype.endswith("int8"):
        info = np.iinfo(dtype)
        return array(rng.integers(info.min, info.max, shape, endpoint=True), dtype)
    return array(rng.standard_normal(shape), dtype)


def scale(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = "float32") -> jax.Array:
    return array(rng.uniform(0.01, 0.1, shape), dtype)


def exact(a: Any, b: Any, a_scale: Any = 1.0, b_scale: Any = 1.0) -> np.ndarray:
    """In float64."""
    a, b = (np.asarray(x, np.float64) for x in (a, b))
    return (a @ b) * np.asarray(a_scale, np.float64) * np.asarray(b_scale, np.float64)


def check(got: Any, want: np.ndarray, rounding: float = 2.0**-21, lost: Any = 0.0) -> None:
    """``lost``: what the product of sums may be off by, in each element."""
    got = np.asarray(got, np.float64)
    assert got.shape == np.shape(want)
    difference = abs(got - want)
    bound = rounding * (abs(want) + abs(want).max(initial=0.0)) + lost
    assert (difference <= bound).all(), f"{difference.max()} of {abs(want).max()}"


def lost(a: jax.Array, b: jax.Array, a_scale: Any = 1.0, b_scale: Any = 1.0) -> np.ndarray:
    """What a tensor core may cut off the sums; a CPU adds them up in float32."""
    on_gpu = any(device.platform != "cpu" for device in a.devices())
    magnitudes = exact(*(abs(np.asarray(x, np.float64)) for x in (a, b)), a_scale, b_scale)
    return on_gpu * sum_eps(a.dtype.name, a.shape[-1]) * magnitudes
