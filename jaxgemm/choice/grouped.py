"""Which kernel computes a grouped product: one of ours in one launch, or XLA's dense products, one for each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxgemm import precision as prec
from jaxgemm.choice import rules
from jaxgemm.choice.resolve import Choice, resolve
from jaxgemm.choice.select import in_one_launch
from jaxgemm.choice.xla_times import dense_microseconds
from jaxgemm.dtypes import named
from jaxgemm.kernels import Device, Kernel, UnsupportedError, find_kernel, kernels
from jaxgemm.problem import Problem

#: (device) -> the microseconds that a kernel's calls need beside their launches, and the microseconds that XLA's
#: products should take for the whole; None if those are not modelled.
Beside = Callable[[Device], tuple[float, float | None]]


def choose(
    problem: Problem,
    device: Device,
    *,
    precision: prec.Precision,
    kernel: str,
    batch_invariant: bool = False,
    further: Sequence[Problem] = (),
    beside: Beside | None = None,
) -> Choice:
    """The kernel of a grouped product; no kernel if XLA computes dense products.

    ``further``: the problems of a kernel's calls after the first. ``beside``: given if XLA would not compute these
    problems, but the product that they are parts of.

    Raises:
        UnsupportedError: the kernel asked for by name cannot run the product, or no batch-invariant kernel can.
    """
    if kernel == "xla" and batch_invariant:
        raise UnsupportedError("batch_invariant: XLA's products do not promise it")
    if kernel not in ("auto", "xla") and not find_kernel(kernel).grouped:
        able = ", ".join(row.name for row in kernels() if row.grouped)
        raise UnsupportedError(f"kernel '{kernel}' has no grouped form, unlike {able}; 'auto' runs everywhere")
    assert problem.groups is not None
    if kernel != "xla" and 0 in (problem.m, problem.n, problem.k, *problem.batch, problem.groups.count):
        return Choice.xlas(rules.GROUPED_NOTHING)

    def weighed(row: Kernel) -> Choice | str:
        found: list[Choice] = []
        for each in (problem, *further):
            choice = resolve(row.name, (), each, device, precision)
            if not isinstance(choice, Choice):
                return choice
            found.append(choice)
        full = prec.wants_full_fp32(precision)
        more, theirs = beside(device) if beside else (0.0, dense_microseconds(problem, device, full=full))
        ours = more + sum(choice.expected for choice in found) if all(c.considered for c in found) else None
        choice = replace(found[0], contender=row.name, ours=ours, theirs=theirs, further=tuple(found[1:]))
        if kernel == "auto" and not batch_invariant:
            if prec.emulated(precision, named(problem.dtypes[0])):
                return replace(choice, rule=rules.GROUPED_NAMED.name, why=rules.GROUPED_NAMED.says)
            if choice.arithmetic == "bf16_x6" and not rules.long_chains(problem):
                return choice.left(rules.GROUPED_SHORT_SUMS, rules.GROUPED_SHORT_SUMS.says)
        return _weighed(choice, by_name=kernel != "auto", batch_invariant=batch_invariant)

    return in_one_launch("grouped", kernel, device, weighed, rules.GROUPED_MISSING, batch_invariant=batch_invariant)


def _weighed(found: Choice, *, by_name: bool, batch_invariant: bool) -> Choice:
    """The kernel that can run the product, or XLA if dense products should be faster."""
    ours, theirs = found.ours, found.theirs
    if by_name:
        return replace(found, rule=rules.BY_NAME.name, why=rules.BY_NAME.says)
    if batch_invariant:  # sums are in one order, whatever the tile
        return replace(found, rule=rules.INVARIANT.name, why="batch-invariant: a row's sums have one order")
    if ours is None or theirs is None or ours <= theirs:
        expected = "" if theirs is None else f"; dense products should take {theirs:.0f} us"
        return replace(found, rule=rules.GROUPED_ONE_LAUNCH.name, why=f"one launch for all groups{expected}")
    return found.left(rules.GROUPED_DENSE, f"one launch expects {ours:.0f} us, dense products should take {theirs:.0f}")
