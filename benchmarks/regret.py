"""What a cost model loses: times many configurations of each product, and holds the model's choice to the best.

    python benchmarks/regret.py --seed 7 --seconds 300
    python benchmarks/regret.py --suite unseen --kernel sm90
    python benchmarks/regret.py --kinds 4 --walks 6

Products are a suite's, or drawn at random as those of suites survey and small are. Of each the best configurations by
the model are timed, and of the others, up to --within times as long as the best, some of every tile; with --walks the
first few by other walks over their tiles, too. The result file,
benchmarks/results/<device>/regret.json, holds every timing beside what the model expects: what its constants are
fitted to, and, of another seed, what shows whether they hold for products that they were not fitted to.
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
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxgemm.kernels import Device, Kernel, default_platform, device_for, find_kernel
from jaxgemm.measure import bench, report
from jaxgemm.measure.case import Case, make_inputs
from jaxgemm.problem import Problem
from jaxgemm.select import Candidate, candidates
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE), str(_HERE.parent / "tests")]

from gpu_record import digest  # noqa: E402
from paths import sets_of_operands  # noqa: E402
from run import write  # noqa: E402
from shapes import SUITES, drawn  # noqa: E402
from tune import problem_of  # noqa: E402

_CONFIGURATIONS_AT_ONCE = 14  # that are compiled: XLA does so without Python's lock
#: Options that say how tiles are launched. All others say what a tile is.
LAUNCH = ("cluster_m", "cluster_n", "split_k", "swap", "group", "grid", "reduction")
_WALKS = (1, 2, 4, 8, 16, 32)  # rows of tiles that are walked together, by option group


def main() -> int:
    """Run the command line; returns 1 if a product could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="sm90", help="whose cost model (default sm90)")
    parser.add_argument("--suite", choices=list(SUITES), help="instead of random products")
    parser.add_argument("--seed", type=int, default=1, help="of random products and configurations (default 1)")
    parser.add_argument("--each", type=int, default=40, help="random products of a kind, at most (default 40)")
    parser.add_argument("--kinds", default="", help="numbers of the kinds in shapes.py to draw from (default all)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no other product is begun")
    parser.add_argument("--best", type=int, default=10, help="configurations by the model's order (default 10)")
    parser.add_argument("--others", type=int, default=14, help="of the rest (default 14)")
    parser.add_argument("--walks", type=int, default=0, help="configurations to time by other walks (default 0)")
    parser.add_argument("--within", type=float, default=1.7, help="times the least expected time (default 1.7)")
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    options = parser.parse_args()
    try:
        row = find_kernel(options.kernel)
        if options.walks and "group" not in row.options:
            raise ValueError(f"kernel '{row.name}' has one walk over its tiles")
        kinds = [int(i) for i in options.kinds.split(",")] if options.kinds else None
        cases = SUITES[options.suite].cases if options.suite else drawn(options.each, options.seed, kinds)
    except ValueError as error:
        parser.error(str(error))
    runner = bench.on_default_device(repeats=15, budget_s=0.05)
    report.print_header(runner)
    file = options.results / slug(report.device_name(runner.device)) / "regret.json"
    about = {
        "kernel": row.name,
        "suite": options.suite,
        "seed": options.seed,
        "source_digest": digest(),
        "columns": [*row.options, "expected_us", "us"],
    }
    draw, device = random.Random(options.seed), device_for(default_platform())
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    with report.progress(len(cases), "regret") as step, ThreadPoolExecutor(_CONFIGURATIONS_AT_ONCE) as pool:
        for case in cases:
            if time.monotonic() - began > options.seconds:
                break
            step(str(case))
            problem = problem_of(case)
            weighed = [] if problem is None else candidates(row, (), problem, device)
            if problem is not None and weighed:
                timed = _some(row, weighed, draw, options.best, options.others, options.within)
                if options.walks:
                    walked = _by_other_walks(row, timed[: options.walks], problem, device)
                    timed += [x for x in walked if x not in timed]
                found.append(_measure(row, case, timed, runner, pool))
            if len(found) % 20 == 0:
                write(file, {**report.document(runner, []), **about, "rows": found})
    write(file, {**report.document(runner, []), **about, "rows": found})
    _print(found)
    return 0 if found and all(product["loss"] is not None for product in found) else 1


def _some(
    row: Kernel, weighed: Sequence[Candidate], draw: random.Random, best: int, others: int, within: float
) -> list[Candidate]:
    """The first few, and from the rest one of each tile in turn: a model that is wrong about a tile shows there."""
    rest = [x for x in weighed[best:] if x.microseconds < within * weighed[0].microseconds]
    draw.shuffle(rest)
    tiles: dict[tuple[int, ...], list[Candidate]] = {}
    for x in rest:
        tile = tuple(value for name, value in zip(row.options, x.config, strict=True) if name not in LAUNCH)
        tiles.setdefault(tile, []).append(x)
    in_turn = (x for turn in itertools.zip_longest(*tiles.values()) for x in turn if x)
    return [*weighed[:best], *itertools.islice(in_turn, others)]


def _by_other_walks(row: Kernel, of: Sequence[Candidate], problem: Problem, device: Device) -> list[Candidate]:
    """These configurations by every walk, as they are weighed then."""
    at = list(row.options).index("group")
    configs = [(*x.config[:at], walk, *x.config[at + 1 :]) for x in of for walk in _WALKS]
    return [candidates(row, config, problem, device)[0] for config in configs]


def _measure(
    row: Kernel, case: Case, timed: Sequence[Candidate], runner: bench.Bench, pool: ThreadPoolExecutor
) -> dict[str, Any]:
    """One product: its configurations with what the model expects and what they took, and what its choice loses."""
    inputs = make_inputs(case, sets_of_operands(runner, case.operand_bytes), runner.seed)
    settings: list[dict[str, Any]] = [
        {name: value for name, value in zip(row.options, x.config, strict=True) if value} for x in timed
    ]

    def compiled(setting: dict[str, Any]) -> Any:
        return jax.jit(partial(case.ours, kernel=row.name, **setting)).lower(*inputs[0]).compile()

    times = runner.times(dict(zip(map(str, range(len(timed))), pool.map(compiled, settings), strict=True)), inputs)
    us = [round(times[str(i)].us, 3) for i in range(len(timed))]
    return {
        "problem": str(case),
        **asdict(case),
        "loss": us[0] / min(us) if all(us) else None,
        "configurations": [
            " ".join(map(str, (*x.config, round(x.microseconds, 3), t))) for x, t in zip(timed, us, strict=True)
        ],
    }


def _print(found: Iterable[dict[str, Any]]) -> None:
    """The products by loss, and what it is altogether."""
    rows = sorted((p for p in found if p["loss"]), key=lambda p: -p["loss"])
    if not rows:
        print("nothing was measured: no product for which the kernel's cost model weighs configurations")
        return
    lines = []
    for product in rows[:20]:
        timed = [line.split() for line in product["configurations"]]
        best = min(timed, key=lambda line: float(line[-1]))
        of = [
            f"{' '.join(line[:-2])}: {float(line[-2]):.1f} expected, {float(line[-1]):.1f}" for line in (timed[0], best)
        ]
        lines.append((product["problem"], *of, f"{product['loss']:.3f}"))
    report.print_table("Most lost by the model's choice", ("product", "choice", "best", "loss"), lines, left=3)
    losses = [product["loss"] for product in rows]
    mean = math.exp(statistics.fmean(map(math.log, losses)))
    print(f"{len(losses)} products: {mean:.4f} times the best on average, at most {max(losses):.3f}")


if __name__ == "__main__":
    sys.exit(main())
