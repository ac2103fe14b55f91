"""What a variation of a product costs: its layouts, the other 16-bit type, a bias and a function after it.

The variations of one product take turns. Beside each other a chip that warms up and lowers its clock slows all of them
alike, which the rows of a suite, measured one after the other, cannot promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from paths import Function, forms, sets_of_operands

from jaxgemm.measure import timing
from jaxgemm.measure.bench import Bench
from jaxgemm.measure.case import Case, make_inputs, reference_rows, relative_error, sample_rows, take_rows

#: Square products of three sizes, rows that are no vectors, and many and few rows of a model's layer.
VARIED = {
    "variants": (
        *(Case(n, n, n, "bfloat16") for n in (1024, 4096, 8192)),
        Case(2047, 2049, 2051, "bfloat16"),
        *(Case(m, 8192, 8192, "bfloat16") for m in (2048, 16)),
    )
}
KERNELS = ("sm90",)


def variations(plain: Case) -> tuple[Case, ...]:
    """The product itself, and what is to be compared with it."""
    layouts = (replace(plain, layout=layout) for layout in ("NT", "TN", "TT"))
    return plain, *layouts, replace(plain, dtype="float16"), replace(plain, bias=True, activation="gelu")


def measure(bench: Bench, product: Case, kernels: Sequence[str]) -> list[dict[str, Any]]:
    """One row a variation and path, with its time over that of the product alone by the same path, and XLA's faster
    path's time over this one's.
    """
    cases = variations(product)
    sets = sets_of_operands(bench, min(case.operand_bytes for case in cases))
    operands = [make_inputs(case, sets, bench.seed + i) for i, case in enumerate(cases)]
    inputs = [sum(parts, ()) for parts in zip(*operands, strict=True)]
    programs: dict[str, timing.Program] = {}
    rows: list[dict[str, Any]] = []
    first = 0
    for case in cases:
        mine = slice(first, first := first + len(case.operands))
        sampled = sample_rows(case, bench.seed)
        reference = reference_rows(case, *inputs[0][mine], rows=sampled)
        for path, (function, options) in forms(bench, kernels, partial(_kernel, case), case.xla).items():
            row: dict[str, Any] = {"problem": str(case), "path": path, "over": None, "ratio": None, "message": ""}
            rows.append(row)
            try:
                program = jax.jit(partial(_of_some, function, mine), compiler_options=options or None)
                compiled = program.lower(*inputs[0]).compile()
                row["error"] = relative_error(take_rows(compiled(*inputs[0]), case, sampled), reference)
                programs[_name(case, path)] = compiled
            except Exception as error:
                row["message"] = f"{type(error).__name__}: {error}"
    times = bench.times(programs, inputs)
    for row in rows:
        t, plain = (times.get(_name(problem, row["path"])) for problem in (row["problem"], cases[0]))
        theirs = [times.get(_name(row["problem"], f"XLA {path}")) for path in bench.xla_paths]
        fastest = min((x.us for x in theirs if x), default=None)
        if t:
            row |= {"us": t.us, "launches": t.launches, "calls": t.calls}
            row["ratio"] = fastest / t.us if fastest else None
            row["over"] = t.us / plain.us if plain else None
    return rows


def _name(problem: Case | str, path: str) -> str:
    return f"{problem} by {path}"


def _kernel(case: Case, name: str) -> Function:
    return partial(case.ours, kernel=name)


def _of_some(function: Function, which: slice, *args: jax.Array) -> jax.Array:
    return function(*args[which])


def cells(row: dict[str, Any]) -> list[str]:
    """A row for the table whose columns are COLUMNS."""
    if row["message"]:
        return [row["problem"], row["path"], row["message"], *["-"] * (len(COLUMNS) - 3)]
    over, ratio = ("-" if x is None else f"{x:.3f}" for x in (row["over"], row["ratio"]))
    return [row["problem"], row["path"], f"{row['us']:.1f}", over, ratio, f"{row['error']:.1e}"]


COLUMNS = ("product", "path", "us", "over plain", "ratio", "error")
