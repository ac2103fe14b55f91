"""The ladder, every kernel over sizes, beside XLA's two paths: python benchmarks/ladder.py

Results go to benchmarks/results/<device>/ladder.json, written anew after every product, or, with --sizes or --kernel,
to ladder_partial.json beside it. A kernel that computes in full fp32 is measured in fp32, precision HIGHEST; the
tensor-core kernels in each of their own types, held against XLA in those types. `outer_product` is measured over k as
well, as its write-up chooses k by that curve.

    --from FILE    shows a result again, and draws it, without measuring
    --docs         puts the figures into docs/ladder.md and the rungs' pages and draws docs/ladder.svg
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxgemm
from jaxgemm.measure import bench, report
from jaxgemm.measure.case import DTYPES, Case
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE), str(_HERE / "support")]

import ladder_docs  # noqa: E402
import ladder_report  # noqa: E402

SIZES = (128, 256, 512, 1024, 2048, 4096, 8192)
CPU_SIZES = (64, 128, 256)

#: The product that a write-up measures, for the kernels of each arithmetic.
TESLA_P4 = (2560, 2560, 1024)
JETSON = (1024, 1024, 1024)
JETSON_INT8 = (10000, 10000, 10000)
OVER_K = tuple((2048, 2048, k) for k in (32, 128, 512, 1024, 2048, 4096, 8192))

#: WMMA's shapes for 16- and 8-bit operands; other types have one.
TILES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))

#: (operands, result, precision) of each arithmetic, by the name that figures go by.
ARITHMETICS = {
    "f32": ("float32", "float32", "highest"),
    "tf32": ("float32", "float32", "default"),
    "f16": ("float16", "float32", "default"),
    "f16>f16": ("float16", "float16", "default"),
    "bf16": ("bfloat16", "float32", "default"),
    "s8": ("int8", "int32", "default"),
    "u8": ("uint8", "int32", "default"),
    "f64": ("float64", "float64", "default"),
}
#: Those that are measured over all sizes; the others at the write-up's own.
OVER_SIZES = ("f32", "tf32", "f16")

#: How far from float64 a result may be, in the Frobenius norm. A kernel that is further off is reported as broken.
TOLERANCE = {"f32": 1e-5, "tf32": 2e-3, "f16": 3e-4, "f16>f16": 1e-3, "bf16": 3e-4, "s8": 0.0, "u8": 0.0, "f64": 1e-13}


@dataclass(frozen=True)
class Typed(Case):
    """A product whose result may have another type than its operands."""

    arithmetic: str = "f32"

    @property
    def out_dtype(self) -> str:
        """The result's type."""
        return ARITHMETICS[self.arithmetic][1]

    @property
    def effective_ops(self) -> int:
        """Operations as the Jetson write-up counts them: a scaling of A, k products and k - 1 sums, a scaling of C
        and its addition.
        """
        return self.m * self.k + (2 * self.k - 1) * self.m * self.n + 2 * self.m * self.n


def product(shape: Sequence[int], arithmetic: str) -> Typed:
    """The product of that shape in that arithmetic."""
    dtype, _, precision = ARITHMETICS[arithmetic]
    m, n, k = shape
    return Typed(m, n, k, dtype, precision=precision, arithmetic=arithmetic)


def arithmetics(name: str) -> list[str]:
    """What a kernel is measured in: fp32 if it computes that in full, otherwise every type that it has."""
    row = next(row for row in jaxgemm.kernels() if row.name == bench.parse_kernel(name)[0])
    types = [t[:3] for t in row.types]
    if ("float32",) * 3 in types and not row.tf32:
        return ["f32"]
    return [a for a, (x, d, _) in ARITHMETICS.items() if (x, x, d) in types and a != "f32"]


def ladder(platform: str) -> list[str]:
    """The kernels of the ladder; on a CPU the kernel that runs there."""
    if platform == "cpu":
        return ["host"]
    return [row.name for row in jaxgemm.kernels() if row.family == "ladder" and row.built]


def plan(kernels: Sequence[str], sizes: Sequence[int] | None, platform: str) -> list[tuple[str, Typed, list[str]]]:
    """(part, product, kernels) in the order of measuring. Sizes given by the caller leave out the write-ups' own."""
    by_arithmetic: dict[str, list[str]] = {}
    for name in kernels:
        for arithmetic in arithmetics(name):
            by_arithmetic.setdefault(arithmetic, []).append(name)
    out = [
        ("sizes", product((size,) * 3, arithmetic), names)
        for arithmetic, names in by_arithmetic.items()
        for size in sizes or (CPU_SIZES if platform == "cpu" else SIZES)
        if sizes or arithmetic in OVER_SIZES
    ]
    if sizes or platform == "cpu":
        return out
    last = []
    for arithmetic, names in by_arithmetic.items():
        if arithmetic == "f32":
            out.append(("write-up", product(TESLA_P4, arithmetic), names))
            continue
        shaped = TILES if arithmetic not in ("tf32", "f64") else ()
        tiled = [f"wmma:tile_m={m},tile_n={n},tile_k={k}" for m, n, k in shaped if "wmma" in names]
        plain = [name for name in names if name != "wmma" or not tiled]
        out.append(("write-up", product(JETSON, arithmetic), plain + tiled))
        if arithmetic == "s8":
            last.append(("write-up", product(JETSON_INT8, arithmetic), plain + tiled))
    if "outer_product" in kernels:
        out += [("over k", product(shape, "f32"), ["outer_product"]) for shape in OVER_K]
    return out + last


