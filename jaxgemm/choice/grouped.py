"""Which kernel computes a grouped product: one of ours in one launch, or XLA's dense products, one for each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jaxgemm import precision as prec
from jaxgemm.choice import rules
from jaxgemm.choice.select import Choice, resolve
from jaxgemm.choice.xla_times import dense_microseconds
from jaxgemm.kernels import Device, UnsupportedError, find_kernel, kernels
from jaxgemm.problem import Problem

#: By device and kernel: the microseconds that its call takes beside its launch, and those of XLA's products instead;
#: None: these are not modelled.
Beside = Callable[[Device, str], tuple[float, float | None]]


def choose(
    problem: Problem,
    device: Device,
    *,
    precision: prec.Precision,
    kernel: str,
    batch_invariant: bool = False,
    beside: Beside | None = None,
) -> Choice:
    """The kernel of a grouped product; no kernel where XLA computes dense ones.

    Args:
        problem: what a kernel is asked for.
        device: what it is asked of.
        precision, kernel, batch_invariant: as for ``jaxgemm.ragged_dot``.
        beside: where a kernel's problem is not what XLA would compute; None: it is.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run it, or none can that is batch-invariant.
    """
    if kernel == "xla" and not batch_invariant:
        return Choice(None, (), 0, "XLA's products were asked for by name", rule=rules.BY_NAME.name)
    if kernel == "xla":
        raise UnsupportedError("batch_invariant: XLA's products make no such promise")
    rows = [row for row in kernels() if row.grouped and row.platform == device.platform]
    if kernel != "auto":
        rows = [find_kernel(kernel)]
        if not rows[0].grouped:
            able = ", ".join(row.name for row in kernels() if row.grouped)
            raise UnsupportedError(f"kernel '{kernel}' has no grouped form; {able} has, and 'auto' runs everywhere")
    assert problem.groups is not None
    if 0 in (problem.m, problem.n, problem.k, *problem.batch, problem.groups.count):
        return Choice(None, (), 0, rules.GROUPED_NOTHING.says, rule=rules.GROUPED_NOTHING.name)
    reasons = [] if rows else [f"no kernel for {device.platform} has a grouped form"]
    for row in rows:
        found = resolve(row.name, (), problem, device, precision)
        if isinstance(found, Choice):
            more, theirs = beside(device, row.name) if beside else (0.0, dense_microseconds(problem, device))
            found = replace(found, contender=row.name, ours=more + found.considered[0].microseconds, theirs=theirs)
            return _weighed(found, by_name=kernel != "auto", batch_invariant=batch_invariant)
        reasons.append(found)
    if kernel != "auto" or batch_invariant:
        raise UnsupportedError(("batch_invariant: " if batch_invariant else "") + "; ".join(reasons))
    rule = rules.GROUPED_MISSING if not rows else rules.UNFIT
    return Choice(None, (), 0, "; ".join(reasons), rule=rule.name)


def _weighed(found: Choice, *, by_name: bool, batch_invariant: bool) -> Choice:
    """A kernel that can run the problem, or XLA where that should be faster."""
    ours, theirs = found.ours, found.theirs
    assert ours is not None
    if by_name:
        return replace(found, rule=rules.BY_NAME.name, why=rules.BY_NAME.says)
    if batch_invariant:  # sums are in one order, whatever the tile
        return replace(found, rule=rules.INVARIANT.name, why="batch-invariant: a row's sums have one order")
    if theirs is None or ours <= theirs:
        expected = "" if theirs is None else f"; dense products should take {theirs:.0f} us"
        return replace(found, rule=rules.GROUPED_ONE_LAUNCH.name, why=f"one launch for all groups{expected}")
    why = f"one launch expects {ours:.0f} us, dense products should take {theirs:.0f}"
    return replace(found, kernel=None, config=(), workspace=0, considered=(), rule=rules.GROUPED_DENSE.name, why=why)
