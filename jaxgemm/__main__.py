"""The command line: ``python -m jaxgemm info | bench | explain``; with no arguments, a short bench."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import jaxgemm
from jaxgemm.measure import bench, plot, report
from jaxgemm.measure.case import DTYPES, LAYOUTS, PRECISIONS, Case, parse_dtype, parse_shapes

T = TypeVar("T")

_DESCRIPTION = "Hand-written matrix products for JAX: what this installation holds, and how fast it is here."

_EXAMPLES = """\
examples:
  python -m jaxgemm                                     a short bench on whatever device JAX uses
  python -m jaxgemm info                                versions, devices, kernels and what each supports
  python -m jaxgemm bench --shapes 4096x4096x4096,2047x2049x2051 --dtype f32
  python -m jaxgemm bench --shapes 64x64x64@1024 --kernel auto --kernel simt --json out.json --plot out.png
  python -m jaxgemm bench --shapes 16x8192x8192,2048x8192x8192 --dtype s8,e4m3
  python -m jaxgemm bench --shapes 4096x4096x4096 --precision TF32_TF32_F32_X3
  python -m jaxgemm explain 4096 4096 4096 --dtype bf16 --layout NT
  python -m jaxgemm explain 16 8192 8192 --dtype e4m3 --device "NVIDIA H200"
  python -m jaxgemm explain 4096 4096 4096 --dtype f32 --precision highest --device "NVIDIA H200"
