"""What the rules of `auto` lose on timings that are stored, and what each of them is worth. Nothing is measured.

    python benchmarks/choices.py
    python benchmarks/choices.py benchmarks/results/nvidia-h200/survey.json --worst 20

A product counts where a file holds the time of the kernel of ours that expects the least now, by its own choice of
configuration, and that of XLA's default path. The rules of jaxgemm/choice/rules_hopper.py take one side of it; what
that side took over the lesser of both is what they lose. The table of rules has this of the products that a rule
decided, and of the same products if there were no such rule, so that the next one that holds decided. What
jaxgemm/tuning holds is left aside. Run it before and after every change of a rule.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jaxgemm
from jaxgemm.choice import rules, rules_hopper, select, xla_times
from jaxgemm.choice.resolve import Choice
from jaxgemm.choice.rules import Question, Rule, Side
from jaxgemm.kernels import Device
from jaxgemm.measure import report
from jaxgemm.measure.case import Case, parse_case
from jaxgemm.roofline import KNOWN_DEVICES

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
#: The rule that decides whatever is left, and so cannot be dropped.
LAST = rules_hopper.SECTIONS[-1].rules[-1]


class Timed(NamedTuple):
    """A product that was timed on one device: microseconds of our kernels by name, and of XLA's default path."""

    file: str
    device: str
    case: Case
    ours: dict[str, float]
    xla: float


class Replayed(NamedTuple):
    """What the rules make of a product.

    Attributes:
        timed: the product.
        rule, side: what decides, and for whom.
        without: the side that is taken if there is no such rule.
        times: microseconds of each side.
    """

    timed: Timed
    rule: Rule
    side: Side
    without: Side
    times: dict[Side, float]

    def loss(self, side: Side | None = None) -> float:
        """The logarithm of a side's time over the lesser of both; of the side that is taken if none is named."""
        return math.log(self.times[side or self.side] / min(self.times.values()))


def timings(file: Path) -> Iterator[Timed]:
    """The products of a result file that hold times of ours and of XLA's default path."""
    content = report.load(file)
    found: dict[tuple[str, str, str], tuple[dict[str, float], list[float]]] = {}
    for row in content["rows"]:
        if not isinstance(row, Mapping) or not {"problem", "kernel", "us", "xla"} <= row.keys():
            continue
        source = row.get("source", "")
        ours, xla = found.setdefault((source, row["problem"], row.get("precision") or "highest"), ({}, []))
        name, exact = _kernel(row)
        if name and row["us"] and (exact or name not in ours):
            ours[name] = row["us"]
        if theirs := row["xla"].get("default", {}).get("us"):
            xla.append(theirs)
    for (source, problem, precision), (ours, xla) in found.items():
        if ours and xla:
            about = content["sources"][source] if source else content
            case = replace(parse_case(problem), precision=precision)
            name = f"{file.parent.name}/{file.stem}{f', {source}' if source else ''}"
            yield Timed(name, about["device"], case, ours, statistics.median(xla))


def _kernel(row: Mapping[str, Any]) -> tuple[str, bool]:
    """The kernel of ours that a row is of, "" for none, and whether it ran as its cost model chose.

    Where configurations are named and none is the model's choice, it chose the first of them.
    """
    name, _, options = (row["chosen"] if row["kernel"] == "auto" else row["kernel"]).partition(":")
    return ("" if name in ("auto", "xla") else name), not options


