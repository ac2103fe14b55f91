"""The record of the suite's last run on a GPU: ``python tests/gpu_record.py`` renews it.

Machines without a GPU skip the tests of the CUDA kernels, so the record says when and on what these last
passed, and for which sources: a digest that no longer matches means that they have changed since.

    python tests/gpu_record.py              run the suite and write tests/gpu_record.json
    python tests/gpu_record.py --fuzz FILE  add what `python tests/fuzz.py 600 SEED --json FILE` found; or several FILEs
    python tests/gpu_record.py --digest     print the digest of the sources
    python tests/gpu_record.py -n 1         the suite in one process
    python tests/gpu_record.py --part 1/2   half of it; --part 2/2 then makes the record whole
    python tests/gpu_record.py --failed     the tests that failed, once more: after a test was mended, not the sources
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/gpu_record.json"
SOURCES = ("CMakeLists.txt", "ffi", "jaxgemm")
RENEW = "renew it with `python tests/gpu_record.py` on a machine with a GPU"
RENEW_FUZZ = (
    "run `python tests/fuzz.py 600 SEED --json FILE` on a machine with a GPU, "
    "then `python tests/gpu_record.py --fuzz FILE`"
)
#: The test of the record itself, left out of the run that writes it: a record of failures would fail its successor.
JUDGE = ROOT / "tests/tools/test_records.py"

#: What a record holds.
SCHEMA = {
    "device": str,
    "device_count": int,
    "driver": str,
    "versions": dict,
    "passed": int,
    "failed": int,
    "skipped": int,
    "seconds": float,
    "date": str,
    "digest": str,
}
VERSIONS = ("python", "jax", "jaxlib", "jaxgemm", "cuda")
#: The parts of a suite that a record holds, where it does not hold all of them yet.
PARTS = "parts"
#: The tests that failed, and those that were run once more: a failure that comes and goes is not to be hidden so.
FAILURES, AGAIN = "failures", "again"
#: What it holds of random products, in a list named "fuzz", once there is any: a run each, with its own digest.
FUZZ = {
    "device": str,
    "seed": int,
    "seconds": float,
    "load": str,
    "operands": list,
    "products": int,
    "kernels": dict,
    "guarded": int,
    "refused": dict,
    "failures": list,
    "jax": str,
    "date": str,
    "digest": str,
}


class Part(NamedTuple):
    """One of several parts of a suite, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, items: Sequence[T]) -> list[T]:
        """Those of the tests that it has: tests side by side take as long as each other, so parts take turns."""
        return list(items[self.number - 1 :: self.count])


def part(text: str) -> Part:
    """As in "1/2"; ValueError for anything else."""
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"there is no part {text}")
    return Part(number, count)


def digest(root: Path = ROOT) -> str:
    """sha256 over the names and contents of the sources; build products do not count."""
    total = hashlib.sha256()
    files = [root / name for name in SOURCES]
    files = [f for path in files for f in (path.rglob("*") if path.is_dir() else [path]) if f.is_file()]
    for path in sorted(files, key=lambda f: f.relative_to(root).as_posix()):
        name, content = path.relative_to(root).as_posix(), path.read_bytes()
        if "__pycache__" in name or b"\0" in content:
            continue
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def unusable(record: Path = RECORD) -> str:
    """Why the record is evidence of nothing, in one line: it is missing, malformed, or tells of failures."""
    name = record.name
    if not record.exists():
        return f"{name}: the CUDA kernels have no recorded run; {RENEW}"
    try:
        held = json.loads(record.read_text())
    except ValueError:
        return f"{name} is not JSON; {RENEW}"
    if problem := invalid(held):
        return f"{name}: {problem}; {RENEW}"
    if parts := held.get(PARTS):
        return f"{name} holds parts {', '.join(parts)} of a run alone; run the others by --part"
    if held["failed"] or not held["passed"]:
        outcome = f"{held['failed']} tests failed" if held["failed"] else "no test passed"
        return f"{name}: {outcome} in the last run on a GPU, {held['device']}, {held['date']}"
    for run in held.get("fuzz", []):
        if run["failures"]:
            return f"{name}: {len(run['failures'])} random products of seed {run['seed']} failed, {run['device']}"
    return "" if held.get("fuzz") else f"{name} tells of no random products; {RENEW_FUZZ}"


