"""What a call costs besides its kernel: a jitted chain of small products, and tracing and compiling one.

A chain shows what a single call hides: whether launches are captured into one command buffer and follow each
other without gaps. Its wall time is compared, not its device time: kernels that follow each other overlap a little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jaxgemm
from jaxgemm import timing
from jaxgemm.bench import Bench, parse_kernel

LENGTH, SIZE = 50, 256

Product = Callable[[jax.Array, jax.Array], jax.Array]


def _ours(name: str) -> Product:
    kernel, options = parse_kernel(name)
    return lambda x, w: jaxgemm.gemm(x, w, precision=jax.lax.Precision.HIGHEST, kernel=kernel, **options)


def _xla(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.dot(x, w, precision=jax.lax.Precision.HIGHEST)


def _chain(product: Product, length: int) -> Product:
    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(length):
            x = product(x, w)
        return x

    return chain


def compile_times(product: Product, options: dict[str, Any], sizes: Sequence[int]) -> list[dict[str, float]]:
    """Seconds to trace and lower, and to compile, one product at each size.

    Sizes that the process has not seen: XLA keeps what it learned by timing its candidates on a shape.
    """
    out = []
    for size in sizes:
        operand = jax.ShapeDtypeStruct((size, size), jnp.float32)
        begin = time.perf_counter()
        lowered = jax.jit(product, compiler_options=options or None).lower(operand, operand)
        traced = time.perf_counter()
        lowered.compile()
        out.append({"size": size, "trace_s": traced - begin, "compile_s": time.perf_counter() - traced})
    return out


def measure(bench: Bench, kernels: Sequence[str], length: int = LENGTH, size: int = SIZE) -> list[dict[str, Any]]:
    """One row a kernel of ours and a path of XLA: wall and device time of the chain, and compile times."""
    products: dict[str, tuple[Product, dict[str, Any]]] = {f"jaxgemm {name}": (_ours(name), {}) for name in kernels}
    products |= {f"XLA {path}": (_xla, options) for path, options in bench.xla_paths.items()}
    x, w = (jax.random.normal(key, (size, size)) for key in jax.random.split(jax.random.key(bench.seed)))
    w = w / size**0.5  # keeps the chain's values near 1
    jax.jit(jnp.add).lower(x, w).compile()  # what only a process's first compilation does
    programs: dict[str, timing.Program] = {}
    rows: dict[str, dict[str, Any]] = {}
    for i, (name, (product, options)) in enumerate(products.items()):
        fresh = [size + 8 * (3 * i + j) for j in (1, 2, 3)]
        rows[name] = {"path": name, "length": length, "size": size, "message": ""}
        try:
            rows[name]["compile"] = compile_times(product, options, fresh)
            program = jax.jit(_chain(product, length), compiler_options=options or None)
            jax.block_until_ready(program(x, w))
            programs[name] = program
        except Exception as error:
            rows[name]["message"] = f"{type(error).__name__}: {error}"
    times = timing.measure(programs, [(x, w)], repeats=4 * bench.repeats, recorder=bench.recorder, queued=bench.queued)
    for name, measured in times.items():
        rows[name] |= {
            "wall_us": measured.wall_us,
            "device_us": measured.device_us,
            "launches": measured.launches,
            "calls": measured.calls,
        }
    return list(rows.values())


def cells(row: dict[str, Any]) -> list[str]:
    """A row for the table whose columns are COLUMNS."""
    if row["message"]:
        return [row["path"], row["message"], *["-"] * (len(COLUMNS) - 2)]
    compiled = row["compile"]
    total = sorted(one["trace_s"] + one["compile_s"] for one in compiled)[len(compiled) // 2]
    trace = sorted(one["trace_s"] for one in compiled)[len(compiled) // 2]
    device = row["device_us"]
    return [
        row["path"],
        f"{row['wall_us']:.1f}",
        "-" if device is None else f"{device:.1f}",
        "-" if device is None else str(row["launches"]),
        f"{1e3 * trace:.0f}",
        f"{1e3 * total:.0f}",
    ]


COLUMNS = ("path", "wall us", "device us", "launches", "trace ms", "trace + compile ms")