def replay(timed: Timed) -> Replayed | None:
    """A product through the rules; None where a fact decides, or the kernel in question was not timed."""
    limits = KNOWN_DEVICES.get(timed.device)
    if limits is None:
        return None
    device = Device("cuda", limits.name, limits.arch, limits.multiprocessors, limits.bandwidth)
    (product,) = jaxgemm.explain(timed.case.ours, *timed.case.operands, platform="cuda").products
    problem, precision = product.decision.problem, product.precision
    assert problem is not None
    question = Question(problem, device, precision)
    if rules.first([rules.FACTS], question):
        return None
    best = select.contender(problem, device, precision)
    if not isinstance(best, Choice) or best.kernel is None or best.kernel.name not in timed.ours:
        return None
    expected = best.considered[0].microseconds if best.considered else math.inf
    question = Question(problem, device, precision, expected, xla_times.microseconds(problem), best.arithmetic)
    rule, side = rules_hopper.decide(question)
    without = side if rule is LAST else rules_hopper.decide(question, without=rule.name)[1]
    return Replayed(timed, rule, side, without, {Side.OURS: timed.ours[best.kernel.name], Side.XLA: timed.xla})


def _times(losses: Iterable[float]) -> str:
    """A geometric mean, as in "1.0123"; "-" of none."""
    found = list(losses)
    return f"{math.exp(statistics.fmean(found)):.4f}" if found else "-"


FILES = ("file", "products", "not timed", "rules", "ours always", "XLA always", "most", "at")


def file_line(name: str, given: int, found: Sequence[Replayed]) -> tuple[str, ...]:
    """A file's line: means of the time taken over the lesser, by rules and by either side, and the most."""
    worst = max(found, key=Replayed.loss)
    means = [_times(x.loss(side) for x in found) for side in (None, Side.OURS, Side.XLA)]
    most = f"{math.exp(worst.loss()):.2f}"
    return name, str(len(found)), str(given - len(found)), *means, most, str(worst.timed.case)


RULES = ("rule", "takes", "products", "loses", "without it", "gains in all")


def rule_lines(found: Sequence[Replayed]) -> list[tuple[str, ...]]:
    """A line for each rule, in the order in which they are read.

    The last figure is what all products together lose more, in per cent, if the rule is dropped.
    """
    lines: list[tuple[str, ...]] = []
    for rule in (rule for section in rules_hopper.SECTIONS for rule in section.rules):
        decided = [x for x in found if x.rule is rule]
        without, gain = "-", "-"
        if decided and rule is not LAST:
            without = _times(x.loss(x.without) for x in decided)
            gain = f"{100 * sum(x.loss(x.without) - x.loss() for x in decided) / len(found):+.3f} %"
        loses = _times(x.loss() for x in decided)
        lines.append((rule.name, rule.side.value, str(len(decided)), loses, without, gain))
    return lines


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="result files (default: all of GPUs)")
    parser.add_argument("--worst", type=int, default=10, help="products to show that lose the most (default 10)")
    options = parser.parse_args()
    lines, everything = [], []
    for file in options.files or sorted(_RESULTS.glob("nvidia-*/*.json")):
        timed = list(timings(file))
        found = [x for x in map(replay, timed) if x is not None]
        if found:
            lines.append(file_line(f"{file.parent.name}/{file.stem}", len(timed), found))
        everything += found
    if not everything:
        print("no file holds times of ours and of XLA's for products that rules decide", file=sys.stderr)
        return 1
    report.print_table("Time taken over that of the faster side", FILES, lines)
    report.print_table("Rules, in the order in which they are read", RULES, rule_lines(everything), left=2)
    worst = sorted(everything, key=Replayed.loss, reverse=True)[: options.worst]
    cells = [
        (
            str(x.timed.case),
            x.timed.file,
            x.rule.name,
            x.side.value,
            *(f"{x.times[side]:.1f}" for side in (Side.OURS, Side.XLA)),
            f"{math.exp(x.loss()):.2f}",
        )
        for x in worst
    ]
    report.print_table("Most lost", ("product", "file", "rule", "takes", "ours us", "XLA us", "loses"), cells, left=4)
    figures = [_times(x.loss(side) for x in everything) for side in (None, Side.OURS, Side.XLA)]
    print(
        f"{len(everything)} products: {figures[0]} times the faster side on average by the rules, "
        f"{figures[1]} by ours always, {figures[2]} by XLA always"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
