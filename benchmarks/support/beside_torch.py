"""Products of 8 bits by row-major weights, as JAX stores them, beside torch's, whose weights lie along k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import paths
import torch_products
from paths import sets_of_operands

from jaxgemm.measure import timing
from jaxgemm.measure.bench import Bench
from jaxgemm.measure.case import Case, make_inputs

#: Rows and columns of a result that are compared with float64.
SAMPLED = 16
#: Few rows and many, in fp8 for results in bfloat16 and in int8 for results in int32.
PRODUCTS = {
    "torch": tuple(
        Case(m, 8192, 8192, dtype, out=out)
        for dtype, out in (("float8_e4m3fn", "bfloat16"), ("int8", None))
        for m in (16, 128, 2048, 4096, 8192)
    )
}
KERNELS = ("auto", "sm90")
COLUMNS = ("product", *paths.COLUMNS)
cells = paths.cells


def measure(bench: Bench, case: Case, kernels: Sequence[str]) -> list[dict[str, Any]]:
    """One row a path, with torch's time over this one's."""
    inputs = make_inputs(case, sets_of_operands(bench, case.operand_bytes), bench.seed)
    found: dict[str, tuple[paths.Function, dict[str, Any]]] = {
        f"jaxgemm {name}": (partial(case.ours, kernel=name), {}) for name in kernels
    }
    others: dict[str, Callable[[], timing.Program]] = {}
    if bench.device.platform == "gpu" and torch_products.installed():
        others["torch"] = partial(torch_products.narrow, inputs)
    rows = paths.measure(bench, str(case), found, inputs, _error, others)
    torch = next((row.get("us") for row in rows if row["path"] == "torch"), None)
    for row in rows:
        row["ratio"] = torch / row["us"] if torch and row.get("us") else None
    return rows


def _error(got: Any, operands: Sequence[jax.Array]) -> float:
    """Difference from float64 over the largest number, in a sample."""
    a, b = operands
    rng = np.random.default_rng(0)
    rows, columns = (rng.choice(n, min(n, SAMPLED), replace=False) for n in (a.shape[0], b.shape[1]))
    x, y = np.asarray(a[rows], np.float64), np.asarray(jnp.take(b, columns, 1), np.float64)
    want = x @ y
    return float(np.abs(np.asarray(got[rows[:, None], columns[None]], np.float64) - want).max() / np.abs(want).max())
