"""Which kernel runs a problem: a pure function of the problem, its precision and the device.

``auto`` takes what jaxgemm/tuning holds for this very product on this device, or else what jaxgemm/choice/rules.py
and rules_hopper.py say: XLA's product, or the one of our kernels whose cost model expects the least time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgemm import precision as prec
from jaxgemm import tuning, wire
from jaxgemm._runtime import ffi
from jaxgemm.choice import rules, rules_hopper, xla_times
from jaxgemm.choice.rules import Question, Reason, Side
from jaxgemm.dtypes import ELEMENT_TYPES
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device, Kernel, UnsupportedError, configuration, find_kernel, kernels
from jaxgemm.problem import Problem

#: The largest workspace a kernel may ask XLA for, in bytes.
MAX_WORKSPACE = 1 << 30
#: How many of a kernel's configurations a choice remembers for ``explain``.
SHOWN = 4
#: Kernels for batch-invariant products, in order of preference: the fastest for their types first.
INVARIANT = ("sm90", "sm80", "shared_pipeline", "register_blocked", "host")
#: The number of rows that a batch-invariant product's configuration is chosen for, whatever its own.
INVARIANT_ROWS = 256


@dataclass(frozen=True)
class Candidate:
    """A configuration of a kernel, as its cost model sees it.

    Attributes:
        config: a value for each of the kernel's options, in their order.
        microseconds: the device time that is expected.
        parts: what that is made of, by name, in microseconds; empty where the model does not say.
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
        rule: the name of what decided, as in docs/auto.md.
        contender: the kernel of ours that was asked for or expects the least time, whoever runs the problem; "" if none
            was weighed.
        ours: the microseconds that it expects; None if it has no cost model.
        theirs: the microseconds that XLA's product should take; None if that is not modelled.
        arithmetic: how the kernel multiplies, one of :data:`jaxgemm.precision.ARITHMETICS`.
        further: where several calls make up the product, the choices of those after the first, of the same kernel.
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
    further: tuple[Choice, ...] = ()

    @staticmethod
    def xlas(rule: Reason, why: str = "") -> Choice:
        """XLA's own product, by this rule, because of what it says unless more is known."""
        return Choice(why=why or rule.says, rule=rule.name)

    def left(self, rule: Reason, why: str) -> Choice:
        """The same, for which what is known of a kernel of ours speaks."""
        return replace(self, kernel=None, config=(), workspace=0, considered=(), further=(), rule=rule.name, why=why)

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
        supported = ", ".join(f"{t[0]} x {t[1]} -> {t[2]}" for t in kernel.types)
        return f"kernel '{kernel.name}' got {a} x {b} -> {d}; it supports {supported}", 0
    reason, workspace = ffi.check(_call(kernel, config, problem), device.arch)
    return reason, workspace


def candidates(
    kernel: Kernel, config: tuple[int, ...], problem: Problem, device: Device, most: int = 0
) -> list[Candidate]:
    """The kernel's configurations for a problem, best first by its cost model; none if it has no model.

    ``config`` fixes the options that are not 0 in it. ``most`` of them are returned, or all where it is 0.
    """
    found = ffi.candidates(_call(kernel, config, problem), device.arch, device.sm_count, device.bandwidth, most)
    return [Candidate(tuple(values), us, parts=tuple(parts.items())) for values, us, parts in found]


def _call(kernel: Kernel, config: tuple[int, ...], problem: Problem) -> Any:
    return ffi.Call(wire.attributes(kernel.name, config, problem), list(problem.dtypes), problem.gated)


