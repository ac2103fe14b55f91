"""Errors of products of fp8 by precision, ours beside XLA's: python benchmarks/errors_fp8.py

    python benchmarks/errors_fp8.py --k 128,1024 --seed 1 --results /tmp/results

Operands are drawn as benchmarks/errors.py draws them and rounded to fp8; results are float32, and held to float64.
`error` is the difference over the exact product, in the Frobenius norm; `worst` is an element's difference over its sum
of |a||b|, at most. A tensor core keeps few bits of a sum, so both grow with k at the default precision. At "highest"
ours adds up every 128 products in float32. Ours is by `sm90`, on a CPU by `auto`, which is XLA's. Results go to
benchmarks/results/<device>/errors_fp8.json, written anew after each k.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from jaxgemm.measure import report

_HERE = Path(__file__).resolve().parent
sys.path.append(str(_HERE))

from errors import OURS, XLA, Compiled, Row, compile_for, document, draw, figures, parser  # noqa: E402

K = (128, 1024, 4096, 16384)
TYPES = ("float8_e4m3fn", "float8_e5m2")
PRECISIONS = ("default", "highest")
KINDS = ("uniform", "normal")


def compiled(dtype: str, precision: str, side: str, extents: tuple[int, int, int]) -> Compiled:
    """A program for all kinds of data."""
    kernel = "" if side == XLA else "auto" if jax.default_backend() == "cpu" else "sm90"
    asked: dict[str, Any] = {"precision": precision, "preferred_element_type": np.float32}
    xla = partial(jax.lax.dot_general, dimension_numbers=(((1,), (0,)), ((), ())), **asked)
    m, n, k = extents
    operands = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in ((m, k), (k, n))]
    return compile_for(operands, partial(jaxgemm.matmul, kernel=kernel, **asked) if kernel else xla, kernel)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, measure, write and print."""
    options = parser(__doc__, K).parse_args(arguments)
    file, about = document("errors_fp8", options)
    forms = [(t, p, side) for t in TYPES for p in PRECISIONS for side in (XLA, OURS)]
    rows: list[Row] = []
    m, n, ks = options.m, options.n, options.k
    with report.progress(len(ks) * len(forms), "errors") as step, ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = {(k, form): pool.submit(compiled, *form, (m, n, k)) for k in ks for form in forms}
        for k in ks:
            data = {(t, x): draw(x, m, n, k, options.seed, jnp.dtype(t)) for t in TYPES for x in KINDS}
            for form in forms:
                (dtype, precision, side), program = form, programs.pop((k, form)).result()
                step(f"k = {k}, {dtype} {precision} by {side}")
                here = {"types": dtype, "precision": precision, "side": side, "kernel": program.kernel, "k": k}
                for kind in KINDS:
                    of = data[dtype, kind]
                    rows.append({**here, "data": kind, **figures(program, jax.device_put(of.operands), of)})
            report.write(file, {**about, "rows": rows})
    heads = ("types", "data", "precision", "side", "k")
    lines = [
        [*(str(x[name]) for name in heads), *(f"{x[e]:.1e}" if e in x else "-" for e in ("error", "worst"))]
        for x in rows
    ]
    report.print_table("Errors of products of fp8", [*heads, "error", "worst"], lines, left=4)
    return 0


if __name__ == "__main__":
    sys.exit(main())
