"""What the profiler counts in each kernel of the ladder: python benchmarks/ladder_counters.py

Runs every kernel once through JAX under Nsight Compute (`ncu`, which must be on the PATH and allowed to read the
hardware's counters) and writes benchmarks/results/<device>/ladder_counters.json. Clocks are left as they are, so
shares of cycles mean more here than times.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent

#: The profiler's metric behind each figure. All but the last four lines are percentages.
METRICS = {
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "fma": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "sectors": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "l1_hits": "l1tex__t_sector_hit_rate.pct",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block_static",
    "launched_bytes": "launch__shared_mem_per_block_dynamic",
    "us": "gpu__time_duration.sum",
}
SHARED_READS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
#: Why warps do not issue, in warps for each instruction issued.
STALLS = (
    "long_scoreboard",
    "short_scoreboard",
    "mio_throttle",
    "lg_throttle",
    "barrier",
    "math_pipe_throttle",
    "not_selected",
    "dispatch_stall",
    "wait",
)
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_TO_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3}


def kernels() -> list[str]:
    """The rows of the ladder."""
    import jaxgemm

    return [row.name for row in jaxgemm.kernels() if row.family == "ladder" and row.built]


def dtype_of(kernel: str) -> str:
    """Operands of the kernel as it is profiled: those of the row's first type, fp32 for most."""
    import jaxgemm

    return next(row.types[0][0] for row in jaxgemm.kernels() if row.name == kernel)


def run_each(names: Iterable[str], size: int) -> None:
    """Each kernel once, in this order: what is profiled."""
    import jax
    import jax.numpy as jnp

    import jaxgemm

    a, b = (jax.random.normal(key, (size, size)) for key in jax.random.split(jax.random.key(0)))
    for name in names:
        x, y = (operand.astype(dtype_of(name)) for operand in (a, b))
        jaxgemm.gemm(x, y, kernel=name, out_dtype=jnp.float32).block_until_ready()


def profile(names: list[str], size: int) -> str:
    """The profiler's output for these kernels, as CSV among other lines."""
    functions = "|".join(f"{name}|{name}_gemm" for name in names)
    metrics = [*METRICS.values(), SHARED_READS, CONFLICTS, *map(_STALL.format, STALLS)]
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--kernel-name-base", "function"]
    command += ["-k", f"regex:^({functions})$", "--metrics", ",".join(metrics)]
    command += [sys.executable, "-P", str(Path(__file__).resolve()), "--run", ",".join(names), "--size", str(size)]
    # Launches that XLA captures in a graph could not be told apart; and the profiler saves what memory there is.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="
    environment = {**os.environ, "XLA_FLAGS": flags.strip(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the profiler failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def rows(output: str, names: list[str]) -> list[dict[str, Any]]:
    """The figures of each kernel from the profiler's output; percentages become shares."""
    lines = list(csv.reader(line for line in output.splitlines() if line.startswith('"')))
    if not lines:
        raise RuntimeError(f"the profiler reported nothing:\n{output[-2000:]}")
    header, units, launches = lines[0], lines[1], lines[2:]
    if len(launches) != len(names):
        raise RuntimeError(f"the profiler saw {len(launches)} launches, expected one for each of {', '.join(names)}")

    out = []
    for name, launch in zip(names, launches, strict=True):

        def value(metric: str, launch: list[str] = launch) -> float | None:
            at = header.index(metric)
            text = launch[at].replace(",", "")
            if not re.fullmatch(r"[-+.\deE]+", text):
                return None
            scale = 0.01 if units[at] == "%" else {"Kbyte": 1e3, "Mbyte": 1e6, **_TO_US}.get(units[at].split("/")[0], 1)
            return float(text) * scale

        def whole(metric: str, value: Any = value) -> int:
            return round(value(metric) or 0)

        function = launch[header.index("Kernel Name")]
        if not re.search(rf"\b{name}(_gemm)?\b", function):
            raise RuntimeError(f"the profiler saw {function!r} where {name} was expected")
        reads, conflicts = value(SHARED_READS), value(CONFLICTS)
        row = {key: value(metric) for key, metric in METRICS.items()}
        launched = whole(METRICS["launched_bytes"])
        del row["launched_bytes"]
        row |= {"registers": whole(METRICS["registers"]), "shared_bytes": whole(METRICS["shared_bytes"]) + launched}
        if (row["sectors"] or 0.0) > 1.0:  # the profiler reports up to 300 % for wmma_tf32, which cannot be
            row["sectors"] = None
        row["conflicts"] = conflicts / reads if reads and conflicts is not None else None
        stalls = {reason: value(_STALL.format(reason)) or 0.0 for reason in STALLS}
        out.append({"kernel": name, "dtype": dtype_of(name), **row, "stalls": stalls})
    return out


def main() -> int:
    """Profile and write, or, under the profiler, run the kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2048, help="m = n = k (default 2048)")
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        run_each(options.run.split(","), options.size)
        return 0
    if shutil.which("ncu") is None:
        parser.error("ncu is not on the PATH: it comes with Nsight Compute")

    import jax

    from jaxgemm.measure import provenance, report
    from jaxgemm.tuning import slug

    names = kernels()
    if not names:
        parser.error("this build has no CUDA kernels")
    found = rows(profile(names, options.size), names)
    device = jax.devices()[0]
    how = f"ncu, one launch of each kernel through JAX at {options.size}³, clocks left alone; shares of the unit's peak"
    document = {**provenance.record(device), "how": how, "rows": found}
    report.write(options.results / slug(report.device_name(device)) / "ladder_counters.json", document)
    shares = ("issue", "fma", "tensor", "wavefronts", "conflicts", "sectors", "l1_hits", "occupancy")
    lines = [
        [r["kernel"], *("" if r[key] is None else f"{r[key]:.0%}" for key in shares), str(r["registers"])]
        for r in found
    ]
    report.print_table(how, ["kernel", *shares, "registers"], lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
