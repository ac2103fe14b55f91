"""Times several programs side by side.

On a GPU what counts is device time: CUPTI records every kernel, and a call takes as long as kernels of it run. What
two run at a time counts once: a kernel may be launched before the one that it waits for has ended. That leaves out
the tens of microseconds that a call from Python costs, in which a small product would disappear.
On a CPU the wall time of a call is what there is.

Programs take turns, so that a clock that drifts or a neighbour that wakes up hits all of them, and they draw
their inputs from one ring, so that none finds in the cache what the one before it has just read.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from jaxgemm.measure import cupti
from jaxgemm.measure.cupti import KernelRecord

Program = Callable[..., Any]


class Recorder(Protocol):
    """Records the kernels that the device runs, in the order they begin."""

    def start(self) -> None:
        """Begin to record."""

    def stop(self) -> list[KernelRecord]:
        """End, and return what ran since start."""
        ...

    def detach(self) -> None:
        """Stop watching the process, so that later wall times are undisturbed."""


def device_recorder(platform: str) -> tuple[Recorder | None, str]:
    """A recorder for the platform, or None, and a line that says what the times will be."""
    if platform not in ("gpu", "cuda"):
        return None, "wall time"
    try:
        recorder = cupti.Recorder()
        recorder.start()
        recorder.detach()
    except Exception as error:  # whatever it is, wall times remain
        return None, f"wall time, as CUPTI is not usable here ({error})"
    return recorder, "device time through CUPTI, in which kernels run"


@dataclass(frozen=True)
class Timing:
    """Medians over the calls of one program."""

    wall_us: float
    walls_us: tuple[float, ...] = ()  # what the median is of
    device_us: float | None = None
    launches: int = 0
    kernels: tuple[str, ...] = ()
    calls: int = 0

    @property
    def us(self) -> float:
        """Device time where there is one."""
        return self.wall_us if self.device_us is None else self.device_us


def per_call(records: Sequence[KernelRecord], calls: int) -> tuple[list[float], tuple[str, ...]]:
    """Microseconds of each call, and the kernels of one call, from the records of `calls` calls of one
    program.

    Every call of a compiled program launches the same kernels, so the records divide evenly. If they do not
    (a record was lost), the calls cannot be told apart, and each is given the mean.
    """
    if calls < 1 or not records:
        return [], ()
    launches, lost = divmod(len(records), calls)
    groups = [records[i * launches : (i + 1) * launches] for i in range(calls)]
    names = tuple(name for name, *_ in groups[0])
    if lost or any(tuple(name for name, *_ in group) != names for group in groups):
        return [_busy(records) / calls] * calls, tuple(dict.fromkeys(name for name, *_ in records))
    return [_busy(group) for group in groups], names


def _busy(records: Sequence[KernelRecord]) -> float:
    """Microseconds in which any of these kernels, which are in the order they began, runs."""
    total = until = 0  # whole nanoseconds: a float of microseconds does not tell some fractions of one since 1970
    for _, begin, end in records:
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return 1e-3 * total


def _timed(program: Program, ring: Iterator[Sequence[Any]], calls: int = 1) -> float:
    """Seconds a call, out of a queue of calls that is waited for at its end."""
    begin = time.perf_counter()
    for _ in range(calls):
        last = program(*next(ring))  # outputs are let go at once: a queue of large ones would fill the memory
    jax.block_until_ready(last)  # calls run in order
    return (time.perf_counter() - begin) / calls


def _turns(calls: Mapping[str, int]) -> Iterator[str]:
    """Each name as often as it is due, taking turns; the order shifts so that none always follows the same
    other.
    """
    names = list(calls)
    for turn in range(max(calls.values(), default=0)):
        first = turn % len(names)
        yield from (name for name in names[first:] + names[:first] if turn < calls[name])


def measure(
    programs: Mapping[str, Program],
    inputs: Sequence[Sequence[Any]],
    *,
    repeats: int = 30,
    budget_s: float = 1.0,
    recorder: Recorder | None = None,
    queued: bool = False,
    rounds: int = 5,
) -> dict[str, Timing]:
    """Medians over up to `repeats` calls of each program, fewer (but at least 3) where they pass `budget_s` seconds.

    With `queued`, wall time is that of calls issued in a row, in as many rows as `rounds` says. That is for a GPU,
    where waiting for every single call adds a wake-up of some hundred microseconds, more or less, to each.
    """
    ring = itertools.cycle(inputs)
    for program in programs.values():
        jax.block_until_ready(program(*next(ring)))  # what only a first call does
    calls = {}
    for name, program in programs.items():
        estimate = min(_timed(program, ring) for _ in range(2))
        calls[name] = max(3, min(repeats, int(budget_s / max(estimate, 1e-9))))
    row = {name: -(-count // rounds) for name, count in calls.items()}

    wall: dict[str, list[float]] = {name: [] for name in programs}
    for name in _turns({name: min(rounds, count) if queued else count for name, count in calls.items()}):
        wall[name].append(1e6 * _timed(programs[name], ring, row[name] if queued else 1))

    device: dict[str, list[float]] = {name: [] for name in programs}
    kernels: dict[str, tuple[str, ...]] = {}
    if recorder is not None:
        for name in _turns({name: min(rounds, count) for name, count in calls.items()}):
            recorder.start()
            try:
                _timed(programs[name], ring, row[name])
            finally:
                records = recorder.stop()
            us, kernels[name] = per_call(records, row[name])
            device[name] += us
        recorder.detach()

    return {
        name: Timing(
            wall_us=statistics.median(wall[name]),
            walls_us=tuple(wall[name]),
            device_us=statistics.median(device[name]) if device[name] else None,
            launches=len(kernels.get(name, ())),
            kernels=kernels.get(name, ()),
            calls=calls[name],
        )
        for name in programs
    }