"""

_BENCH = """\
Measures each product with each kernel of ours and with XLA's own paths, in one process, taking turns on
the same fresh random operands, and checks all of them against float64. On a GPU the times are device times,
and XLA has two paths: its default, and cuBLAS. On a CPU they are wall times, XLA has one path, and kernel
'host' runs beside 'auto'."""

_GPU_SHAPES = "1024x1024x1024,2047x2049x2051,4096x4096x4096"
_CPU_SHAPES = "256x256x256,511x513x515,1024x1024x1024"
_QUICK_GPU_SHAPES = "1024x1024x1024"
_QUICK_CPU_SHAPES = "128x128x128,255x257x259"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status, 2 for arguments that make no sense."""
    parser = _parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given or ["bench"])
    try:
        return int(options.run(options))
    except BrokenPipeError:  # the reader (head, say) had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m jaxgemm", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=form
    )
    parser.add_argument("--version", action="version", version=f"jaxgemm {jaxgemm.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="info | bench | explain", required=True)

    info = commands.add_parser("info", help="versions, devices, kernels and what each supports")
    info.set_defaults(run=_info)

    run = commands.add_parser(
        "bench", help="ours beside XLA's paths", description=_BENCH, epilog=_EXAMPLES, formatter_class=form
    )
    run.add_argument("--shapes", type=_checked(parse_shapes), help="MxNxK or MxNxK@batch, several separated by commas")
    run.add_argument("--dtype", type=_listed(parse_dtype), default=["float32"], help=_names("one or more"))
    run.add_argument(
        "--layout",
        type=_listed(_layout),
        default=["NN"],
        help="one or more of NN, NT, TN, TT: which of A, B is stored transposed (default NN)",
    )
    run.add_argument(
        "--kernel",
        action="append",
        type=_checked(_kernel),
        help="auto, xla, or a name that `info` lists, with options as simt:option=value; may be repeated",
    )
    run.add_argument("--precision", choices=PRECISIONS, default="highest", help=_PRECISION)
    run.add_argument("--repeats", type=_checked(_positive), help="calls to take the median of, at most (default 30)")
    run.add_argument("--seed", type=int, default=0, help="of the random operands (default 0)")
    run.add_argument("--quick", action="store_true", help="few repeats, and small shapes unless --shapes is given")
    run.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    run.add_argument("--plot", type=Path, metavar="FILE.png", help="draw a bar chart (needs matplotlib)")
    run.set_defaults(run=_bench, parser=run)

    explain = commands.add_parser(
        "explain", help="which kernel a product gets, and why", epilog=_EXAMPLES, formatter_class=form
    )
    for extent in ("M", "N", "K"):
        explain.add_argument(extent, type=_checked(_extent))
    explain.add_argument("--dtype", type=_checked(parse_dtype), default="float32", help=_names("one"))
    explain.add_argument("--layout", type=_checked(_layout), default="NN", help="NN, NT, TN or TT (default NN)")
    explain.add_argument("--batch", type=_checked(_extent), help="a leading batch dimension")
    explain.add_argument("--kernel", type=_checked(_kernel), default="auto", help="default auto; options as in bench")
    explain.add_argument("--precision", choices=PRECISIONS, default="highest", help=_PRECISION)
    explain.add_argument("--device", metavar="NAME", help='to explain for: cpu, the GPU here, or "NVIDIA H200"')
    explain.set_defaults(run=_explain, parser=explain)
    return parser


_PRECISION = "of float32 products; default allows tf32 on a GPU (default highest)"


def _names(count: str) -> str:
    return f"{count} of {', '.join(DTYPES)} (default f32)"


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The parser with its ValueError as argparse shows it: message, usage, status 2."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _listed(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    """The same for a list separated by commas."""
    one = _checked(parse)
    return lambda text: [one(item.strip()) for item in text.split(",")]


def _layout(text: str) -> str:
    if text.upper() not in LAYOUTS:
        raise ValueError(f"unknown layout {text!r}: expected one of {', '.join(LAYOUTS)}")
    return text.upper()


def _kernel(text: str) -> str:
    bench.parse_kernel(text)
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"got {text!r}, expected an integer of at least 1")
    return int(text)


def _extent(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"got {text!r}, expected an integer of at least 0")
    return int(text)


def _info(_: argparse.Namespace) -> int:
    report.print_info()
    return 0


def _bench(options: argparse.Namespace) -> int:
    # What cannot be written is found out before anything is measured.
    for file in (options.json, options.plot):
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            options.parser.error(f"cannot write {file}: it is a directory, or in none")
    if options.plot is not None:
        try:
            plot.check(options.plot)
        except (ImportError, ValueError) as error:
            options.parser.error(str(error))
    runner = bench.on_default_device(
        repeats=options.repeats or (5 if options.quick else 30),
        budget_s=0.2 if options.quick else 1.0,
        seed=options.seed,
    )
    on_cpu = runner.device.platform == "cpu"
    kernels = options.kernel or runner.default_kernels()
    cpu, gpu = (_QUICK_CPU_SHAPES, _QUICK_GPU_SHAPES) if options.quick else (_CPU_SHAPES, _GPU_SHAPES)
    shapes = options.shapes or parse_shapes(cpu if on_cpu else gpu)
    cases = [
        Case(m, n, k, dtype, layout, batch, options.precision)
        for dtype in options.dtype
        for layout in options.layout
        for m, n, k, batch in shapes
    ]
    report.print_header(runner)
    rows: list[bench.Row] = []
    interrupted = False
    try:
        with report.progress(len(cases), "measuring") as step:
            for case in cases:
                step(str(case))
                rows += runner.measure(case, kernels)
    except KeyboardInterrupt:  # what is measured by now is still worth showing
        interrupted = True
    report.print_rows(rows)
    if options.json is not None:
        report.write(options.json, report.document(runner, rows))
    if options.plot is not None:
        plot.save(rows, options.plot, f"{report.device_name(runner.device)}, {runner.how}")
    if interrupted:
        return 130
    # A kernel that does not cover a problem is an answer; one that broke is a failure.
    return 1 if any(row.status == "error" for row in rows) else 0


def _explain(options: argparse.Namespace) -> int:
    case = Case(options.M, options.N, options.K, options.dtype, options.layout, options.batch, options.precision)
    kernel, kernel_options = bench.parse_kernel(options.kernel)
    try:
        platform = bench.platform_of(options.device)
        with bench.x64(case):
            call = partial(case.ours, kernel=kernel, **kernel_options)
            found = jaxgemm.explain(call, *case.operands, platform=platform)
    except jaxgemm.UnsupportedError as error:
        print(f"{case}: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        options.parser.error(str(error))
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
