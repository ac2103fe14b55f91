"""Kinds of data that products are measured on, by name. All are drawn in float64, whoever rounds them then."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
#: (generator, m, n, k) -> op(A) of m x k and op(B) of k x n.
Draw = Callable[[np.random.Generator, int, int, int], tuple[Array, Array]]


def _uniform(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    return rng.random((m, k)), rng.random((k, n))


def _normal(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    return rng.standard_normal((m, k)), rng.standard_normal((k, n))


def _wide(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    a, b = _normal(rng, m, n, k)
    return np.ldexp(a, rng.integers(-20, 21, a.shape)), np.ldexp(b, rng.integers(-20, 21, b.shape))


def _cancelling(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """The second half of k takes away what the first adds, but for a thousandth."""
    a, b = _normal(rng, m, n, -(-k // 2))
    half = k // 2
    rest = 2.0**-10 * rng.standard_normal((half, n))
    return np.concatenate([a, a[:, :half]], 1), np.concatenate([b, rest - b[:half]])


def _softmax(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    a, b = _normal(rng, m, n, k)
    a = np.exp(4 * (a - a.max(1, keepdims=True)))
    return a / a.sum(1, keepdims=True), b


def _one_tiny(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """Normal but for one number in a row of A, which two parts in float16 would lose beside the others."""
    a, b = _normal(rng, m, n, k)
    a[m // 2, k // 2] = 1e-30
    return a, b


KINDS: dict[str, Draw] = {
    "uniform": _uniform,
    "normal": _normal,
    "wide exponents": _wide,
    "cancelling": _cancelling,
    "softmax": _softmax,
    "one tiny value": _one_tiny,
}