def staleness(record: Path = RECORD, root: Path = ROOT) -> str:
    """Why the record is no evidence for these sources, in one line; empty if it is."""
    if problem := unusable(record):
        return problem
    held, current = json.loads(record.read_text()), digest(root)
    stale = f"{record.name} is stale: the sources have changed since"
    if held["digest"] != current:
        return f"{stale} the run of {held['date']}; {RENEW}"
    if all(run["digest"] != current for run in held["fuzz"]):
        return f"{stale} the random products of {held['fuzz'][-1]['date']}; {RENEW_FUZZ}"
    return ""


def invalid(record: Any) -> str:
    """Why this is not a record; empty if it is one."""
    if wrong := _unlike(record, SCHEMA):
        return wrong
    missing = [key for key in VERSIONS if not isinstance(record["versions"].get(key), str)]
    if missing:
        return f"versions lack {', '.join(missing)}"
    runs = record.get("fuzz", [])
    if not isinstance(runs, list):
        return f"'fuzz' must be a list, got {runs!r}"
    return next((f"fuzz: {wrong}" for run in runs if (wrong := _unlike(run, FUZZ))), "")


def _unlike(given: Any, schema: dict[str, type]) -> str:
    if not isinstance(given, dict):
        return "not an object"
    for key, kind in schema.items():
        if not isinstance(given.get(key), kind):
            return f"'{key}' must be a {kind.__name__}, got {given.get(key)!r}"
    return ""


def add_fuzz(record: Path, files: list[Path]) -> str:
    """Add the runs of random products in these files to the record, in place of those of other sources, and of those
    of the same seed, operands, load or none, and device; returns what is wrong with a file.
    """
    held = json.loads(record.read_text())
    for file in files:
        try:
            run = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            return f"{file}: {error}"
        if wrong := _unlike(run, FUZZ):
            return f"{file}: {wrong}"
        if run.get("platform") != "cuda":
            return f"{file}: not of a GPU, but of {run['device']}"
        run = {key: run[key] for key in FUZZ}
        kept = [x for x in held.get("fuzz", []) if x["digest"] == run["digest"] and _which(x) != _which(run)]
        held["fuzz"] = [*kept, run]
    record.write_text(json.dumps(held, indent=2) + "\n")
    return ""


