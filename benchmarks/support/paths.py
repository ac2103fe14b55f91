"""What is measured side by side: a function by kernels of ours, by XLA's paths, and by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from jaxgemm.measure import timing
from jaxgemm.measure.bench import Bench, cache_bytes

Function = Callable[..., jax.Array]


def forms(
    bench: Bench, kernels: Sequence[str], ours: Callable[[str], Function], theirs: Function
) -> dict[str, tuple[Function, dict[str, Any]]]:
    """Functions and the options to compile them with, by the names of their rows. `ours` takes a kernel's name."""
    found: dict[str, tuple[Function, dict[str, Any]]] = {f"jaxgemm {name}": (ours(name), {}) for name in kernels}
    return found | {f"XLA {path}": (theirs, options) for path, options in bench.xla_paths.items()}


def sets_of_operands(bench: Bench, size: int) -> int:
    """How many sets of operands of this many bytes are more than three times the cache; 256 at most."""
    return min(256, 1 + 3 * cache_bytes(bench.limits) // size)


def measure(
    bench: Bench,
    problem: str,
    found: dict[str, tuple[Function, dict[str, Any]]],
    inputs: Sequence[tuple[jax.Array, ...]],
    error: Callable[[Any, Sequence[jax.Array]], float | None],
    others: Mapping[str, Callable[[], timing.Program]] | None = None,
) -> list[dict[str, Any]]:
    """One row a path, with XLA's faster path's time over this one's.

    Args:
        bench: how to measure.
        problem: what the rows are called.
        found: as :func:`forms` finds them; they take turns.
        inputs: sets of operands, which take turns.
        error: of a result and its operands.
        others: what makes programs that are not JAX's, by the names of their rows.
    """
    programs: dict[str, timing.Program] = {}
    makers = {name: partial(_compiled, *of, inputs[0]) for name, of in found.items()} | dict(others or {})
    rows: dict[str, dict[str, Any]] = {
        name: {"problem": problem, "path": name, "ratio": None, "message": ""} for name in makers
    }
    for name, make in makers.items():
        try:
            program = make()
            rows[name]["error"] = error(program(*inputs[0]), inputs[0])
            programs[name] = program
        except Exception as failure:
            rows[name]["message"] = f"{type(failure).__name__}: {failure}"
    times = bench.times(programs, inputs)
    theirs = min((t.us for name, t in times.items() if name.startswith("XLA")), default=None)
    for name, t in times.items():
        rows[name] |= {"us": t.us, "launches": t.launches, "calls": t.calls}
        rows[name]["ratio"] = theirs / t.us if theirs else None
    return list(rows.values())


def _compiled(function: Function, options: dict[str, Any], operands: Sequence[jax.Array]) -> timing.Program:
    program: timing.Program = jax.jit(function, compiler_options=options or None).lower(*operands).compile()
    return program


def cells(row: dict[str, Any]) -> list[str]:
    """A row for a table with a column for what is measured, and then COLUMNS."""
    if row["message"]:
        return [row["problem"], row["path"], row["message"], *["-"] * (len(COLUMNS) - 2)]
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
    error = "-" if row["error"] is None else f"{row['error']:.1e}"
    return [row["problem"], row["path"], f"{row['us']:.1f}", str(row["launches"]), ratio, error]


COLUMNS = ("path", "us", "launches", "ratio", "error")
