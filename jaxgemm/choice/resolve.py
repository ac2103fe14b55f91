"""How one kernel runs a problem: its arithmetic and options, by its cost model; or why it cannot run the problem."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from jaxgemm import precision as prec
from jaxgemm import wire
from jaxgemm._runtime import ffi
from jaxgemm.choice import rules, xla_times
from jaxgemm.choice.rules import Question, Reason
from jaxgemm.dtypes import ELEMENT_TYPES, named
from jaxgemm.kernels import Device, Kernel, find_kernel
from jaxgemm.problem import Problem

#: The largest workspace a kernel may ask XLA for, in bytes.
MAX_WORKSPACE = 1 << 30
#: How many of a kernel's configurations a choice remembers for ``explain``.
SHOWN = 4


@dataclass(frozen=True)
class Candidate:
    """A configuration of a kernel, as its cost model sees it.

    Attributes:
        config: a value for each of the kernel's options, in their order.
        microseconds: the expected device time.
        parts: the parts of that time, by name, in microseconds; empty if the model names none.
    """

    config: tuple[int, ...]
    microseconds: float
    parts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Choice:
    """What runs a problem.

    Attributes:
        kernel: a row of the table, or None for XLA's own product.
        config: values for the kernel's options, in their order; empty: the kernel's own defaults.
        workspace: bytes of scratch memory that the call asks XLA for.
        why: one sentence.
        considered: configurations of the kernel, best first by its cost model, the chosen one among them.
        rule: the name of the rule or reason that decided, as in docs/auto.md.
        contender: the kernel of ours that was asked for or expects the least time, whoever runs the problem; "" if none
            was weighed.
        ours: the microseconds that the contender expects; None if it has no cost model.
        theirs: the microseconds that XLA's product should take; None if they are not modelled.
        arithmetic: how the kernel multiplies, one of :data:`jaxgemm.precision.ARITHMETICS`.
        beside: other arithmetics that the precision allows, with the microseconds that the kernel expects in each.
        further: if several calls make up the product, the choices for the calls after the first, of the same kernel.
    """

    kernel: Kernel | None = None
    config: tuple[int, ...] = ()
    workspace: int = 0
    why: str = ""
    considered: tuple[Candidate, ...] = ()
    rule: str = ""
    contender: str = ""
    ours: float | None = None
    theirs: float | None = None
    arithmetic: str = "plain"
    beside: tuple[tuple[str, float], ...] = ()
    further: tuple[Choice, ...] = ()

    @staticmethod
    def xlas(rule: Reason, why: str = "") -> Choice:
        """XLA's own product by this rule. The reason is ``why``, or else what the rule says."""
        return Choice(why=why or rule.says, rule=rule.name)

    def left(self, rule: Reason, why: str) -> Choice:
        """The problem left to XLA by this rule. What is known of our kernel and of expected times stays."""
        return replace(self, kernel=None, config=(), workspace=0, considered=(), further=(), rule=rule.name, why=why)

    def ours_by(self, rule: Reason, why: str, theirs: float | None) -> Choice:
        """The same kernel, with the rule that decided for it and the microseconds that XLA's product should take."""
        assert self.kernel is not None
        ours = self.expected if self.considered else None
        return replace(self, why=why, rule=rule.name, contender=self.kernel.name, ours=ours, theirs=theirs)

    @property
    def expected(self) -> float:
        """The microseconds that the kernel expects for this call; infinity if it has no cost model."""
        return self.considered[0].microseconds if self.considered else math.inf


def check(kernel: Kernel, config: tuple[int, ...], problem: Problem, device: Device) -> tuple[str, int]:
    """(why the kernel cannot run the problem, or "", and its workspace bytes), by the compiled constraints."""
    if kernel.platform != device.platform:
        return f"kernel '{kernel.name}' runs on {kernel.platform}, the program is for {device.platform}", 0
    if any(name not in ELEMENT_TYPES for name in problem.dtypes):
        a, b, d = problem.dtypes[:3]
        supported = ", ".join(dict.fromkeys(f"{t[0]} x {t[1]} -> {t[2]}" for t in kernel.types))
        return f"kernel '{kernel.name}' got {a} x {b} -> {d}; it supports {supported}", 0
    reason, workspace = ffi.check(_call(kernel, config, problem), device.arch)
    return reason, workspace


def candidates(
    kernel: Kernel, config: tuple[int, ...], problem: Problem, device: Device, most: int = 0
) -> list[Candidate]:
    """The kernel's configurations for a problem, best first by its cost model; none if it has no model.

    Options that are not 0 in ``config`` stay as they are. At most ``most`` configurations are returned; 0: all.
    """
    found = ffi.candidates(_call(kernel, config, problem), device.arch, device.sm_count, device.bandwidth, most)
    return [Candidate(tuple(values), us, parts=tuple(parts.items())) for values, us, parts in found]