def select(
    problem: Problem,
    device: Device,
    *,
    precision: prec.Precision = None,
    kernel: str = "auto",
    options: tuple[tuple[str, int], ...] = (),
    batch_invariant: bool = False,
) -> Choice:
    """The kernel for a problem.

    The precision is canonical. Options are the kernel's, or with "auto" those of kernels that have them. With
    ``batch_invariant`` the choice must not depend on m or the batch, nor a row's bits on other rows.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run the problem.
    """
    if kernel == "xla":
        return Choice.xlas(rules.BY_NAME, "XLA's product was asked for by name")
    if batch_invariant:
        return _invariant(problem, device, precision, kernel, options)
    if kernel == "auto":
        return _automatic(problem, device, precision, options)
    row = find_kernel(kernel)
    choice = resolve(kernel, configuration(row, options), problem, device, precision)
    if not isinstance(choice, Choice):
        raise UnsupportedError(choice)
    return _ours(choice, rules.BY_NAME, rules.BY_NAME.says, _theirs(problem, device, precision))


def _invariant(
    problem: Problem,
    device: Device,
    precision: prec.Precision,
    kernel: str,
    options: tuple[tuple[str, int], ...],
) -> Choice:
    """The kernel and configuration of the same product with ``INVARIANT_ROWS`` rows, and no batch."""
    a, b = problem.a, problem.b
    stand_in = replace(
        problem,
        m=INVARIANT_ROWS,
        batch=(1, 1),
        a=replace(a, transposed=False, ld=max(problem.k, 1), batch_stride=(0, 0)),
        b=replace(b, batch_stride=(0, 0)),
        epilogue=Epilogue(),
    )
    reasons = []
    for name in INVARIANT if kernel == "auto" else (kernel,):
        row = find_kernel(name)
        if kernel == "auto" and _less_exact(row, problem, precision):
            continue
        chosen = _pinned(row, options, stand_in, device, precision)
        if isinstance(chosen, Choice):
            free = {name for name, value in row.pins.items() if not value} - dict(options).keys()
            config = tuple(0 if name in free else x for name, x in zip(row.options, chosen.config, strict=False))
            found = resolve(row.name, config, problem, device, precision, alone=True)
            if not isinstance(found, Choice):  # another kernel would be one that follows m
                raise UnsupportedError(f"batch_invariant: {found}")
            why = f"batch-invariant: chosen for {INVARIANT_ROWS} rows, whatever there are"
            theirs = _theirs(problem, device, precision)
            return replace(_ours(found, rules.INVARIANT, why, theirs), considered=chosen.considered)
        reasons.append(chosen)
    raise UnsupportedError(f"batch_invariant: {'; '.join(reasons)}")


def _pinned(
    row: Kernel, options: tuple[tuple[str, int], ...], problem: Problem, device: Device, precision: prec.Precision
) -> Choice | str:
    """The kernel with every option that matters to the order of sums fixed, or why that cannot be."""
    if row.batch_invariant:
        return resolve(row.name, configuration(row, options), problem, device, precision, alone=True)
    if not row.pins:
        return f"kernel '{row.name}' does not promise that a row's bits are the same for every m"
    given, held = dict(options), {name: value for name, value in row.pins.items() if value}
    for name, value in held.items():
        if given.get(name, 0) not in (0, value):
            return f"option {name} of kernel '{row.name}' must be {value}, got {given[name]}"
    return resolve(
        row.name, configuration(row, tuple({**given, **held}.items())), problem, device, precision, alone=True
    )


def _less_exact(row: Kernel, problem: Problem, precision: prec.Precision) -> bool:
    """Whether ``auto`` leaves the sums to other kernels, as theirs are more exact where sums are short."""
    asked = computed(row, problem, precision)
    planes = isinstance(asked, Problem) and asked.arithmetic == "bf16_x6"
    return planes and not prec.is_algorithm(precision) and problem.k < rules.EXACT_K


#: What a kernel has that computes several products at once, by the attribute of its row.
_FORMS = {"gated": "gated form", "grouped": "grouped form", "many": "form for many products"}


