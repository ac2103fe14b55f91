"""Two builds in turn on one card: every product of some suites by the old one and the new one, by ``auto`` or a kernel.

    python benchmarks/builds.py /path/to/old /path/to/new --suite bf16 --suite survey --output FILE
    python benchmarks/builds.py /path/to/old /path/to/new --suite gated --suite grouped --kernel sm90

Each path is a folder that holds an installed jaxgemm. Each build runs in a process of its own, which compiles first;
then the processes time one suite after the other, in turn, several times over. A product's time is the median of a
round and the least of the rounds. Ratios are the old time over the new one: above 1 the new one is faster. A product
that both leave to XLA, or that the kernel refuses in both, is not timed, and counts as 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
SUITES = ("bf16", "16bit", "unseen", "survey", "small", "pitches", "sgemm", "gated", "grouped", "lists")
SIDES = ("old", "new")
#: What of a provenance record identifies a build.
SOURCES = ("commit", "ffi_digest", "package_digest")
#: Lines of a child for its parent begin so; others on its output are warnings of libraries.
MARK = "builds: "


def child(kernel: str, suites: Sequence[str]) -> None:
    """Run in a build's process: tell which products are ours, compile those that the first line of input names, and
    time the suite that each further line names.
    """
    sys.path.append(str(_HERE / "support"))
    import jax
    from built_products import Timed, products
    from paths import sets_of_operands

    import jaxgemm
    from jaxgemm.measure import bench

    every = [(name, product) for name in suites for product in products(name)]

    def lowered(product: Timed) -> Any:
        """The program, or None where XLA computes it or the kernel refuses."""
        function = product.function(kernel)
        try:
            if kernel == "auto" and jaxgemm.explain(function, *product.operands).products[0].kernel == "xla":
                return None
            return jax.jit(function).lower(*product.operands)
        except jaxgemm.UnsupportedError:
            return None

    programs = {(name, x.name): lowered(x) for name, x in every}
    _say(
        {
            "about": _about(jax.devices()[0]),
            "ours": [key for key, program in programs.items() if program],
            "all": list(programs),
        }
    )
    wanted = {tuple(key) for key in json.loads(sys.stdin.readline())}
    every = [(name, x) for name, x in every if (name, x.name) in wanted]
    runner = bench.on_default_device(repeats=16, budget_s=0.05)

    def compiled(item: tuple[str, Timed]) -> Any:
        name, product = item
        program = programs[name, product.name]
        if program is None and kernel == "auto":  # XLA's, which is the other build's
            program = jax.jit(product.function(kernel)).lower(*product.operands)
        return program and program.compile()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ready = list(pool.map(compiled, every))
    inputs = [[x.inputs(i) for i in range(min(8, sets_of_operands(runner, x.bytes)))] for _, x in every]
    _say("compiled")
    for line in sys.stdin:
        found = []
        for (name, product), program, operands in zip(every, ready, inputs, strict=True):
            if program and name == line.strip():
                found.append((product.name, runner.times({"this": program}, operands)["this"].us))
        _say(found)


def _about(device: Any) -> dict[str, Any]:
    """What runs here; of a build that is older than jaxgemm.measure.provenance as much as it can tell."""
    from jaxgemm._runtime import ffi

    try:
        from jaxgemm.measure import provenance
    except ImportError:
        return {"device": device.device_kind, "commit": "", "ffi_digest": ffi.source_digest(), "package_digest": ""}
    return provenance.record(device)


def _say(value: Any) -> None:
    print(MARK + json.dumps(value), flush=True)


class Build:
    """A process that runs one build.

    Attributes:
        about: what it was measured with, as jaxgemm.measure.provenance tells it.
        ours: (suite, product) of those that a kernel of ours computes.
        all: of every product.
    """

    def __init__(self, folder: str, kernel: str, suites: Sequence[str]):
        env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        command = [sys.executable, "-P", __file__, "--child", kernel, *suites]
        self._process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def begin(self) -> None:
        """Wait until it has said what it computes."""
        said = self._answer()
        self.about: dict[str, Any] = said["about"]
        self.ours = {tuple(key) for key in said["ours"]}
        self.all = [tuple(key) for key in said["all"]]

    def compile(self, products: Sequence[tuple[str, str]]) -> None:
        """Make ready for these."""
        self._ask(json.dumps(products))

    def time(self, suite: str) -> list[tuple[str, float]]:
        """(product, microseconds) of those of a suite that have been compiled."""
        found: list[tuple[str, float]] = self._ask(suite)
        return found

    def _ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise SystemExit("builds: a build's process ended; its error is above")


def compare(builds: Sequence[Any], suites: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """A row for each product: suite, product, whose it is in either build, and its times where they are taken."""
    old, new = builds
    rows = {key: {"suite": key[0], "product": key[1]} for key in new.all}
    for key, row in rows.items():
        row |= {"old_by": "jaxgemm" if key in old.ours else "xla", "new_by": "jaxgemm" if key in new.ours else "xla"}
    timed = [key for key in new.all if key in old.ours | new.ours]
    for build in builds:
        build.compile(timed)
    for _ in range(rounds):
        for suite in suites:
            for side, build in (("old_us", old), ("new_us", new)):
                for product, us in build.time(suite):
                    row = rows[suite, product]
                    row[side] = min(row.get(side, math.inf), round(us, 3))
    return list(rows.values())


def ratio(row: dict[str, Any]) -> float:
    """The old time over the new one; 1 where both are the same program."""
    return float(row["old_us"] / row["new_us"]) if _timed(row) else 1.0


def _timed(row: dict[str, Any]) -> bool:
    return "old_us" in row and "new_us" in row


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each suite and, for each product that lost 5 % or more, one more."""
    lines = ["suite      products    mean  below 0.95  below 0.85   timed   their mean"]
    for suite in dict.fromkeys(row["suite"] for row in rows):
        ratios = [ratio(row) for row in rows if row["suite"] == suite]
        timed = [ratio(row) for row in rows if row["suite"] == suite and _timed(row)]
        low, lowest = sum(x < 0.95 for x in ratios), sum(x < 0.85 for x in ratios)
        counts = f"{len(ratios):8d} {_mean(ratios):7.3f} {low:11d} {lowest:11d} {len(timed):7d}"
        lines.append(f"{suite:10s} {counts} {_mean(timed):12.3f}")
    for row in sorted(rows, key=ratio):
        if ratio(row) < 0.95:
            sides = [f"{side} {row[f'{side}_us']:.2f} us by {row[f'{side}_by']}" for side in ("old", "new")]
            lines.append(f"  {ratio(row):.3f} {row['suite']:8s} {row['product']:32s} {', '.join(sides)}")
    return lines


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a folder with an installed jaxgemm")
    parser.add_argument("new", help="another one")
    parser.add_argument("--suite", action="append", help=f"may be repeated (default: {', '.join(SUITES)})")
    parser.add_argument("--kernel", default="auto", help="what computes every product (default: auto)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each suite is timed (default: 3)")
    parser.add_argument("--output", type=Path, help="a JSON file to write")
    given = parser.parse_args(arguments)
    suites = given.suite or SUITES
    builds = [Build(folder, given.kernel, suites) for folder in (given.old, given.new)]
    for build in builds:  # which prepare at the same time
        build.begin()
    rows = compare(builds, suites, given.rounds)
    print("\n".join(summary(rows)))
    if given.output:
        sys.path.insert(0, given.new)  # which writes the file
        from jaxgemm.measure import provenance, report

        sources = {side: {x: build.about[x] for x in SOURCES} for side, build in zip(SIDES, builds, strict=True)}
        about = {
            **builds[1].about,
            "script": provenance.script(),
            "kernel": given.kernel,
            "rounds": given.rounds,
            "builds": sources,
        }
        report.write(given.output, {**about, "rows": rows})
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1:]))