def _call(kernel: Kernel, config: tuple[int, ...], problem: Problem) -> Any:
    return ffi.Call(wire.attributes(kernel.name, config, problem), list(problem.dtypes), problem.gated)


#: Whether kernels weigh arithmetics by expected time; see ``least_exact``.
_weighs = True


@contextlib.contextmanager
def least_exact() -> Iterator[None]:
    """For tests and timings: a kernel takes the least exact arithmetic allowed, without comparing expected times."""
    global _weighs
    before = _weighs
    _weighs = False
    resolve.cache_clear()
    try:
        yield
    finally:
        _weighs = before
        resolve.cache_clear()


def weighed(
    row: Kernel, problem: Problem, device: Device, precision: prec.Precision, *, alone: bool = False
) -> list[tuple[Problem, float]]:
    """The problem in each arithmetic that the kernel may compute it in, with the microseconds that it expects.

    The arithmetic with the least time is first. None has a larger error bound than the least exact one. The order does
    not depend on the kernel's options, so setting an option never changes how operands are rounded.

    ``alone``: a row's bits must not depend on other rows. In a batch and in groups they never may.
    """
    over = prec.OF_OTHER_ROWS if alone or problem.groups or problem.batch != (1, 1) else ()
    known = row.arithmetics(problem.dtypes)
    allowed = [x for x in prec.arithmetics(precision, named(problem.dtypes[0])) if x in known and x not in over]
    problems = [replace(problem, arithmetic=x) for x in allowed if _bound(x, problem) <= _bound(allowed[0], problem)]
    if len(problems) < 2 or not _weighs:
        return [(x, math.inf) for x in problems[:1]]
    return sorted(((x, _least(row, x, device)) for x in problems), key=lambda found: found[1])


def _bound(arithmetic: str, problem: Problem) -> float:
    """The arithmetic's error bound; infinity if it promises none."""
    bound = prec.bound_of(arithmetic, problem.k)
    return math.inf if bound is None else bound


def _least(row: Kernel, problem: Problem, device: Device) -> float:
    """The microseconds that the kernel expects of a problem; infinity if it cannot run the problem or has no model."""
    found = [] if check(row, (), problem, device)[0] else candidates(row, (), problem, device, 1)
    return found[0].microseconds if found else math.inf


def computed(row: Kernel, problem: Problem, device: Device, precision: prec.Precision) -> Problem | str:
    """The problem with the arithmetic that the kernel takes, or why no arithmetic is allowed."""
    found = weighed(row, problem, device, precision)
    return found[0][0] if found else _refusal(row, problem, precision)


def _refusal(row: Kernel, problem: Problem, precision: prec.Precision) -> str:
    known = row.arithmetics(problem.dtypes)
    return f"kernel '{row.name}': {prec.refusal(precision, named(problem.dtypes[0]), known[0])}"


@lru_cache(maxsize=4096)
def resolve(
    name: str,
    config: tuple[int, ...],
    problem: Problem,
    device: Device,
    precision: prec.Precision = None,
    *,
    alone: bool = False,
) -> Choice | str:
    """A kernel whose open options its cost model has filled in, or why it cannot run the problem."""
    row = find_kernel(name)
    found = weighed(row, problem, device, precision, alone=alone)
    if not found:
        return _refusal(row, problem, precision)
    (problem, _), *others = found
    reason, workspace = check(row, config, problem, device)
    if reason:
        return reason
    # A caller that sets the number of slabs accepts their workspace.
    raised = not alone and dict(zip(row.options, config, strict=False)).get("slabs", 0) > 0
    considered = tuple(candidates(row, config, problem, device, SHOWN))
    if considered:
        config = considered[0].config
        reason, workspace = check(row, config, problem, device)
    if not reason and workspace > MAX_WORKSPACE and not raised:
        reason = f"kernel '{row.name}' needs {workspace} bytes of workspace, the limit is {MAX_WORKSPACE}"
    beside = tuple((x.arithmetic, us) for x, us in others if us < math.inf)
    return reason or Choice(row, config, workspace, "", considered, arithmetic=problem.arithmetic, beside=beside)


def xla_expects(problem: Problem, device: Device, precision: prec.Precision) -> float | None:
    """The microseconds that XLA's product should take, if that is modelled for this device and precision."""
    modelled = rules.first([rules.FACTS], Question(problem, device, precision)) is None
    return xla_times.microseconds(problem) if modelled else None
