"""What moving a product's bytes alone takes, beside the product: python benchmarks/floors.py

A roofline's bandwidth is that of gigabytes. Products of a few dozen megabytes are over before memory is as fast, and a
kernel that reads what they read and writes what they write, and does nothing else, takes longer than their roofline
says. This compiles such a kernel with nvcc, calls it through the same FFI, and times it in turn with `auto`, `sm90` and
XLA's two paths, on the same data: no product that brings its operands from memory can be much faster. Results go to
benchmarks/results/<device>/floors.json.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxgemm.measure import bench, report
from jaxgemm.measure.case import Case, make_inputs

_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE), str(_HERE / "support")]

from ladder_textbook import parse  # noqa: E402
from moving import TARGET, ready  # noqa: E402
from paths import sets_of_operands  # noqa: E402
from run import collect  # noqa: E402

#: Products of suite bf16 that are bound by memory, and two batches: m, n, k, batch.
SHAPES: tuple[tuple[int, int, int, int | None], ...] = (
    (1, 8192, 8192, None),
    (16, 8192, 8192, None),
    (128, 8192, 8192, None),
    (128, 8192, 28672, None),
    (64, 64, 131072, None),
    (128, 128, 65536, None),
    (512, 512, 32768, None),
    (131072, 64, 64, None),
    (2048, 2048, 128, 8),
    (2047, 2047, 129, 8),
)
#: Those, and few rows of 8 bits.
CASES = (
    *(Case(m, n, k, "bfloat16", batch=batch) for m, n, k, batch in SHAPES),
    *(Case(m, 8192, 8192, "float8_e4m3fn", out="bfloat16") for m in (16, 128)),
)

#: Programs by whose time that of XLA's faster path is divided.
RATIOS = ("move", "auto", "sm90")


def programs(case: Case, paths: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is timed together."""
    result = jax.eval_shape(case.xla, *case.operands)
    out = {
        "move": jax.jit(jax.ffi.ffi_call(TARGET, result)),
        **{name: jax.jit(functools.partial(case.ours, kernel=name)) for name in ("auto", "sm90")},
        **{f"xla {name}": jax.jit(case.xla, compiler_options=options or None) for name, options in paths.items()},
    }
    return {name: function.lower(*case.operands).compile() for name, function in out.items()}


def measure(runner: bench.Bench, case: Case) -> dict[str, Any]:
    """One row: microseconds of each program, and the faster XLA path's time over those of moving and of ours."""
    inputs = make_inputs(case, sets_of_operands(runner, case.operand_bytes), runner.seed)
    ran = programs(case, dict(runner.xla_paths))
    us = {name: t.us for name, t in runner.times(ran, inputs).items()}
    xla = min(time for name, time in us.items() if name.startswith("xla"))
    return {"problem": str(case), "us": us, "ratios": {name: xla / us[name] for name in RATIOS}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, measure, write and print."""
    parser, results, runner = parse(__doc__, arguments)
    try:
        ready(runner.device)
    except RuntimeError as error:
        parser.error(str(error))
    document = report.document(runner, [], suite="floors")
    rows = collect(
        "floors",
        CASES,
        lambda case: [measure(runner, case)],
        lambda rows: report.write(results / "floors.json", {**document, "rows": rows}),
    )
    names = list(rows[0]["us"])
    lines = [
        [row["problem"], *(f"{row['us'][name]:.2f}" for name in names), *(f"{row['ratios'][x]:.3f}" for x in RATIOS)]
        for row in rows
    ]
    report.print_table("Moving the bytes alone", ["product", *names, *(f"XLA/{name}" for name in RATIOS)], lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
