"""A gated layer's pair of products: operands, and its result in float64."""

from __future__ import annotations

import numpy as np
from oracle import ACTIVATIONS, dtype_of

#: Error of a result, relative to itself (it is rounded once), and to the largest: every step of the instruction's 16
#: along k may cut off half of a running sum's last bit, in fp32.
ROUNDING = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def sums(k):
    return max(2e-5, k / 16 * 2.0**-24)


def operands(rng, m, n, k, dtype):
    shapes = (m, k), (k, n), (k, n)
    arrays = (rng.standard_normal(s) / (1 if i == 0 else max(k, 1) ** 0.5) for i, s in enumerate(shapes))
    return [np.asarray(x).astype(dtype_of(dtype)) for x in arrays]


def exact(x, gate, up, activation="silu"):
    x, gate, up = (np.asarray(v, np.float64) for v in (x, gate, up))
    z = x @ gate
    return (z if activation is None else ACTIVATIONS[activation](z)) * (x @ up)


def check_result(got, args, activation="silu"):
    want = exact(*args, activation)
    assert got.shape == want.shape
    allowed = ROUNDING[got.dtype.name] * np.abs(want) + sums(args[0].shape[1]) * np.abs(want).max(initial=0)
    wrong = ~(np.abs(np.asarray(got, np.float64) - want) <= allowed)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} wrong, the first at {np.argwhere(wrong)[0]}"
