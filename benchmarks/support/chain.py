"""What a call costs besides its kernel: jitted chains of small products, and tracing and compiling one.

A chain shows what a single call hides: whether launches are captured into one command buffer and follow each
other without gaps. Its wall time is compared, not its device time: kernels that follow each other overlap a little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from paths import forms

import jaxgemm
from jaxgemm.measure import timing
from jaxgemm.measure.bench import Bench, parse_kernel

Product = Callable[[jax.Array, jax.Array], jax.Array]
HIGHEST = jax.lax.Precision.HIGHEST
ROUNDS = 20
_KEPT = ", kept"


@dataclass(frozen=True)
class Chain:
    """x · w[0] · w[1] · ..., in one jitted program.

    Attributes:
        length: how many products.
        rows: of x.
        widths: columns of x, w[0], w[1], ...; they start again when they end.
        dtype: of all of them.
        kernels: measured on a GPU unless others are asked for.
    """

    length: int
    rows: int
    widths: tuple[int, ...]
    dtype: str
    kernels: tuple[str, ...]

    def __str__(self) -> str:
        sizes = f"{self.rows}x{self.widths[0]}x{self.widths[0]}" if len(self.widths) == 1 else "mixed small shapes"
        return f"{self.length} {self.dtype} products of {sizes} in one program"

    def inputs(self, seed: int) -> tuple[jax.Array, list[jax.Array]]:
        """x, and one weight for each step of the widths; scaled so that the values stay near 1."""
        ends = zip(self.widths, (*self.widths[1:], self.widths[0]), strict=True)
        shapes = [(self.rows, self.widths[0]), *ends]
        keys = jax.random.split(jax.random.key(seed), len(shapes))
        x, *w = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
        return x.astype(self.dtype), [(y / y.shape[0] ** 0.5).astype(self.dtype) for y in w]

    def program(self, product: Product) -> Callable[..., jax.Array]:
        """The chain with this product."""

        def run(x: jax.Array, w: list[jax.Array]) -> jax.Array:
            for i in range(self.length):
                x = product(x, w[i % len(w)])
            return x

        return run


#: Twenty widths, multiples of 64, of 8 and of neither; a chain goes through them again and again.
MIXED = (64, 256, 96, 512, 128, 200, 384, 72, 320, 160, 250, 128, 333, 64, 448, 100, 192, 57, 240, 128)

CHAINS = {
    "chain": Chain(50, 256, (256,), "float32", ("auto", "simt")),
    # Ours and cuBLAS take one kernel for each of these products, so that wall times less kernel times compare directly.
    # Where a path takes two kernels they overlap, and the sum of their times is more than the time that they take.
    "chain_bf16": Chain(50, 256, (256,), "bfloat16", ("auto", "sm90")),
    "mixed": Chain(200, 96, MIXED, "bfloat16", ("auto", "sm90")),
}


class Kept:
    """A chain whose results take each other's place, so that none of its buffers moves from call to call.

    Where they move, as results that are let go do, XLA updates the graph that it has captured, and the host may need
    longer for that than the device for the chain.
    """

    def __init__(self, program: Callable[..., jax.Array], options: dict[str, Any], like: jax.Array) -> None:
        """`like` has the shape and type of the result."""

        def run(x: jax.Array, w: list[jax.Array], out: jax.Array) -> jax.Array:
            del out
            return program(x, w)

        self._program = jax.jit(run, donate_argnums=2, keep_unused=True, compiler_options=options or None)
        self._result = jnp.zeros_like(like)

    def __call__(self, x: jax.Array, w: list[jax.Array]) -> jax.Array:
        """The chain's result, until the next call."""
        self._result = self._program(x, w, self._result)
        return self._result


def _ours(name: str) -> Product:
    kernel, options = parse_kernel(name)
    return lambda x, w: jaxgemm.gemm(x, w, precision=HIGHEST, kernel=kernel, **options)


def _xla(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.dot(x, w, precision=HIGHEST)


def compile_times(
    product: Product, options: dict[str, Any], sizes: Sequence[int], dtype: str
) -> list[dict[str, float]]:
    """Seconds to trace and lower, and to compile, one product at each size.

    Sizes that the process has not seen: XLA keeps what it learned by timing its candidates on a shape.
    """
    out = []
    for size in sizes:
        operand = jax.ShapeDtypeStruct((size, size), dtype)
        begin = time.perf_counter()
        lowered = jax.jit(product, compiler_options=options or None).lower(operand, operand)
        traced = time.perf_counter()
        lowered.compile()
        out.append({"size": size, "trace_s": traced - begin, "compile_s": time.perf_counter() - traced})
    return out


def measure(bench: Bench, chain: Chain, kernels: Sequence[str]) -> list[dict[str, Any]]:
    """One row a kernel of ours and a path of XLA: wall and device time of the chain, also where its result is kept in
    one place, and compile times.
    """
    products = forms(bench, kernels, _ours, _xla)
    inputs = chain.inputs(bench.seed)
    jax.jit(jnp.add).lower(inputs[0], inputs[0]).compile()  # the first compilation of a process takes longer
    programs: dict[str, timing.Program] = {}
    rows: dict[str, dict[str, Any]] = {}
    for i, (name, (product, options)) in enumerate(products.items()):
        fresh = [max(chain.widths) + 8 * (3 * i + j) for j in (1, 2, 3)]
        rows[name] = {"path": name, "length": chain.length, "message": ""}
        try:
            rows[name]["compile"] = compile_times(product, options, fresh, chain.dtype)
            program = jax.jit(chain.program(product), compiler_options=options or None)
            result = jax.block_until_ready(program(*inputs))
            kept = Kept(chain.program(product), options, result)
            jax.block_until_ready(kept(*inputs))
            programs |= {name: program, name + _KEPT: kept}
        except Exception as error:
            rows[name]["message"] = f"{type(error).__name__}: {error}"
    times = timing.measure(
        programs,
        [inputs],
        repeats=16 * bench.repeats,
        recorder=bench.recorder,
        queued=bench.queued,
        rounds=ROUNDS,  # a host that is interrupted spoils a row of calls
    )
    for name in programs.keys() & rows.keys():
        measured = times[name]
        rows[name] |= {
            "kept_wall_us": times[name + _KEPT].wall_us,
            "kept_walls_us": times[name + _KEPT].walls_us,
            "wall_us": measured.wall_us,
            "walls_us": measured.walls_us,
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
        f"{min(row['walls_us']):.1f}",
        f"{row['kept_wall_us']:.1f}",
        "-" if device is None else f"{device:.1f}",
        "-" if device is None else str(row["launches"]),
        f"{1e3 * trace:.0f}",
        f"{1e3 * total:.0f}",
    ]


COLUMNS = ("path", "wall us", "least", "kept us", "device us", "launches", "trace ms", "trace + compile ms")
