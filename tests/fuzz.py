"""Random products against float64 and exact integers, for as long as asked: ``python tests/fuzz.py SECONDS SEED``.

Every product is drawn from the seed and its index alone: a kernel that this machine runs or "auto", types, extents,
batches, layouts, permuted operands, alpha, beta, c, bias, activation, scales, the result's type, options, gated pairs,
batch-invariant ones, NaN and infinity. One in five is of groups of rows: of random, skewed, empty or single rows, one
huge and many small groups, with NaN in every row that is of no group. One in twenty is a list of products of different
shapes. It is compiled once and run on two sets of numbers, each twice. Wrong are:

- a result outside of tests/support/oracle.py's bounds (a looser one where XLA computes the product), NaN and infinity
  included;
- two runs with different bits, and rows of a batch-invariant product that change when others are left out;
- reads and writes out of bounds, as far as tests/support/guards.py sees them: six in ten of our kernels' calls get
  buffers that lie between poison;
- any error but UnsupportedError, which is counted as a refusal.

    python tests/fuzz.py 600 1                      ten minutes
    python tests/fuzz.py 600 1 --load               beside another stream's products (tests/support/fuzz_load.py)
    python tests/fuzz.py 600 1 --kernel sm90        one kernel's products; may be repeated
    python tests/fuzz.py 600 1 --groups             products of groups, and lists of products, alone
    python tests/fuzz.py 600 1 --operand int8       single products of operands of that type; may be repeated
    python tests/fuzz.py 600 1 --only 57            product 57 of that seed; may be repeated
    python tests/fuzz.py 600 1 --json FILE          the summary, for `python tests/gpu_record.py --fuzz FILE`

What is drawn depends on the platform as well, whose kernels there are. A product that ends the process, as a write
outside of unguarded memory may, is the last that --verbose names. One that makes a GPU fail for good is the first of
many failures.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import faulthandler
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # what runs beside it needs memory as well
_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE), str(_HERE / "support")]

import fuzz_cases  # noqa: E402
import fuzz_groups  # noqa: E402
import fuzz_many  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
from fuzz_load import Load  # noqa: E402
from gpu_record import digest  # noqa: E402

import jaxgemm  # noqa: E402
from jaxgemm.dtypes import OPERANDS  # noqa: E402
from jaxgemm.kernels import default_platform, device_for  # noqa: E402

#: Failures after which a run stops: a device may be past use.
ENOUGH = 20
#: Products after which compiled programs are forgotten, and seconds between lines of progress.
FORGET, TELL = 200, 15
#: How one case is drawn and run, by what it is.
KINDS: dict[type, Any] = {fuzz_cases.Case: fuzz_cases, fuzz_groups.Case: fuzz_groups, fuzz_many.Case: fuzz_many}
#: Shares of products of groups, and of lists of products.
GROUPED, MANY = 0.2, 0.05

Case = fuzz_cases.Case | fuzz_groups.Case | fuzz_many.Case


@dataclass
class Found:
    """What a run has come across: products by the kernel that ran them ("xla" for what auto left), and failures."""

    ran: collections.Counter[str] = field(default_factory=collections.Counter)
    guarded: int = 0
    grouped: int = 0
    many: int = 0
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.ran.total()} products, {self.refused.total()} refused, {len(self.failures)} failed"


def here(platform: str) -> list[jaxgemm.Kernel]:
    """The kernels that this machine runs."""
    arch = device_for(platform).arch
    return [
        row
        for row in jaxgemm.kernels()
        if row.platform == platform and row.built and row.min_arch <= arch <= (row.max_arch or arch)
    ]


def draw(seed: int, index: int, rows: list[jaxgemm.Kernel], *, groups: bool) -> Case:
    """The case of that index: a product, one of groups, or a list of products."""
    shares = np.cumsum([MANY, GROUPED])
    at = np.random.default_rng((seed, index, 2)).random() * (shares[-1] if groups else 1)
    kind = fuzz_many if at < shares[0] else fuzz_groups if at < shares[1] else fuzz_cases
    drawn: Case = kind.draw(seed, index, rows)
    return drawn


def run(
    seed: int,
    seconds: float = float("inf"),
    *,
    indices: Iterable[int] | None = None,
    kernels: Iterable[str] = (),
    groups: bool = False,
    operands: Iterable[str] = (),
    load: Load | None = None,
    verbose: bool = False,
) -> Found:
    """Products of these indices, by default all from 0, until the time is over; of groups alone, or single ones of
    operands of these types, if asked for.
    """
    rows, wanted, types = here(default_platform()), set(kernels), set(operands)
    found, start, told = Found(), time.monotonic(), time.monotonic()
    for index in itertools.count() if indices is None else indices:
        now = time.monotonic()
        if now - start > seconds or len(found.failures) >= ENOUGH:
            break
        if now - told > TELL:
            told = now
            print(f"fuzz: {now - start:.0f} s, index {index}: {found}", file=sys.stderr, flush=True)
        case = draw(seed, index, rows, groups=groups)
        if wanted and case.kernel not in wanted:
            continue
        if types and not (isinstance(case, fuzz_cases.Case) and types.issuperset(case.types[:2])):
            continue
        if verbose:
            print(f"{index}: {case}", file=sys.stderr, flush=True)
        if load and load.ended:
            found.failures.append(f"what runs beside has ended: {load}")
            break
        one(case, f"{seed}{' --groups' * groups} --only {index}", (seed, index, 1), found)
        if (found.ran.total() + 1) % FORGET == 0:
            jax.clear_caches()
    return found


def one(case: Case, which: str, numbers: tuple[int, ...], found: Found) -> None:
    """Run one case on numbers of that seed; what comes of it goes to ``found``, with arguments to run it again."""
    try:
        kernel = KINDS[type(case)].fuzz(case, numbers)
        found.ran[kernel] += 1
        found.grouped += isinstance(case, fuzz_groups.Case)
        found.many += isinstance(case, fuzz_many.Case)
        found.guarded += case.guarded and kernel != "xla"
    except jaxgemm.UnsupportedError:
        found.refused[case.kernel] += 1
    except Exception as error:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        text = f"{case}: {kind}{' '.join(str(error).split())[:500]}"
        found.failures.append(f"{text}; again: python tests/fuzz.py 60 {which}")
        print(f"FAILED {found.failures[-1]}", file=sys.stderr, flush=True)


def summary(found: Found, options: argparse.Namespace, seconds: float, load: Load | None) -> dict[str, Any]:
    """What a run says at its end, and what gpu_record.py takes."""
    return {
        "device": jax.devices(default_platform())[0].device_kind,
        "platform": default_platform(),
        "seed": options.seed,
        "seconds": round(seconds, 1),
        "load": str(load or ""),
        "operands": options.operand,
        "products": found.ran.total(),
        "kernels": dict(sorted(found.ran.items())),
        "guarded": found.guarded,
        "grouped": found.grouped,
        "many": found.many,
        "refused": dict(sorted(found.refused.items())),
        "failures": found.failures,
        "jax": jax.__version__,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "digest": digest(),
    }


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, help="how long")
    parser.add_argument("seed", type=int, help="what is drawn")
    parser.add_argument("--load", action="store_true", help="run another stream's products meanwhile")
    parser.add_argument("--kernel", action="append", default=[], choices=[*(x.name for x in jaxgemm.kernels()), "auto"])
    parser.add_argument("--groups", action="store_true", help="products of groups, and lists of products, alone")
    parser.add_argument("--operand", action="append", default=[], choices=OPERANDS, help="products of that type alone")
    parser.add_argument("--only", action="append", type=int, metavar="INDEX", help="this product alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there as well")
    parser.add_argument("--verbose", action="store_true", help="name each product before it runs")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    """Run the command line; returns 1 if anything failed."""
    options = arguments(given)
    faulthandler.enable()
    jax.config.update("jax_enable_x64", True)  # for float64
    start = time.monotonic()
    load = Load(default_platform()) if options.load else None
    with load or contextlib.nullcontext():
        keywords = {"kernels": options.kernel, "groups": options.groups, "operands": options.operand, "load": load}
        keywords["verbose"] = options.verbose or bool(options.only)
        seconds = float("inf") if options.only else options.seconds
        found = run(options.seed, seconds, indices=options.only, **keywords)
    result = summary(found, options, time.monotonic() - start, load)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
