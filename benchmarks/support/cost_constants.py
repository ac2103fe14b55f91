"""The constants of sm90's cost model: what each of them is, and the header that holds their values.

The table here says what they mean, and benchmarks/fit.py what they are: it writes ffi/cuda/sm90/cost_constants.h
whole, from both. An array has one value for each kind of epilogue, in the order of cost.cc's enum; its first is 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "ffi/cuda/sm90/cost_constants.h"

#: (name, unit, meaning). A unit of "" is a factor; an "exponent" is one of soft_max() in cost.cc, of the times named.
CONSTANTS: tuple[tuple[str, str, str], ...] = (
    ("kDramRate", "bytes/us", "device memory"),
    ("kL2Capacity", "bytes", "read since, after which L2 no longer holds what may be read again"),
    ("kL2Rate", "bytes/us", "from L2 into all multiprocessors"),
    ("kMmaRate", "multiply-adds/us", "tensor cores of a multiprocessor"),
    ("kThreeConsumers", "", "of that rate where three warpgroups take turns"),
    ("kSharedRate", "bytes/us", "shared memory of a multiprocessor"),
    ("kThrottle", "", "more time in multiprocessors, at most, where power lowers their clock"),
    ("kThrottleWork", "multiply-adds", "of a product that has half of kThrottle"),
    ("kLaunch", "us", "launch, and the first bytes' way from memory"),
    ("kRingFill", "us", "more, until all stages of the ring have been asked for"),
    ("kTwoBlocksLaunch", "us", "less, where two blocks share a multiprocessor"),
    ("kClusterLaunch", "us", "more, where blocks form clusters"),
    ("kClusterStep", "us", "more for each step of k where blocks of a cluster share loads"),
    ("kClusterStep64", "us", "the same for tiles of 64 rows"),
    ("kReduceLaunch", "us", "the second kernel of a split K"),
    ("kGatherStart", "us", "blocks of a cluster that share K: until they begin to exchange sums"),
    ("kGatherRate", "values/us", "such sums, sent and added by a block"),
    ("kPartialsRate", "bytes/us", "partial results of a split K, written and read again"),
    ("kEpilogue", "us", "epilogue of 128 x 128 results of 2 bytes by a ping-pong warpgroup"),
    ("kCooperativeEpilogue", "", "times that for a cooperative tile, divided by its warpgroups"),
    ("kWideResults", "", "of the epilogue where operands have 8 bits and results 32, for each of their bytes"),
    ("kHandover", "us", "from one ping-pong warpgroup's main loop to the other's"),
    ("kNarrowStrip", "", "more epilogue for each halving of a strip's columns, about"),
    ("kSwappedEpilogue", "", "of the epilogue where operands are swapped"),
    ("kSwappedPartials", "", "of the epilogue of partial results where operands are swapped"),
    ("kUnalignedRows64", "", "of the epilogue of a ping-pong tile to unaligned rows, in strips of 64 columns"),
    ("kUnalignedRows32", "", "the same in strips of 32 columns"),
    ("kUnalignedRows16", "", "the same in strips of 16 columns"),
    ("kCooperativeUnalignedRows64", "", "of the epilogue of a cooperative tile, in strips of 64 columns"),
    ("kCooperativeUnalignedRows", "", "the same in narrower strips"),
    ("kUnalignedSwapped", "", "of kSwappedEpilogue where D's rows are unaligned"),
    ("kTrafficUnaligned", "", "of memory traffic of results in unaligned rows"),
    ("kTrafficUnalignedSwapped", "", "the same where operands are swapped"),
    ("kTrafficLines", "", "of memory traffic of results in rows that straddle lines of L2 but no sectors"),
    ("kTrafficSectors", "", "the same in rows that straddle sectors of 32 bytes too"),
    ("kTrafficSwapped", "", "times that where operands are swapped"),
    ("kPartialTraffic", "", "of memory traffic of partial results, of which L2 keeps some until they are read"),
    ("kFinish", "", "of the epilogue by its kind, in a ping-pong tile"),
    ("kCooperativeFinish", "", "of the epilogue by its kind, in a cooperative tile"),
    ("kRealignRate", "bytes/us", "loaded and shifted by a multiprocessor"),
    ("kRealignLine", "us", "more for each line of a stage that is shifted"),
    ("kNarrowBlock", "", "of loading MN-major blocks of 32 rows, in pieces of 64 bytes"),
    ("kStraddleLines", "", "of loading rows that straddle lines and sectors of L2"),
    ("kStraddleSectors", "", "of loading rows that straddle lines of L2 but no sectors"),
    ("kStraddleEveryEighth", "", "times either where tiles have every eighth row"),
    ("kCopiedLoads", "", "of loading an operand that has just been copied"),
    ("kLineReload", "us", "for each time that a line of L2 is loaded again"),
    ("kL2SendRate", "bytes/us", "out of L2, each line once to all who ask at the same time"),
    ("kL2Bound", "exponent", "the two rates of L2"),
    ("kDrift", "", "part of what blocks of a GPC share that L2 sends again, as they drift apart"),
    ("kByteDrift", "", "the same where operands have 8 bits, of which steps are shorter"),
    ("kStageLatency", "us", "from a load to its bytes, which the stages of the ring share"),
    ("kIdleL2", "", "part of a step's L2 time that is left on an otherwise idle machine"),
    ("kStepOverlap", "exponent", "multiplying and loading within a step"),
    ("kMinStep", "us", "the shortest step: instructions of a warpgroup's loop"),
    ("kMinStepOverlap", "exponent", "the shortest step and what it does"),
    ("kMemoryOverlap", "exponent", "multiprocessors and device memory"),
    ("kMemoryOverlapTwoBlocks", "exponent", "the same where two blocks share a multiprocessor"),
    ("kRepackRate", "bytes/us", "of an operand that is copied, read and written"),
    ("kRepackWrite", "", "weight of what is written, in whole lines, against what is read"),
    ("kRepackLaunch", "us", "the copying kernel"),
    ("kPlaneStep", "us", "of a step of planes: loading, and sums that are added up in registers"),
    ("kPlaneOverlap", "exponent", "that and multiplying"),
    ("kPlaneStores", "x", "a cooperative tile's results of planes, times its warpgroups"),
    ("kPlaneStoresSwapped", "x", "the same where operands are swapped"),
    ("kTurn", "us", "of a step of 64 rows of x of 8 bits that a warpgroup transposes in registers"),
    ("kTurnOverlap", "exponent", "that and multiplying"),
    ("kSplitRate", "bytes/us", "of the pass that splits operands into planes, read and written"),
    ("kSplitLaunch", "us", "that pass's kernel"),
)

_HEAD = """\
// The constants of the cost model in cost.cc, each behind its unit ([x]: a factor) and its meaning. This file
// is written by benchmarks/fit.py, from the table in benchmarks/support/cost_constants.py.
#pragma once

