"""Errors and times of whole programs that solve or fit something, by precision: python benchmarks/fits.py

    python benchmarks/fits.py --size 2048 --only rotation,network
    python benchmarks/fits.py --size 64 --results /tmp/results

The programs of benchmarks/support/solvers.py are plain JAX. `XLA` computes them as they are, each precision made JAX's
default, by each of its two paths on a GPU; `jaxgemm` has jaxgemm.override with that precision around them. All begin
with the same float32 numbers, and so does the program in float64 that they are held to. `error` is the difference from
float64's result, over that, in the Frobenius norm; `residual` is what is left of the problem, computed in float64 for
all. `products` counts the places in an overridden program where a product stands, by kernel and arithmetic.
Results go to benchmarks/results/<device>/fits.json, written anew after each program.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from jaxgemm.measure import bench, provenance, report
from jaxgemm.measure.timing import Program
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE), str(_HERE / "support")]

from errors import OURS, XLA, described  # noqa: E402
from solvers import FITS, Fit, Tree  # noqa: E402

FLOAT64 = "float64"
PRECISIONS = ("default", "BF16_BF16_F32_X3", "TF32_TF32_F32_X3", "highest")
#: What jaxgemm.override is asked for.
OVERRIDDEN = PRECISIONS[1:]

Row = dict[str, Any]
Operands = Sequence[jax.Array]


class Form(NamedTuple):
    """Who computes a program in which precision; of XLA's, on which of its paths."""

    precision: str
    side: str
    path: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.precision, "by", self.side, self.path)))


def forms(paths: Sequence[str]) -> list[Form]:
    """All of them, float64's first."""
    xla = [Form(precision, XLA, path) for precision in PRECISIONS for path in paths]
    return [Form(FLOAT64, XLA, paths[0]), *xla, *(Form(precision, OURS) for precision in OVERRIDDEN)]


def compiled(form: Form, solve: Callable[..., Tree], operands: Operands, options: dict[str, Any]) -> Program:
    """A form's program of float32 operands."""
    if form.side == OURS:
        return jax.jit(jaxgemm.override(solve, precision=form.precision)).lower(*operands).compile()
    if form.precision == FLOAT64:
        with jax.enable_x64(True):
            return jax.jit(lambda *x: solve(*_wide(x))).lower(*operands).compile()
    with jax.default_matmul_precision(form.precision):
        return jax.jit(solve, compiler_options=options or None).lower(*operands).compile()


def products(form: Form, solve: Callable[..., Tree], operands: Operands) -> dict[str, int]:
    """How many products of the overridden program go to which kernel and arithmetic, or stay XLA's."""
    found = jaxgemm.explain(jaxgemm.override(solve, precision=form.precision), *operands)
    counts = Counter(XLA if x.kernel == "xla" else f"{x.kernel} {x.decision.choice.arithmetic}" for x in found.products)
    return {**counts, **({"left": len(found.left)} if found.left else {})}


def _wide(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: x.astype(jnp.float64), tree)


class Judge:
    """Holds results to float64's."""

    def __init__(self, fit: Fit, operands: Operands, exact: Tree) -> None:
        self._judge = jax.jit(lambda found, given: fit.judge(_wide(found), *_wide(given)))
        self._operands = operands
        self._exact, self.residual = self._of(exact)

    def _of(self, found: Tree) -> tuple[np.ndarray[Any, Any], float]:
        with jax.enable_x64(True):
            compared, residual = self._judge(found, self._operands)
        return np.asarray(compared), float(residual)

    def figures(self, found: Tree) -> Row:
        """Error and residual, or a message."""
        compared, residual = self._of(found)
        if not np.isfinite(compared).all():
            return {"message": "the result is not finite"}
        return {
            "error": float(np.linalg.norm(compared - self._exact) / np.linalg.norm(self._exact)),
            "residual": residual,
        }


def measure(runner: bench.Bench, name: str, size: int, step: Callable[[str], None]) -> list[Row]:
    """A row for each form of a program."""
    fit = FITS[name]
    drawn = fit.draw(np.random.default_rng([runner.seed, list(FITS).index(name)]), size)
    operands = jax.device_put(tuple(x.astype(np.float32) for x in drawn))
    exact, *others = forms(list(runner.xla_paths))
    rows: dict[Form, Row] = {form: {"fit": name, "size": size, **form._asdict()} for form in (exact, *others)}
    step(f"{name} is compiled")
    with ThreadPoolExecutor(os.cpu_count()) as compiling:
        compilation = {
            form: compiling.submit(compiled, form, fit.solve, operands, runner.xla_paths.get(form.path, {}))
            for form in rows
        }
    programs = {str(exact): compilation[exact].result()}
    judge = Judge(fit, operands, programs[str(exact)](*operands))
    rows[exact]["residual"] = judge.residual
    for form in others:
        step(f"{name}, {form}")
        try:
            program = compilation[form].result()
            rows[form] |= judge.figures(program(*operands))
            if form.side == OURS:
                rows[form]["products"] = products(form, fit.solve, operands)
            programs[str(form)] = program
        except Exception as error:  # the others may still run
            rows[form]["message"] = described(error)
    step(f"{name}, times")
    times = runner.times(programs, [operands])
    for form, row in rows.items():
        if t := times.get(str(form)):
            row |= {"us": t.us, "launches": t.launches}
    return list(rows.values())


# --- What they say ---


COLUMNS = ("program", "precision", "by", "error", "residual", "time", "products")


def counted(row: Row) -> str:
    """Who computes the products of an overridden program."""
    return ", ".join(f"{count} {by}" for by, count in row.get("products", {}).items())


def cells(row: Row) -> list[str]:
    """A row of the table."""
    about = [row["fit"], row["precision"], f"{row['side']} {row['path']}".rstrip()]
    if "message" in row:
        return [*about, "-", "-", "-", row["message"]]
    error = f"{row['error']:.1e}" if "error" in row else "-"
    return [*about, error, f"{row['residual']:.1e}", report.time_text(row["us"]), counted(row)]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    def size(text: str) -> int:
        if not text.isdecimal() or int(text) < 2 or int(text) % 2:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected an even number of at least 2")
        return int(text)

    def names(text: str) -> list[str]:
        if unknown := set(found := text.split(",")) - set(FITS):
            raise argparse.ArgumentTypeError(f"no program {', '.join(sorted(unknown))}; there are {', '.join(FITS)}")
        return found

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size, default=4096, help="rows and columns of the largest matrices, or half")
    parser.add_argument("--only", type=names, default=list(FITS), help=f"of {','.join(FITS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, measure, write and print."""
    options = _arguments(arguments)
    runner = bench.on_default_device(repeats=3, seed=options.seed)
    file = options.results / slug(report.device_name(runner.device)) / "fits.json"
    about = {
        **provenance.record(runner.device),
        "suite": "fits",
        "seed": options.seed,
        "how": f"{runner.how}, median of {runner.repeats} calls",
    }
    rows: list[Row] = []
    steps = len(options.only) * (1 + len(forms(list(runner.xla_paths))))
    with report.progress(steps, "fits") as step:
        for name in options.only:
            rows += measure(runner, name, options.size, step)
            report.write(file, {**about, "rows": rows})
    for name in options.only:
        title = f"{name}: {FITS[name].what}; residual {FITS[name].residual}; size {options.size}"
        report.print_table(title, COLUMNS, [cells(row) for row in rows if row["fit"] == name], left=3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
