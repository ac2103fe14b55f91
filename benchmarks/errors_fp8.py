"""Errors of products of fp8 by precision, ours beside XLA's: python benchmarks/errors_fp8.py

    python benchmarks/errors_fp8.py --k 128,1024 --seed 1 --results /tmp/results

Operands are drawn as benchmarks/errors.py draws them and rounded to fp8; results are float32, and held to float64.
`error` is the difference over the exact product, in the Frobenius norm; `worst` is an element's difference over its sum
of |a||b|, at most. A tensor core keeps few bits of a sum, so both grow with k at the default precision. At "highest"
ours adds up every 128 products in float32. Ours is by `sm90`, on a CPU by `auto`, which is XLA's. Results go to
benchmarks/results/<device>/errors_fp8.json, written anew after each k.
"""

from __future__ import annotations

import argparse
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
from jaxgemm.measure import provenance, report
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent
sys.path.append(str(_HERE))

from errors import OURS, XLA, Compiled, Data, Row, described, draw, figures, of_k  # noqa: E402

K = (128, 1024, 4096, 16384)
TYPES = ("float8_e4m3fn", "float8_e5m2")
PRECISIONS = ("default", "highest")
KINDS = ("uniform", "normal")


def drawn(kind: str, dtype: str, extents: tuple[int, int, int], seed: int) -> Data:
    """Operands in fp8, and what belongs to them."""
    a, b = (x.astype(jnp.dtype(dtype)) for x in draw(kind, *extents, seed).operands)
    wide = a.astype(np.float64), b.astype(np.float64)
    return Data((a, b), wide[0] @ wide[1], abs(wide[0]) @ abs(wide[1]))


def compiled(dtype: str, precision: str, side: str, extents: tuple[int, int, int]) -> Compiled:
    """A program for all kinds of data."""
    kernel = "" if side == XLA else "auto" if jax.default_backend() == "cpu" else "sm90"
    asked: dict[str, Any] = {"precision": precision, "preferred_element_type": np.float32}
    xla = partial(jax.lax.dot_general, dimension_numbers=(((1,), (0,)), ((), ())), **asked)
    m, n, k = extents
    operands = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in ((m, k), (k, n))]
    try:
        function = partial(jaxgemm.matmul, kernel=kernel, **asked) if kernel else xla
        return Compiled(jax.jit(function).lower(*operands).compile(), kernel)
    except Exception as error:  # the others may still run
        return Compiled(None, kernel, described(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=of_k, default=K, help=f"with commas (default {','.join(map(str, K))})")
    parser.add_argument("--m", type=int, default=256, help="rows of results (default 256)")
    parser.add_argument("--n", type=int, default=256, help="columns of results (default 256)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    options = parser.parse_args(arguments)
    device = jax.devices()[0]
    file = options.results / slug(report.device_name(device)) / "errors_fp8.json"
    about: dict[str, Any] = {
        **provenance.record(device),
        "suite": "errors_fp8",
        **{name: getattr(options, name) for name in ("m", "n", "seed")},
        "how": "against float64; error: in the Frobenius norm, worst: of an element over its sum of |a||b|, at most",
    }
    forms = [(t, p, side) for t in TYPES for p in PRECISIONS for side in (XLA, OURS)]
    rows: list[Row] = []
    ks = sorted(set(options.k))
    with report.progress(len(ks) * len(forms), "errors") as step, ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = {(k, form): pool.submit(compiled, *form, (options.m, options.n, k)) for k in ks for form in forms}
        for k in ks:
            data = {(t, x): drawn(x, t, (options.m, options.n, k), options.seed) for t in TYPES for x in KINDS}
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