def in_one_launch(
    form: str,
    kernel: str,
    device: Device,
    weighed: Callable[[Kernel], Choice | str],
    missing: Reason,
    *,
    batch_invariant: bool = False,
) -> Choice:
    """The kernel that computes several products at once, by a form of its own; no kernel where XLA or others do.

    Args:
        form: which one, by the attribute of the table's rows.
        weighed: (kernel) -> the choice of it or of what should take less time, or why it cannot run the products.
        missing: what says that no kernel has the form.
        batch_invariant: whether only a kernel may compute them.

    Raises:
        UnsupportedError: a kernel asked for by name has the form, and cannot run these, or none can that must.
    """
    if kernel == "xla":
        return Choice.xlas(rules.BY_NAME, "XLA's products were asked for by name")
    by_name = kernel != "auto"
    rows = [find_kernel(kernel)] if by_name else [row for row in kernels() if row.platform == device.platform]
    rows = [row for row in rows if getattr(row, form)]
    has = f"kernel '{kernel}' has no" if by_name else f"no kernel for {device.platform} has a"
    left, reasons = Choice.xlas(rules.UNFIT), []
    if not rows:
        left, reasons = Choice.xlas(missing), [f"{has} {_FORMS[form]}"]
    for row in rows:
        found = weighed(row)
        if isinstance(found, Choice) and found.kernel is not None:
            return found
        if isinstance(found, Choice):
            left, found = found, found.why
        reasons.append(found)
    if batch_invariant or (by_name and rows):
        raise UnsupportedError(("batch_invariant: " if batch_invariant else "") + "; ".join(reasons))
    return replace(left, why="; ".join(reasons))


def select_gated(problem: Problem, device: Device, *, precision: prec.Precision, kernel: str) -> Choice:
    """The kernel that computes a gated pair of products in one launch; no kernel where they are to be composed.

    Raises:
        UnsupportedError: a kernel asked for by name has a gated form that cannot run this.
    """

    def weighed(row: Kernel) -> Choice | str:
        found = resolve(row.name, (), problem, device, precision)
        if not isinstance(found, Choice):
            return found
        composed = _composed(problem, device, precision)
        if kernel != "auto":
            return _ours(found, rules.BY_NAME, rules.BY_NAME.says, composed)
        if found.expected <= _ONE_LAUNCH_MARGIN * composed:
            why = f"one launch; two products and what follows should take {composed:.0f} us"
            return _ours(found, rules.GATED_ONE_LAUNCH, why, composed)
        why = f"one launch expects {found.expected:.0f} us, two products should take {composed:.0f}"
        return _ours(found, rules.GATED_COMPOSED, why, composed).left(rules.GATED_COMPOSED, why)

    return in_one_launch("gated", kernel, device, weighed, rules.GATED_MISSING)


#: One launch is taken if it expects to take up to this many times what two products should, as it needs no memory for
#: their results.
_ONE_LAUNCH_MARGIN = 1.02


def _composed(problem: Problem, device: Device, precision: prec.Precision) -> float:
    """Microseconds that a gated pair should take as two products, be they XLA's or ours, and what follows them."""
    single = replace(problem, epilogue=Epilogue(), gated=False)
    best, theirs = contender(single, device, precision), xla_times.microseconds(single)
    product = min(best.expected if isinstance(best, Choice) else math.inf, math.inf if theirs is None else theirs)
    return 2 * product + xla_times.combining_microseconds(problem)


def computed(row: Kernel, problem: Problem, precision: prec.Precision, *, alone: bool = False) -> Problem | str:
    """The problem in an arithmetic of the kernel's that the precision allows, or why there is none.

    ``alone``: a row's bits must not follow from other rows. Those of a batch never do.
    """
    operand = np.dtype(jnp.dtype(problem.dtypes[0]))
    over = prec.OF_OTHER_ROWS if alone or problem.batch != (1, 1) else ()
    known = row.arithmetics(problem.dtypes)
    for arithmetic in prec.arithmetics(precision, operand):
        if arithmetic in known and arithmetic not in over:
            return replace(problem, arithmetic=arithmetic)
    return f"kernel '{row.name}': {prec.refusal(precision, operand, known[0])}"


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
    """A kernel with what its options leave open filled in by its cost model, or why it cannot run the problem."""
    row = find_kernel(name)
    asked = computed(row, problem, precision, alone=alone)
    if isinstance(asked, str):
        return asked
    problem = asked
    reason, workspace = check(row, config, problem, device)
    if reason:
        return reason
    raised = not alone and dict(zip(row.options, config, strict=False)).get("slabs", 0) > 0  # who asks for so few slabs
    considered = tuple(candidates(row, config, problem, device, SHOWN))
    if considered:
        config = considered[0].config
        reason, workspace = check(row, config, problem, device)
    if not reason and workspace > MAX_WORKSPACE and not raised:
        reason = f"kernel '{row.name}' needs {workspace} bytes of workspace, the limit is {MAX_WORKSPACE}"
    return reason or Choice(row, config, workspace, "", considered, arithmetic=problem.arithmetic)