namespace jaxgemm::cuda::sm90 {

"""
_TAIL = """
}  // namespace jaxgemm::cuda::sm90
"""
_VALUE = re.compile(r"^constexpr double (k\w+)(?:\[\])? = \{?([^};]*)\}?;$", re.MULTILINE)


def values(header: str) -> dict[str, tuple[float, ...]]:
    """The values of a header, by name and in its order; an array has several."""
    return {name: tuple(map(float, text.split(","))) for name, text in _VALUE.findall(header)}


def flat(constants: Mapping[str, Sequence[float]]) -> tuple[list[str], list[float]]:
    """A name and a value for each number: an array's elements are called name[0], name[1], ..."""
    names = [f"{name}[{i}]" if len(x) > 1 else name for name, x in constants.items() for i in range(len(x))]
    return names, [value for x in constants.values() for value in x]


def grouped(names: Sequence[str], numbers: Sequence[float]) -> dict[str, tuple[float, ...]]:
    """What :func:`flat` was given."""
    out: dict[str, tuple[float, ...]] = {}
    for name, value in zip(names, numbers, strict=True):
        name = name.partition("[")[0]
        out[name] = (*out.get(name, ()), value)
    return out


def header(constants: Mapping[str, Sequence[float]]) -> str:
    """The file that holds these values, with four digits; ValueError where they are not those of the table."""
    if list(constants) != [name for name, _, _ in CONSTANTS]:
        raise ValueError("the constants are not those of the table, in its order")
    return _HEAD + "".join(f"// {_meaning(*c)}\n{_line(c[0], constants[c[0]])}\n" for c in CONSTANTS) + _TAIL


def variables(constants: Mapping[str, Sequence[float]]) -> str:
    """The same as variables: references into an array ``fitted``, which the fit changes."""
    _, numbers = flat(constants)
    lines, first = [f"static double fitted[] = {{{', '.join(map(repr, numbers))}}};"], 0
    for name, x in constants.items():
        one = f"static double& {name} = fitted[{first}];"
        lines.append(one if len(x) == 1 else f"static double* const {name} = fitted + {first};")
        first += len(x)
    return _HEAD + "\n".join(lines) + "\n" + _TAIL


def _meaning(_: str, unit: str, meaning: str) -> str:
    return f"[{unit or 'x'}] {meaning}"


def _line(name: str, constants: Sequence[float]) -> str:
    text = ", ".join(map(_digits, constants))
    return f"constexpr double {name}[] = {{{text}}};" if len(constants) > 1 else f"constexpr double {name} = {text};"


def _digits(value: float) -> str:
    power = next((p for p in (10, 6, 3) if value >= 10 ** (p if p > 3 else 4)), 0)
    return f"{value / 10**power:.4g}" + (f"e{power}" if power else "")
