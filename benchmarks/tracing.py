"""What a product costs while a program is traced: python benchmarks/tracing.py [--result FILE]

A model of 500 products is traced with jnp's products and with ours. Tracing is Python in one thread, so that
thread's processor time is taken; other work on the machine lengthens that too, so the forms take turns, and each is
judged by its shortest time.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxgemm
from jaxgemm.measure import provenance, report

LENGTH, SIZE = 500, 64
LIMIT = 1.3

Layer = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
_MATRIX = (((1,), (0,)), ((), ()))

#: (the form it is compared with, the layer) by name.
FORMS: dict[str, tuple[str, Layer]] = {
    "jnp.dot": ("jnp.dot", lambda x, w, _: jnp.dot(x, w)),
    "jaxgemm.dot_general": ("jnp.dot", lambda x, w, _: jaxgemm.dot_general(x, w, _MATRIX)),
    "jaxgemm.matmul": ("jnp.dot", lambda x, w, _: jaxgemm.matmul(x, w)),
    "jaxgemm.gemm": ("jnp.dot", lambda x, w, _: jaxgemm.gemm(x, w)),
    "jaxgemm.gemm, named kernel": ("jnp.dot", lambda x, w, _: jaxgemm.gemm(x, w, kernel="host")),
    "gelu(jnp.dot + bias)": ("gelu(jnp.dot + bias)", lambda x, w, b: jax.nn.gelu(jnp.dot(x, w) + b)),
    "jaxgemm.gemm, bias and gelu": (
        "gelu(jnp.dot + bias)",
        lambda x, w, b: jaxgemm.gemm(x, w, bias=b, activation="gelu"),
    ),
    "silu(jnp.dot) * jnp.dot": ("silu(jnp.dot) * jnp.dot", lambda x, w, _: jax.nn.silu(jnp.dot(x, w)) * jnp.dot(x, w)),
    "jaxgemm.gated_gemm": ("silu(jnp.dot) * jnp.dot", lambda x, w, _: jaxgemm.gated_gemm(x, w, w)),
}
#: What is timed: both ways to trace a function.
TRACERS: dict[str, Callable[..., Any]] = {
    "make_jaxpr": lambda f, *args: jax.make_jaxpr(f)(*args),
    "jit.trace": lambda f, *args: jax.jit(f).trace(*args),
}


def _model(layer: Layer) -> Callable[..., jax.Array]:
    """A new function each time, so that no trace of an earlier one is found."""

    def model(x: jax.Array, bias: jax.Array, *weights: jax.Array) -> jax.Array:
        for w in weights:
            x = layer(x, w, bias)
        return x

    return model


def measure(repeats: int) -> list[dict[str, Any]]:
    """One row a form: the least milliseconds of each way to trace it, and their ratios to jnp's."""
    x, bias = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32), jax.ShapeDtypeStruct((SIZE,), jnp.float32)
    arguments = (x, bias, *[x] * LENGTH)
    best: dict[tuple[str, str], float] = {}
    for _ in range(repeats):
        for form, (_, layer) in FORMS.items():
            for tracer, trace in TRACERS.items():
                model = _model(layer)
                gc.collect()  # so that no form is charged for another's garbage
                gc.disable()
                begin = time.thread_time()
                trace(model, *arguments)
                took = 1e3 * (time.thread_time() - begin)
                gc.enable()
                best[form, tracer] = min(took, best.get((form, tracer), took))
    return [
        {
            "form": form,
            "against": against,
            **{f"{tracer}_ms": best[form, tracer] for tracer in TRACERS},
            **{f"{tracer}_ratio": best[form, tracer] / best[against, tracer] for tracer in TRACERS},
        }
        for form, (against, _) in FORMS.items()
    ]


def main() -> int:
    """Measure and print; returns 1 if a form of ours takes more than LIMIT times as long as jnp's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="times that each form is traced (default 20)")
    parser.add_argument("--result", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    rows = measure(options.repeats)
    columns = ["form", *(f"{t} ms" for t in TRACERS), *(f"{t} ratio" for t in TRACERS)]
    cells = [
        [r["form"], *(f"{r[f'{t}_ms']:.1f}" for t in TRACERS), *(f"{r[f'{t}_ratio']:.2f}" for t in TRACERS)]
        for r in rows
    ]
    report.print_table(f"Tracing {LENGTH} products, jax {jax.__version__}", columns, cells)
    if options.result:
        document = {
            **provenance.record(jax.devices()[0]),
            "suite": "tracing",
            "length": LENGTH,
            "repeats": options.repeats,
            "rows": rows,
        }
        report.write(options.result, document)
    return int(any(r[f"{t}_ratio"] > LIMIT for r in rows for t in TRACERS))


if __name__ == "__main__":
    sys.exit(main())