def _had(kernel: Kernel, options: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Those of the options that the kernel has."""
    return tuple((name, value) for name, value in options if name in kernel.options)


def _automatic(
    problem: Problem, device: Device, precision: prec.Precision, options: tuple[tuple[str, int], ...]
) -> Choice:
    """What jaxgemm/tuning holds for this very product, or else what the rules say."""
    question = Question(problem, device, precision)
    if fact := rules.first([rules.FACTS], question):
        return Choice.xlas(fact, fact.sentence(question))
    best, theirs = contender(problem, device, precision, options), xla_times.microseconds(problem)
    if known := tuning.find(device.name, tuning.Key.of(problem, precision)):
        why = _measured(known, problem)
        if known.measured.kernel != "xla":
            row = find_kernel(known.measured.kernel)
            config = configuration(row, (*known.measured.options, *_had(row, options)))
            found = resolve(row.name, config, problem, device, precision)
            if isinstance(found, Choice):
                return _ours(found, rules.TUNED, why, theirs)
        elif isinstance(best, Choice):
            return _ours(best, rules.TUNED, why, theirs).left(rules.TUNED, why)
    if not isinstance(best, Choice):
        return replace(Choice.xlas(rules.UNFIT, best), theirs=theirs)
    question = replace(question, ours=best.expected, theirs=theirs, arithmetic=best.arithmetic)
    rule, side = rules_hopper.decide(question)
    choice = _ours(best, rule, rule.sentence(question), theirs)
    return choice if side is Side.OURS else choice.left(rule, choice.why)


def _measured(known: tuning.Found, problem: Problem) -> str:
    """What a measurement says."""
    where = known.device if known.key.a == problem.dtypes[0] else f"{known.device} for {known.key.a}"
    return f"measured on {where}: {known.measured.us:.1f} us, otherwise {known.measured.instead_us:.1f} us"


def contender(
    problem: Problem, device: Device, precision: prec.Precision, options: tuple[tuple[str, int], ...] = ()
) -> Choice | str:
    """The kernel of ours that expects to take the least time, of those that ``auto`` chooses from, or why none can."""
    rows = [find_kernel(name) for x in Question(problem, device, precision).contenders for name in x.kernels]
    configs = [configuration(row, _had(row, options)) for row in rows]
    tried = [resolve(row.name, config, problem, device, precision) for row, config in zip(rows, configs, strict=True)]
    choices = [found for found in tried if isinstance(found, Choice)]
    return min(choices, key=lambda choice: choice.expected) if choices else "; ".join(map(str, tried))


def _theirs(problem: Problem, device: Device, precision: prec.Precision) -> float | None:
    """The microseconds that XLA's product should take, if that is modelled for this device and precision."""
    modelled = rules.first([rules.FACTS], Question(problem, device, precision)) is None
    return xla_times.microseconds(problem) if modelled else None


def _ours(found: Choice, rule: Reason, why: str, theirs: float | None) -> Choice:
    """A kernel of ours, with what decided for it."""
    assert found.kernel is not None
    ours = found.expected if found.considered else None
    return replace(found, why=why, rule=rule.name, contender=found.kernel.name, ours=ours, theirs=theirs)
