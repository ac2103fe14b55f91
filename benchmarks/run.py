"""Runs suites of shapes.py and keeps their results: python benchmarks/run.py sgemm bf16 chain

Suite `grouped` is of grouped products and their gradients, beside torch's where that is installed; `torch` is of
products of 8 bits beside torch's alone. Results go to benchmarks/results/<device>/<suite>.json, written anew after
every product, so that a run that is interrupted leaves what it had. Each begins with what it was measured with, and has
a line for each product. Chains are in chains.json, and the suites that rules of `auto` were read off in rules.json.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jaxgemm
from jaxgemm.measure import bench, report
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent
sys.path.append(str(_HERE / "support"))

import beside_torch  # noqa: E402
import chain  # noqa: E402
import gated_layers  # noqa: E402
import grouped_products  # noqa: E402
import programs  # noqa: E402
from chain import CHAINS  # noqa: E402
from gated_layers import LAYERS  # noqa: E402
from programs import PROGRAMS  # noqa: E402
from shapes import RULES, SUITES  # noqa: E402


def collect(
    name: str, items: Sequence[Any], measure: Callable[[Any], list[Any]], save: Callable[[list[Any]], None]
) -> list[Any]:
    """The rows of all items; what there is of them is saved after each."""
    rows: list[Any] = []
    with report.progress(len(items), name) as step:
        for item in items:
            step(str(item))
            rows += measure(item)
            save(rows)
    return rows


def saver(name: str, runner: bench.Bench, folder: Path) -> Callable[[Sequence[dict[str, Any]]], None]:
    """What writes the rows of a suite. Several small suites share a file, which has the rows of each under its name."""
    about = report.document(runner, [], suite=name)
    shared = "chains" if name in CHAINS else "rules" if name in RULES else ""
    file = folder / f"{shared or name}.json"
    if shared:
        return lambda rows: report.write(file, report.renewed(file, name, about, rows))
    return lambda rows: report.write(file, {**about, "rows": rows})


def run_suite(name: str, runner: bench.Bench, kernels: Sequence[str], folder: Path) -> bool:
    """Measure and print one suite; returns whether every row came out."""
    save = saver(name, runner, folder)
    rows = collect(
        name,
        SUITES[name].cases,
        lambda case: runner.measure(case, kernels),
        lambda rows: save(report.by_product([row.to_json() for row in rows])),
    )
    report.print_rows(rows)
    return all(row.status != "error" for row in rows)


class Table(NamedTuple):
    """A suite of other things than products: its module has `measure` for an item, and `cells` for a row."""

    module: Any
    items: Sequence[Any]
    title: str
    kernels: Sequence[str]  # measured on a GPU unless others are asked for
    on_cpu: Sequence[str] | None = None  # the same on a CPU, if these are not the usual ones


def _table(name: str) -> Table:
    if name in CHAINS:
        return Table(chain, (CHAINS[name],), f"A chain of {CHAINS[name]}, precision HIGHEST", CHAINS[name].kernels)
    if name in LAYERS:
        title = "Gated pairs of products, silu(x w_gate) * (x w_up)"
        return Table(gated_layers, LAYERS[name], title, gated_layers.KERNELS)
    if name in grouped_products.LAYERS:
        title = "Products of groups of rows, and their gradients"
        return Table(grouped_products, grouped_products.LAYERS[name], title, grouped_products.KERNELS, on_cpu=("auto",))
    if name in beside_torch.PRODUCTS:
        title = "Products of 8 bits, beside torch's of weights along k"
        return Table(beside_torch, beside_torch.PRODUCTS[name], title, beside_torch.KERNELS, on_cpu=("auto",))
    return Table(programs, PROGRAMS[name], "What models write, beside the same by jnp", programs.KERNELS)


def run_table(name: str, runner: bench.Bench, kernels: Sequence[str], folder: Path) -> bool:
    """Measure and print a suite of other things than products; returns whether every row came out."""
    table = _table(name)
    rows = collect(
        name,
        table.items,
        lambda item: table.module.measure(runner, item, kernels),
        saver(name, runner, folder),
    )
    report.print_table(table.title, table.module.COLUMNS, [table.module.cells(row) for row in rows])
    return not any(row["message"] for row in rows)


def _kernels(asked: Sequence[str] | None, suite: str, runner: bench.Bench) -> list[str]:
    if asked:
        return list(asked)
    of = SUITES.get(suite) or _table(suite)
    if runner.device.platform == "cpu":
        return list(getattr(of, "on_cpu", None) or runner.default_kernels())
    known = {"auto", "xla", *(kernel.name for kernel in jaxgemm.kernels())}
    return [name for name in of.kernels if name.partition(":")[0] in known]


def main() -> int:
    """Run the suites named on the command line; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = (CHAINS, LAYERS, PROGRAMS, grouped_products.LAYERS, beside_torch.PRODUCTS)
    parser.add_argument("suites", nargs="+", choices=[*SUITES, *(name for table in tables for name in table)])
    parser.add_argument("--kernel", action="append", help="instead of the suite's own; may be repeated")
    parser.add_argument("--repeats", type=int, default=30, help="calls to take the median of, at most (default 30)")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each program's calls (default 1)")
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    options = parser.parse_args()
    for kernel in options.kernel or ():
        try:
            bench.parse_kernel(kernel)
        except ValueError as error:
            parser.error(str(error))

    runner = bench.on_default_device(repeats=options.repeats, budget_s=options.budget)
    report.print_header(runner)
    folder = options.results / slug(report.device_name(runner.device))
    fine = True
    for name in options.suites:
        kernels = _kernels(options.kernel, name, runner)
        run = run_suite if name in SUITES else run_table
        try:
            fine &= run(name, runner, kernels, folder)
        except Exception:  # the next suite may still run
            traceback.print_exc()
            fine = False
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
