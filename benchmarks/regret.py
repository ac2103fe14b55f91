"""What a cost model loses: times many configurations of each product, and holds the model's choice to the best.

    python benchmarks/regret.py --seed 7 --seconds 300
    python benchmarks/regret.py --suite unseen --kernel sm90
    python benchmarks/regret.py --kinds 4 --walks 6
    python benchmarks/regret.py --kinds 3,4,8 --precision BF16_BF16_F32_X6

Products are a suite's, or drawn at random as those of suites survey and small are. Of each the best configurations by
the model are timed, and of the others, up to --within times as long as the best, some of every tile; with --walks the
first few by other walks over their tiles, too. Every timing goes into benchmarks/results/<kernel>_configurations.json,
in place of those that were there of this device under the same --name: what a model's constants are fitted to, and, of
another seed, what shows whether they hold for products that they were not fitted to.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxgemm.choice.resolve import Candidate, candidates, check, computed, least_exact
from jaxgemm.kernels import Device, Kernel, default_platform, device_for, find_kernel
from jaxgemm.measure import bench, configurations, report
from jaxgemm.measure.case import ALGORITHMS, Case, make_inputs
from jaxgemm.measure.configurations import LAUNCH, Product
from jaxgemm.precision import canonical
from jaxgemm.problem import Problem
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE), str(_HERE / "support")]

from paths import sets_of_operands  # noqa: E402
from shapes import SUITES, drawn  # noqa: E402
from tune import problem_of  # noqa: E402

_AT_ONCE = 14  # compiled by threads, as XLA compiles without Python's lock
_WALKS = (1, 2, 4, 8, 16, 32)  # rows of tiles that are walked together, by option walk_height


class Measured(NamedTuple):
    """A product with its timings, and the microseconds that the model expected of each."""

    product: Product
    expected: tuple[float, ...]


def _arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="sm90", help="whose cost model (default sm90)")
    parser.add_argument("--suite", choices=list(SUITES), help="instead of random products")
    parser.add_argument("--seed", type=int, default=1, help="of random products and configurations (default 1)")
    parser.add_argument("--each", type=int, default=40, help="random products of a kind, at most (default 40)")
    parser.add_argument("--kinds", default="", help="numbers of the kinds in shapes.py to draw from (default all)")
    parser.add_argument("--precision", choices=ALGORITHMS, help="random products are of fp32, by this algorithm")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no other product is begun")
    parser.add_argument("--best", type=int, default=10, help="configurations by the model's order (default 10)")
    parser.add_argument("--others", type=int, default=14, help="of the rest (default 14)")
    parser.add_argument("--walks", type=int, default=0, help="configurations to time by other walks (default 0)")
    parser.add_argument("--within", type=float, default=1.7, help="times the least expected time (default 1.7)")
    parser.add_argument("--name", default="regret", help="of the timings in the table (default regret)")
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    return parser, parser.parse_args()


def main() -> int:
    """Run the command line; returns 1 if a product could not be measured."""
    parser, options = _arguments()
    try:
        row = find_kernel(options.kernel)
        if options.walks and "walk_height" not in row.options:
            raise ValueError(f"kernel '{row.name}' has one walk over its tiles")
        kinds = [int(i) for i in options.kinds.split(",")] if options.kinds else None
        cases = SUITES[options.suite].cases if options.suite else drawn(options.each, options.seed, kinds)
        if options.precision:
            cases = tuple(replace(case, dtype="float32", precision=options.precision) for case in cases)
    except ValueError as error:
        parser.error(str(error))
    runner = bench.on_default_device(repeats=15, budget_s=0.05)
    report.print_header(runner)
    file = configurations.default_file(options.results, row.name)
    source = f"{slug(report.device_name(runner.device))}/{options.name}"
    about = {**report.document(runner, []), "suite": options.suite, "seed": options.seed}
    del about["rows"]
    found: list[Measured] = []

    def save() -> None:
        table = configurations.renewed(file, row.name, source, about, [x.product for x in found])
        configurations.write(file, table)

    draw, device = random.Random(options.seed), device_for(default_platform())
    began = time.monotonic()
    with report.progress(len(cases), "regret") as step, ThreadPoolExecutor(_AT_ONCE) as pool, least_exact():
        for case in cases:
            if time.monotonic() - began > options.seconds:
                break
            step(str(case))
            weighed, problem = _weighed(row, case, device)
            if problem is not None:
                timed = _some(row, weighed, draw, options.best, options.others, options.within)
                if options.walks:
                    walked = _by_other_walks(row, timed[: options.walks], problem, device)
                    timed += [x for x in walked if x not in timed]
                found.append(_measure(row, case, timed, runner, pool, source))
            if found and len(found) % 20 == 0:
                save()
    if found:
        save()
    _print([x for x in found if x.product.loss])
    return 0 if found and all(x.product.loss for x in found) else 1


def _weighed(row: Kernel, case: Case, device: Device) -> tuple[list[Candidate], Problem | None]:
    """The kernel's configurations for a product, and the problem that they are of; None where it weighs none."""
    asked = problem_of(case)
    problem = None if asked is None else computed(row, asked, device, canonical(case.jax_precision))
    if problem is None or isinstance(problem, str) or check(row, (), problem, device)[0]:
        return [], None
    found = candidates(row, (), problem, device)
    return found, problem if found else None


