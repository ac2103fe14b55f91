"""What ``jaxgemm.quantize`` should give: values and scales in NumPy, whose float32 arithmetic is IEEE's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

#: The axis that shares a scale; None: all.
AXES = {"tensor": None, "row": -1, "column": -2}


def expected(x: np.ndarray, dtype: str, scaling: str) -> tuple[np.ndarray, np.ndarray]:
    """The values, and scales in float32: a division and a rounding of float32 each."""
    kind = np.dtype(jnp.dtype(dtype))
    x, axis = x.astype(np.float32), AXES[scaling]
    finite = np.isfinite(x)
    largest = np.where(finite, abs(x), np.float32(0)).max(axis=axis, keepdims=axis is not None)
    most = np.float32(127 if kind == np.int8 else jnp.finfo(kind).max)
    scale = np.where(largest == 0, np.float32(1), np.maximum(largest / most, np.float32(2.0**-126)))
    if kind != np.int8:
        return (x / scale).astype(kind), scale
    values = np.clip(np.rint(np.where(finite, x, np.float32(0)) / scale), -127, 127).astype(kind)
    whole = finite.all(axis=axis, keepdims=axis is not None)
    return values, np.where(whole, scale, np.float32(np.nan))


def check(got: Iterable[Any], x: np.ndarray, dtype: str, scaling: str) -> None:
    """AssertionError unless these are the values and the scales, bit for bit but for the sign of a NaN."""
    for ours, right in zip(got, expected(x, dtype, scaling), strict=True):
        assert (ours.shape, ours.dtype) == (right.shape, right.dtype)
        np.testing.assert_array_equal(*(np.asarray(y).astype(np.float32) for y in (ours, right)))
