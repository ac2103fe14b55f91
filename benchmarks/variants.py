"""What a variation of a product costs: its layouts, the other 16-bit type, a bias and a function after it.

The variations of one product take turns. Beside each other a chip that warms up and lowers its clock slows all of them
alike, which the rows of a suite, measured one after the other, cannot promise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from jaxgemm import timing
from jaxgemm.bench import Bench, cache_bytes
from jaxgemm.case import Case, make_inputs, reference_rows, relative_error, sample_rows, take_rows


@dataclass(frozen=True)
class Varied:
    """A product, and what is to be compared with it."""

    plain: Case

    @property
    def cases(self) -> tuple[Case, ...]:
        """The product itself comes first."""
        layouts = (replace(self.plain, layout=layout) for layout in ("NT", "TN", "TT"))
        other = replace(self.plain, dtype="float16")
        return self.plain, *layouts, other, replace(self.plain, bias=True, activation="gelu")


#: Square ones of three sizes, rows that are no vectors, and many and few rows of a model's layer.
VARIED = {
    "variants": tuple(
        Varied(Case(m, n, k, "bfloat16"))
        for m, n, k in (
            (1024, 1024, 1024),
            (4096, 4096, 4096),
            (8192, 8192, 8192),
            (2047, 2049, 2051),
            (2048, 8192, 8192),
            (16, 8192, 8192),
        )
    )
}
KERNELS = ("sm90",)


def measure(bench: Bench, products: Sequence[Varied], kernels: Sequence[str]) -> list[dict[str, Any]]:
    """One row a variation and path, with its time over that of the product alone by the same path, and XLA's faster
    path's time over this one's.
    """
    return [row for product in products for row in _measure(bench, product, kernels)]


def _measure(bench: Bench, product: Varied, kernels: Sequence[str]) -> list[dict[str, Any]]:
    cases = product.cases
    smallest = min(case.operand_bytes for case in cases)
    copies = min(32, 1 + 3 * cache_bytes(bench.limits) // smallest)
    operands = [make_inputs(case, copies, bench.seed + i) for i, case in enumerate(cases)]
    inputs = [sum(parts, ()) for parts in zip(*operands, strict=True)]
    programs: dict[tuple[int, str], timing.Program] = {}
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    first = 0
    for i, case in enumerate(cases):
        mine = slice(first, first := first + len(case.operands))
        forms: dict[str, tuple[Callable[..., jax.Array], dict[str, Any]]] = {
            f"jaxgemm {name}": (partial(case.ours, kernel=name), {}) for name in kernels
        }
        forms |= {f"XLA {path}": (case.xla, options) for path, options in bench.xla_paths.items()}
        sampled = sample_rows(case, bench.seed)
        reference = reference_rows(case, *inputs[0][mine], rows=sampled)
        for path, (function, options) in forms.items():
            row: dict[str, Any] = {"problem": str(case), "path": path, "over": None, "ratio": None, "message": ""}
            rows[i, path] = row
            try:
                program = jax.jit(partial(_of_some, function, mine), compiler_options=options or None)
                compiled = program.lower(*inputs[0]).compile()
                row["error"] = relative_error(take_rows(compiled(*inputs[0]), case, sampled), reference)
                programs[i, path] = compiled
            except Exception as error:
                row["message"] = f"{type(error).__name__}: {error}"
    times = bench.times({f"{i} {path}": program for (i, path), program in programs.items()}, inputs)
    took = {key: times["{} {}".format(*key)] for key in programs}
    for (i, path), t in took.items():
        theirs = min((x.us for (j, p), x in took.items() if j == i and p.startswith("XLA")), default=None)
        rows[i, path] |= {"us": t.us, "launches": t.launches, "calls": t.calls}
        rows[i, path]["ratio"] = theirs / t.us if theirs else None
        rows[i, path]["over"] = t.us / took[0, path].us if (0, path) in took else None
    return list(rows.values())


def _of_some(function: Callable[..., jax.Array], which: slice, *args: jax.Array) -> jax.Array:
    return function(*args[which])


def cells(row: dict[str, Any]) -> list[str]:
    """A row for the table whose columns are COLUMNS."""
    if row["message"]:
        return [row["problem"], row["path"], row["message"], *["-"] * (len(COLUMNS) - 3)]
    over, ratio = ("-" if x is None else f"{x:.3f}" for x in (row["over"], row["ratio"]))
    return [row["problem"], row["path"], f"{row['us']:.1f}", over, ratio, f"{row['error']:.1e}"]


COLUMNS = ("product", "path", "us", "over plain", "ratio", "error")