def _some(
    row: Kernel, weighed: Sequence[Candidate], draw: random.Random, best: int, others: int, within: float
) -> list[Candidate]:
    """The first few, and of the rest one of each tile in turn, so that every tile is timed: a model may be wrong about
    one.
    """
    rest = [x for x in weighed[best:] if x.microseconds < within * weighed[0].microseconds]
    draw.shuffle(rest)
    tiles: dict[tuple[int, ...], list[Candidate]] = {}
    for x in rest:
        tile = tuple(value for name, value in zip(row.options, x.config, strict=True) if name not in LAUNCH)
        tiles.setdefault(tile, []).append(x)
    in_turn = (x for turn in itertools.zip_longest(*tiles.values()) for x in turn if x)
    return [*weighed[:best], *itertools.islice(in_turn, others)]


def _by_other_walks(row: Kernel, of: Sequence[Candidate], problem: Problem, device: Device) -> list[Candidate]:
    """These configurations by every walk over their tiles, with the time that the model expects of each."""
    at = list(row.options).index("walk_height")
    configs = [(*x.config[:at], walk, *x.config[at + 1 :]) for x in of for walk in _WALKS]
    return [candidates(row, config, problem, device)[0] for config in configs]


def _measure(
    row: Kernel, case: Case, timed: Sequence[Candidate], runner: bench.Bench, pool: ThreadPoolExecutor, source: str
) -> Measured:
    """One product: what its configurations took, and what the model expects of them."""
    inputs = make_inputs(case, sets_of_operands(runner, case.operand_bytes), runner.seed)
    settings: list[dict[str, Any]] = [
        {name: value for name, value in zip(row.options, x.config, strict=True) if value} for x in timed
    ]

    def compiled(setting: dict[str, Any]) -> Any:
        return jax.jit(partial(case.ours, kernel=row.name, **setting)).lower(*inputs[0]).compile()

    times = runner.times(dict(zip(map(str, range(len(timed))), pool.map(compiled, settings), strict=True)), inputs)
    took = tuple((x.config, round(times[str(i)].us, 3) or None) for i, x in enumerate(timed))
    return Measured(Product(source, case, took), tuple(x.microseconds for x in timed))


def _print(found: Iterable[Measured]) -> None:
    """Print the products whose choice, the first configuration, takes most over the best, and the mean over all."""
    rows = sorted(found, key=lambda x: -(x.product.loss or 0))
    if not rows:
        print("nothing was measured: no product for which the kernel's cost model weighs configurations")
        return
    lines = []
    for product, expected in rows[:20]:
        timed = product.timed
        best = min(range(len(timed)), key=lambda i: timed[i][1] or math.inf)
        of = [f"{' '.join(map(str, timed[i][0]))}: {expected[i]:.1f} expected, {timed[i][1]:.1f}" for i in (0, best)]
        lines.append((str(product.case), *of, f"{product.loss:.3f}"))
    report.print_table("Most lost by the model's choice", ("product", "choice", "best", "loss"), lines, left=3)
    losses = [x.product.loss or math.nan for x in rows]
    mean = math.exp(statistics.fmean(map(math.log, losses)))
    print(f"{len(losses)} products: {mean:.4f} times the best on average, at most {max(losses):.3f}")


if __name__ == "__main__":
    sys.exit(main())