def tune(runner: bench.Bench, cases: Iterable[Typed]) -> None:
    """Let XLA compile its programs of all these products at once.

    It times candidates of its own for each, which takes seconds and is mostly compiling; the process keeps what it
    found. What fails here fails again, and is reported, where it is measured.
    """

    def compile_one(case: Typed, options: dict[str, Any]) -> None:
        with contextlib.suppress(Exception), bench.x64(case), jax.default_device(runner.device):
            shapes = [jax.ShapeDtypeStruct(shape, jnp.dtype(case.dtype)) for shape in case.shapes]
            jax.jit(case.xla, compiler_options=options or None).lower(*shapes).compile()

    jobs = [(case, options) for case in cases for options in runner.xla_paths.values()]
    jobs.sort(key=lambda job: -job[0].flops)
    with report.progress(len(jobs), "XLA tunes") as step, concurrent.futures.ThreadPoolExecutor(8) as pool:
        for case, future in [(case, pool.submit(compile_one, case, options)) for case, options in jobs]:
            step(str(case))
            future.result()


def record(part: str, row: bench.Row) -> dict[str, Any]:
    """A measured row as it is kept: XLA's programs only by their times and errors."""
    case = row.case
    assert isinstance(case, Typed)
    error = row.ours.error
    status, message = row.status, row.ours.message
    if status == "ok" and error is not None and not error <= TOLERANCE[case.arithmetic]:
        status, message = "error", f"{error:.1e} from float64, expected at most {TOLERANCE[case.arithmetic]:.0e}"
    kept = ("m", "n", "k", "kernel", "us", "tflops", "ratio", "floor_us", "floor_bound", "floor_unit", "calls")
    every = row.to_json()
    return {
        "part": part,
        "arithmetic": case.arithmetic,
        **{key: every[key] for key in kept},
        "effective_tops": None if not row.us else 1e-6 * case.effective_ops / row.us,
        "error": error,
        "status": status,
        "message": message,
        "xla": {
            name: {"us": path.timing and path.timing.us, "error": path.error, "message": path.message}
            for name, path in row.xla.items()
        },
    }


def measure(runner: bench.Bench, kernels: Sequence[str], sizes: Sequence[int] | None, file: Path) -> dict[str, Any]:
    """Measure everything, keeping the file up to date; returns what it holds then. Ctrl-C ends it early."""
    work = plan(kernels, sizes, runner.device.platform)
    rows: list[dict[str, Any]] = []
    document: dict[str, Any] = report.document(runner, [], suite="ladder")
    with contextlib.suppress(KeyboardInterrupt):
        if runner.device.platform != "cpu":
            tune(runner, [case for part, case, _ in work if part != "over k"])
        with report.progress(len(work), "measuring") as step:
            for part, case, names in work:
                step(f"{case} {case.arithmetic}")
                # XLA would tune itself for every k, for a curve that is about ours alone.
                paths = {name: o for name, o in runner.xla_paths.items() if part != "over k" or name != "default"}
                here = replace(runner, xla_paths=paths or runner.xla_paths)
                rows += [record(part, row) for row in here.measure(case, names)]
                document["rows"] = rows
                report.write(file, document)
    return report.load(file) if rows else document


def _sizes(text: str) -> list[int]:
    sizes = [int(item) if item.strip().isdecimal() else 0 for item in text.split(",")]
    if not all(sizes):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected sizes of at least 1, as in 512,1024")
    return sizes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(map(str, SIZES))
    parser.add_argument("--sizes", type=_sizes, help=f"squares, instead of {names} and the write-ups' own products")
    parser.add_argument("--kernel", action="append", help="instead of the whole ladder; may be repeated")
    parser.add_argument("--repeats", type=int, default=20, help="calls to take the median of, at most (default 20)")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds for each program's calls (default 0.1)")
    parser.add_argument("--effective-ops", action="store_true", help="count operations as the Jetson write-up does")
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    parser.add_argument("--plot", type=Path, help="draw speed over size into this file (.svg, .png, .pdf)")
    parser.add_argument("--docs", action="store_true", help="update docs/ladder.md and docs/ladder.svg")
    parser.add_argument("--from", dest="source", type=Path, help="show this result instead of measuring")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, draw; returns 1 if a kernel failed or is further from float64 than it may be."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.plot is not None:
        try:
            ladder_report.check_plot(options.plot)
        except (ImportError, ValueError) as error:
            parser.error(str(error))
    if options.docs and (options.sizes or options.kernel):
        parser.error("--docs needs the whole ladder: leave out --sizes and --kernel")
    if options.source is not None:
        document = report.load(options.source)
    else:
        runner = bench.on_default_device(repeats=options.repeats, budget_s=options.budget)
        kernels = options.kernel or ladder(runner.device.platform)
        for name in kernels:
            try:
                bench.parse_kernel(name)
                if not arithmetics(name):
                    parser.error(f"kernel {name!r} has none of the types {', '.join(DTYPES)}")
            except (ValueError, StopIteration) as error:
                parser.error(str(error) or f"{name!r} is no kernel of ours")
        report.print_header(runner)
        name = "ladder_partial.json" if options.sizes or options.kernel else "ladder.json"
        file = options.results / slug(report.device_name(runner.device)) / name
        document = measure(runner, kernels, options.sizes, file)
    if not document["rows"]:
        return 1
    if options.docs and document["platform"] == "cpu":
        parser.error("docs/ladder.md shows a GPU's figures, and this is a CPU's result")
    ladder_report.show(document, effective=options.effective_ops)
    if options.plot is not None:
        ladder_report.draw(document, options.plot)
    if options.docs:
        ladder_docs.update_docs(document)
    return 1 if any(row["status"] == "error" for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
