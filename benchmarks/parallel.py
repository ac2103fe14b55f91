"""Products over several devices: python benchmarks/parallel.py [--devices N] [--kernel sm90]

Measures the cases of parallel_cases.py with jnp.dot's products and with ours, on the same mesh, taking turns. Times
are wall times of calls issued in a row, because collectives and products overlap, which kernel times would hide.
Results go to benchmarks/results/<device>/parallel.json after every case, in place of those of as many devices and the
same extents.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

import jaxgemm
from jaxgemm.measure import bench, provenance, report, timing
from jaxgemm.measure.case import DTYPES
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent
sys.path.append(str(_HERE / "support"))

import parallel_cases  # noqa: E402
from parallel_cases import BASE, Case  # noqa: E402

_SAMPLED_ROWS = 8
_COLLECTIVE = re.compile(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")

Options = dict[str, Any]


def xla_options(text: str) -> Options:
    """XLA's options out of "name=value,name=value"."""

    def value(given: str) -> Any:
        return {"true": True, "false": False}.get(given, int(given) if given.lstrip("-").isdecimal() else given)

    pairs = [item.partition("=") for item in text.split(",") if item]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError(f"malformed XLA options {text!r}: expected name=value,name=value")
    return {name: value(given) for name, _, given in pairs}


def arrays(case: Case, mesh: Mesh, dtype: str, seed: int) -> list[jax.Array]:
    """Normal random data, of a size at which the results are about 1, made where it belongs."""
    out = []
    for i, (shape, spec) in enumerate(zip(case.shapes, case.specs, strict=True)):
        scale = 1.0 if i in (0, len(case.shapes) - 1) else shape[0] ** -0.5

        def fresh(key: jax.Array, shape: tuple[int, ...] = shape, scale: float = scale) -> Any:
            return jax.random.normal(key, shape, dtype) * jnp.asarray(scale, dtype)

        key = jax.random.fold_in(jax.random.key(seed), i)
        out.append(jax.jit(fresh, out_shardings=NamedSharding(mesh, spec))(key))
    return out