def _which(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["device"], run["seed"], run["operands"], bool(run["load"])


def joined(record: dict[str, Any], now: Part, before: Path) -> dict[str, Any]:
    """The record of one part of a run, and of the parts in that file if these are of the same sources and device."""
    record = {**record, PARTS: [str(now)]}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        held = json.loads(before.read_text())
        counts = {part(x).count for x in held[PARTS]}
        if not _unlike_runs(held, record) and counts == {now.count} and str(now) not in held[PARTS]:
            record = _sum(held, record)
            record[PARTS] = sorted([*held[PARTS], str(now)])
    if len(record[PARTS]) == now.count:
        del record[PARTS]
    return record


def rerun(record: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The record of a run, with the failures of ``before`` run once more."""
    counted = {**before, "failed": 0, FAILURES: [], AGAIN: [*before.get(AGAIN, []), *before[FAILURES]]}
    parts = {PARTS: before[PARTS]} if PARTS in before else {}
    return {**_sum(counted, record), **parts}


def _sum(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """The record ``b``, and what ``a`` counts as well."""
    total = dict(b)
    for key in ("passed", "failed", "skipped", "seconds"):
        total[key] = round(a[key] + b[key], 1)
    for key in (FAILURES, AGAIN):
        total.pop(key, None)
        if names := sorted({*a.get(key, []), *b.get(key, [])}):
            total[key] = names
    return total


def _unlike_runs(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """What two runs differ in that cannot be one record."""
    return [key for key in ("device", "versions", "digest") if a[key] != b[key]]


def to_run_again(file: Path, now: dict[str, Any]) -> dict[str, Any]:
    """The record there, of failures, on a device and of versions and sources as now; ValueError says what differs."""
    held: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if not held.get(FAILURES):
        raise ValueError(f"{file} names no tests that failed")
    if unlike := _unlike_runs(held, now):
        raise ValueError(f"{file} is of another {', '.join(unlike)}; {RENEW}")
    return held


class Counter:
    """A pytest plugin that counts outcomes, one a test, and names what fails when it does, as a run may be ended."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        before = self.outcomes.get(report.nodeid)
        if report.failed and before != "failed":
            print(f"\nFAILED {report.nodeid}", flush=True)
        if report.failed or before is None or (before == "passed" and report.skipped):
            self.outcomes[report.nodeid] = report.outcome

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "failed"

    def counts(self) -> dict[str, Any]:
        """How many tests passed, failed and were skipped, and the names of those that failed, if any did."""
        found = collections.Counter(self.outcomes.values())
        failures = sorted(name for name, outcome in self.outcomes.items() if outcome == "failed")
        named = {FAILURES: failures} if failures else {}
        return {**{key: found[key] for key in ("passed", "failed", "skipped")}, **named}


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def _environment() -> dict[str, Any]:
    import jax
    import jaxlib

    import jaxgemm
    from jaxgemm._runtime import ffi

    devices = jax.devices("cuda")
    cuda = getattr(ffi, "cuda_version", lambda: "unknown")()
    return {
        "device": devices[0].device_kind,
        "device_count": len(devices),
        "driver": _driver(),
        "versions": {
            "python": sys.version.split()[0],
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "jaxgemm": jaxgemm.__version__,
            "cuda": str(cuda),
        },
    }


def main(arguments: list[str]) -> int:
    """Run the command line; the exit status is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--digest", action="store_true", help="print the digest of the sources and stop")
    parser.add_argument("--output", type=Path, default=RECORD, help="the record to write")
    parser.add_argument("--fuzz", nargs="+", type=Path, metavar="FILE", help="add fuzz.py's summaries, and run nothing")
    processes = min(8, os.cpu_count() or 1)
    parser.add_argument("-n", type=int, default=processes, metavar="COUNT", help=f"of processes; here {processes}")
    parser.add_argument("--part", type=part, help="of the suite, as 1/2, added to the other parts in the record")
    parser.add_argument("--failed", action="store_true", help="run those tests alone that failed in the record")
    given = parser.parse_args(arguments)
    if given.failed and given.part:
        parser.error("--failed runs what failed in any part")
    if given.digest:
        print(digest())
        return 0
    if given.fuzz:
        wrong = add_fuzz(given.output, given.fuzz)
        print(f"gpu_record: {wrong or f'{len(given.fuzz)} runs of random products are in {given.output}'}")
        return 2 if wrong else 0
    return _run(given)


def _run(given: argparse.Namespace) -> int:
    """Run the tests and write the record; the exit status is pytest's, or 2 where there is nothing to run."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the tests run in several processes
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")
    import pytest

    try:
        now = {**_environment(), "digest": digest()}
        held = to_run_again(given.output, now) if given.failed else {}
    except RuntimeError as error:
        print(f"gpu_record: JAX finds no CUDA device, so there is nothing to record: {error}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"gpu_record: {error}", file=sys.stderr)
        return 2
    start = datetime.datetime.now(datetime.UTC)
    counter = Counter()
    tests = [str(ROOT / name) for name in held.get(FAILURES, ["tests"])]
    suite = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), *tests, f"--ignore={JUDGE}"]
    parallel = ["-n", str(given.n)] if importlib.util.find_spec("xdist") else []
    only = ["--part", str(given.part)] if given.part else []
    status = pytest.main([*suite, "-q", *parallel, *only], plugins=[counter])
    seconds = (datetime.datetime.now(datetime.UTC) - start).total_seconds()
    record = {
        **now,
        **counter.counts(),
        "seconds": round(seconds, 1),
        "date": start.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if held:
        record = rerun(record, held)
    if given.part:
        record = joined(record, given.part, given.output)
    with contextlib.suppress(OSError, ValueError):  # runs that are as current as their own digests say
        record["fuzz"] = json.loads(given.output.read_text()).get("fuzz", [])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        print(f"gpu_record: the run did not finish ({status!r}); nothing is recorded", file=sys.stderr)
        return int(status)
    given.output.write_text(json.dumps(record, indent=2) + "\n")
    print(f"{given.output}: {record['passed']} passed, {record['failed']} failed, {record['skipped']} skipped")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
