"""What does a build take, for all chips and for Hopper alone?

    python benchmarks/build_times.py --result benchmarks/results/cpu/build_times.json

Makes wheels as pip makes them from a clone, each from nothing, on every core. The machine should be idle.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from jaxgemm.measure import provenance, report

ROOT = Path(__file__).resolve().parents[1]
#: JAXGEMM_CUDA_ARCHS by what it is for; None is the default.
BUILDS = {"all chips": None, "Hopper alone": "90a-real"}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(chips: str | None) -> dict[str, Any]:
    """Seconds that a wheel takes, of time and of all cores, and its bytes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAXGEMM_")}
    if chips is not None:
        environment["JAXGEMM_CUDA_ARCHS"] = chips
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder]
        command += [f"--config-settings=build-dir={folder}/build", str(ROOT)]
        start, used = time.monotonic(), _processor_seconds()
        subprocess.run(command, env=environment, check=True)
        row = {"seconds": time.monotonic() - start, "processor_seconds": _processor_seconds() - used}
        (wheel,) = Path(folder).glob("*.whl")
        return {**row, "bytes": wheel.stat().st_size}


def table(content: dict[str, Any]) -> str:
    """A result file's figures as CONTRIBUTING.md has them."""
    cores = content["cores"]
    lines = [f"| a build for | minutes on {cores} cores | minutes of processors | MB of wheel |", "|---|--:|--:|--:|"]
    for row in content["rows"]:
        took, used, size = row["seconds"] / 60, row["processor_seconds"] / 60, row["bytes"] / 1e6
        lines.append(f"| {row['for']} | {took:.1f} | {used:.1f} | {size:.1f} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    rows = [{"for": name, **measure(chips)} for name, chips in BUILDS.items()]
    cores = len(os.sched_getaffinity(0))
    content = {**provenance.record(jax.devices("cpu")[0]), "suite": "build_times", "cores": cores, "rows": rows}
    print(table(content))
    if options.result:
        report.write(options.result, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