def reference(case: Case, operands: Sequence[jax.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Some rows of the exact result, and which they are."""
    rows = np.unique(np.linspace(0, case.shapes[0][0] - 1, _SAMPLED_ROWS).astype(int))

    def exact(first: jax.Array, *rest: jax.Array) -> Any:
        return case.exact(first[rows].astype(jnp.float64), *(x.astype(jnp.float64) for x in rest))

    with jax.enable_x64(True):
        return np.asarray(jax.jit(exact)(*operands)), rows


def _distance(got: Any, expected: Any) -> float:
    """Largest relative difference, in the Frobenius norm, of any array of two trees."""

    def one(x: jax.Array, y: jax.Array) -> Any:
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
        return jnp.linalg.norm(x - y) / jnp.linalg.norm(y)

    return max(float(x) for x in jax.tree.leaves(jax.jit(lambda a, b: jax.tree.map(one, a, b))(got, expected)))


def _compile(form: parallel_cases.Form, options: Options, operands: Sequence[jax.Array]) -> tuple[Any, dict[str, Any]]:
    begin = time.perf_counter()
    program = form.function.lower(*operands).compile(compiler_options=options or None)
    collectives = _COLLECTIVE.findall(program.as_text())
    memory = program.memory_analysis()
    return program, {
        "compile_s": time.perf_counter() - begin,
        "collectives": {name: collectives.count(name) for name in sorted(set(collectives))},
        "temp_bytes": getattr(memory, "temp_size_in_bytes", None),
    }


def measure(
    case: Case, operands: Sequence[jax.Array], sets: Sequence[Options], repeats: int, step: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row a form and set of XLA options; a message instead of figures where one did not run."""
    exact, sampled = reference(case, operands)
    programs: dict[str, timing.Program] = {}
    rows: dict[str, dict[str, Any]] = {}
    base: Any = None
    for form in case.forms:
        for i, options in enumerate(sets if form.overlaps or form.name == BASE else sets[:1]):
            key = f"{form.name}#{i}"
            row = {"case": case.name, "form": form.name, "xla": options, "is_part": form.is_part, "message": ""}
            rows[key] = row
            step(f"{case.name}, {form.name}")
            try:
                program, facts = _compile(form, options, operands)
                row |= facts
                out = jax.block_until_ready(program(*operands))
                if not form.is_part:
                    base = out if base is None else base
                    first = np.asarray(jax.tree.leaves(out)[0][sampled].astype(jnp.float32), np.float64)
                    row["error"] = float(np.linalg.norm(first - exact) / np.linalg.norm(exact))
                    row["difference"] = _distance(out, base)
                programs[key] = program
            except Exception as error:  # the others may still run
                row["message"] = f"{type(error).__name__}: {error}"
            out = None
    base = None
    queued = jax.default_backend() != "cpu"
    for key, measured in timing.measure(programs, [operands], repeats=repeats, budget_s=2.0, queued=queued).items():
        rows[key] |= {"us": measured.wall_us, "calls": measured.calls}
    theirs = [row["us"] for row in rows.values() if row["form"] == BASE and "us" in row]
    for row in rows.values():
        if theirs and "us" in row and not row["is_part"]:
            row["ratio"] = min(theirs) / row["us"]
    return list(rows.values())


def _label(sets: Sequence[Options], options: Options) -> str:
    return "default" if not options else chr(ord("A") + [*filter(None, sets)].index(options))


COLUMNS = ("form", "XLA", "time", "TFLOP/s a device", "ratio", "error", "from jnp.dot", "collectives")


def cells(row: dict[str, Any], label: str, flops: float, devices: int) -> list[str]:
    """A row for the table whose columns are COLUMNS; ``label`` stands for its XLA options."""
    if row["message"]:
        return [row["form"], label, "failed", *["-"] * (len(COLUMNS) - 3)]
    is_part = row["is_part"]
    rate = "-" if is_part and "alone," not in row["form"] else f"{flops / devices / row['us'] / 1e6:.3g}"
    figures = [
        rate,
        *(["-"] * 3 if is_part else [f"{row['ratio']:.3f}", f"{row['error']:.1e}", f"{row['difference']:.1e}"]),
    ]
    counts = ", ".join(f"{count} {name}" for name, count in row["collectives"].items())
    return [row["form"], label, report.time_text(row["us"]), *figures, counts or "none"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, help="how many (default: all there are)")
    parser.add_argument("--case", action="append", help="only cases whose names contain this; may be repeated")
    parser.add_argument(
        "--kernel", action="append", help="of ours; may be repeated (default auto and sm90, on a CPU host)"
    )
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--model", type=int, default=8192, help="features of a token (default 8192)")
    parser.add_argument("--hidden", type=int, default=28672, help="features between the two products (default 28672)")
    parser.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16")
    parser.add_argument(
        "--xla",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="measure jnp.dot and what overlaps so as well; may be repeated",
    )
    parser.add_argument("--repeats", type=int, default=30, help="calls of each program, at most (default 30)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    options = parser.parse_args()
    count = len(jax.devices())
    options.devices = options.devices or count
    if not 1 <= options.devices <= count:
        parser.error(f"--devices: there are {count} here, got {options.devices}")
    for name in ("tokens", "hidden"):
        if getattr(options, name) % options.devices:
            parser.error(f"--{name}: {options.devices} devices do not divide {getattr(options, name)}")
    options.kernel = options.kernel or (["host"] if jax.default_backend() == "cpu" else ["auto", "sm90"])
    try:
        for kernel in options.kernel:
            bench.parse_kernel(kernel)
        options.xla = [{}, *map(xla_options, options.xla)]
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> int:
    """Run the cases; returns 1 if anything failed."""
    options = _arguments()
    devices = jax.devices()[: options.devices]
    mesh = jax.make_mesh((len(devices),), (parallel_cases.AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    extents = {name: getattr(options, name) for name in ("tokens", "model", "hidden")}
    cases = parallel_cases.make(mesh, **extents, kernels=options.kernel)
    if options.case:
        cases = [case for case in cases if any(text in case.name for text in options.case)]
    file = options.results / slug(report.device_name(devices[0])) / "parallel.json"
    about = {
        **provenance.record(devices[0]),
        "suite": "parallel",
        "devices": len(devices),
        "dtype": DTYPES[options.dtype],
        **extents,
        "how": f"wall time of calls in a row, median of up to {options.repeats}; ratio: jnp.dot's least / this one's",
    }
    source = "{} devices, {tokens} tokens, {model} -> {hidden} -> {model}".format(len(devices), **extents)
    found: list[dict[str, Any]] = []
    print(f"{len(devices)} x {about['device']}, jax {jax.__version__}, jaxgemm {jaxgemm.__version__}; {extents}")
    for flags in options.xla[1:]:
        print(
            f"XLA options {_label(options.xla, flags)}: {', '.join(f'{name}={value}' for name, value in flags.items())}"
        )
    with report.progress(len(options.xla) * sum(len(case.forms) for case in cases), "parallel") as step:
        for case in cases:
            operands = arrays(case, mesh, DTYPES[options.dtype], options.seed)
            rows = measure(case, operands, options.xla, options.repeats, step)
            del operands
            found += rows
            report.write(file, report.renewed(file, source, about, found))
            lines = [cells(row, _label(options.xla, row["xla"]), case.flops, len(devices)) for row in rows]
            report.print_table(
                f"{case.name}; ratio: jnp.dot's least time / this one's, above 1 ours is faster", COLUMNS, lines
            )
    for row in found:
        if row["message"]:
            print(f"{row['case']}, {row['form']}: {row['message']}", file=sys.stderr)
    return int(any(row["message"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
