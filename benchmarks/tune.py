"""Finds products for which the cost models choose badly, and writes what is faster to jaxgemm/tuning/<device>.json.

    python benchmarks/tune.py --suite bf16 --suite unseen
    python benchmarks/tune.py --shapes 4096x4096x512,768x768x768 --dtype bf16 --layout NT

Every product is measured with the best few configurations by each kernel's model, and with XLA's default path, which is
what `auto` leaves a product to. An entry is written only where something is faster by more than --margin than what
`auto` takes by itself; entries of products measured again are renewed or dropped. Review the file like code.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import jax

import jaxgemm
from jaxgemm import tuning
from jaxgemm.choice.resolve import candidates, check, computed
from jaxgemm.choice.rules import Question, Side
from jaxgemm.choice.rules_hopper import decide
from jaxgemm.choice.xla_times import microseconds
from jaxgemm.kernels import default_platform, device_for, find_kernel
from jaxgemm.measure import bench, report
from jaxgemm.measure.case import DTYPES, LAYOUTS, PRECISIONS, Case, parse_dtype, parse_shapes
from jaxgemm.precision import canonical
from jaxgemm.problem import Problem

_HERE = Path(__file__).resolve().parent
sys.path.append(str(_HERE / "support"))

from shapes import SUITES  # noqa: E402

_FILES = _HERE.parent / "jaxgemm/tuning"


def main() -> int:
    """Run the command line; returns 1 if a product could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="append", default=[], choices=list(SUITES), help="may be repeated")
    parser.add_argument("--shapes", default="", help="MxNxK or MxNxK@batch, separated by commas")
    parser.add_argument("--dtype", default="bfloat16", type=parse_dtype, help=f"of --shapes: {', '.join(DTYPES)}")
    parser.add_argument("--layout", default="NN", choices=LAYOUTS, help="of --shapes")
    parser.add_argument("--precision", default="highest", choices=PRECISIONS, help="of --shapes, for fp32")
    parser.add_argument("--candidates", type=int, default=6, help="configurations of a kernel to measure (default 6)")
    parser.add_argument("--margin", type=float, default=0.03, help="how much faster is worth an entry (default 0.03)")
    parser.add_argument("--repeats", type=int, default=30, help="calls to take the median of, at most (default 30)")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each program's calls (default 0.3)")
    parser.add_argument("--output", type=Path, default=_FILES, help="folder of the file (default jaxgemm/tuning)")
    options = parser.parse_args()
    try:
        shapes = parse_shapes(options.shapes) if options.shapes else []
    except ValueError as error:
        parser.error(str(error))
    cases = [case for suite in options.suite for case in SUITES[suite].cases if case.plain]
    cases += [Case(m, n, k, options.dtype, options.layout, batch, options.precision) for m, n, k, batch in shapes]
    if not cases:
        parser.error("nothing to tune: name a --suite or --shapes")
    runner = bench.on_default_device(repeats=options.repeats, budget_s=options.budget)
    report.print_header(runner)
    device = report.device_name(runner.device)
    file = options.output / f"{tuning.slug(device)}.json"
    entries = tuning.from_json(file.read_text()) if file.exists() else {}
    fine, lines = True, []
    with report.progress(len(cases), "tuning") as step:
        for case in dict.fromkeys(cases):
            step(str(case))
            line, ran = _tune(case, runner, entries, options.candidates, options.margin)
            lines.append((str(case), *line))
            fine &= ran
            versions = {"jaxgemm": jaxgemm.__version__, "jax": jax.__version__}
            date = datetime.datetime.now(datetime.UTC).date().isoformat()
            options.output.mkdir(parents=True, exist_ok=True)
            file.write_text(tuning.to_json(device, entries, versions=versions, date=date, margin=options.margin))
    report.print_table(str(file), ("problem", "fastest", "time", "auto's", "XLA's"), lines, left=2)
    return 0 if fine else 1


def _tune(
    case: Case, runner: bench.Bench, entries: dict[tuning.Key, tuning.Override], count: int, margin: float
) -> tuple[tuple[str, ...], bool]:
    """Measure one product and renew its entry; a line for the table, and whether it could be measured."""
    problem = problem_of(case)
    if problem is None:
        return ("no kernel", "-", "-", "-"), True
    question = Question(problem, device_for(default_platform()), canonical(case.jax_precision))
    found = _contenders(question, count)
    if not found:
        return ("no kernel", "-", "-", "-"), True
    names = [name for _, name in found]
    _, side = decide(replace(question, ours=found[0][0], theirs=microseconds(problem)))
    modelled = names[0] if side is Side.OURS else "xla"
    key = tuning.Key.of(problem, question.precision)
    # What `auto` takes without an entry for this: what the other 16-bit type's says, or one of a device of the same
    # chip, or the model.
    alike = key.alike()
    borrowed = entries.get(alike) if alike else None
    if borrowed is None and (elsewhere := tuning.inherited(question.device.name, key)):
        borrowed = elsewhere.measured
    without = modelled if borrowed is None else _bench_name(borrowed.kernel, borrowed.options)
    if without not in ("xla", *names):
        names.append(without)
    rows = {row.kernel: row for row in runner.measure(case, names) if row.us is not None}
    times = {name: row.us for name, row in rows.items() if row.us is not None}
    paths = [row.xla["default"].timing for row in rows.values()]
    if names[0] not in times or paths[0] is None:
        return ("not measured", "-", "-", "-"), False
    times["xla"] = theirs = paths[0].us
    best = min(times, key=times.__getitem__)
    now = times.get(without, times[modelled])
    fastest = times[best]
    kernel, chosen = bench.parse_kernel(best)
    entries.pop(key, None)
    if fastest * (1 + margin) < now:
        entries[key] = tuning.Override(kernel, tuple(chosen.items()), round(fastest, 2), round(now, 2))
    label = " ".join([kernel, *map(str, chosen.values())])  # values without their names, which would fill the line
    return (label, *(report.time_text(us) for us in (fastest, now, theirs))), True


def problem_of(case: Case) -> Problem | None:
    """The problem that `auto` weighs for a product here."""
    found = jaxgemm.explain(lambda *x: case.ours(*x), *case.operands)
    return found.products[0].decision.problem


def _contenders(question: Question, count: int) -> list[tuple[float, str]]:
    """Kernels with their best configurations, as the bench takes them, and the microseconds that the models expect.

    What the models choose is first.
    """
    device = question.device
    found: list[tuple[float, str]] = []
    for name in dict.fromkeys(name for known in question.measured for name in known.kernels):
        row = find_kernel(name)
        problem = computed(row, question.problem, device, question.precision)
        if isinstance(problem, str) or check(row, (), problem, device)[0]:
            continue
        weighed = candidates(row, (), problem, device)[:count]
        for candidate in weighed:
            settings = zip(row.options, candidate.config, strict=True)
            found.append((candidate.microseconds, _bench_name(name, settings)))
        if not weighed:
            found.append((math.inf, name))
    return sorted(found)


def _bench_name(kernel: str, options: Iterable[tuple[str, int]]) -> str:
    """A configuration as the bench takes it."""
    settings = ",".join(f"{name}={value}" for name, value in options)
    return f"{kernel}:{settings}" if settings else kernel


if __name__ == "__main__":
    sys.exit(main())
