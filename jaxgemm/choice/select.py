"""Which kernel runs a problem: a pure function of the problem, its precision and the device.

``auto`` takes what jaxgemm/tuning holds for this very product on this device, or else what jaxgemm/choice/rules.py
and rules_hopper.py say: XLA's product, or the one of our kernels whose cost model expects the least time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from jaxgemm import precision as prec
from jaxgemm import tuning
from jaxgemm.choice import rules, rules_hopper, xla_times
from jaxgemm.choice.invariant import invariant
from jaxgemm.choice.resolve import Choice, resolve, xla_expects
from jaxgemm.choice.rules import Question, Reason, Side
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device, Kernel, UnsupportedError, configuration, find_kernel, kernels
from jaxgemm.problem import Problem


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

    ``precision`` is canonical. ``options`` are the named kernel's; with "auto", each kernel takes the options that it
    has. With ``batch_invariant`` the choice must not depend on m or the batch, nor a row's bits on other rows.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run the problem.
    """
    if kernel == "xla":
        return Choice.xlas(rules.BY_NAME, "XLA's product was asked for by name")
    if batch_invariant:
        return invariant(problem, device, precision, kernel, options)
    if kernel == "auto":
        return _automatic(problem, device, precision, options)
    row = find_kernel(kernel)
    choice = resolve(kernel, configuration(row, options), problem, device, precision)
    if not isinstance(choice, Choice):
        raise UnsupportedError(choice)
    return choice.ours_by(rules.BY_NAME, rules.BY_NAME.says, xla_expects(problem, device, precision))


#: What messages call the forms that a kernel may have, by the attribute of its row.
_FORMS = {
    "gated": "gated form",
    "scaled": "form for scales",
    "grouped": "grouped form",
    "many": "form for many products",
}


def in_one_launch(
    form: str,
    kernel: str,
    device: Device,
    weighed: Callable[[Kernel], Choice | str],
    missing: Reason,
    *,
    batch_invariant: bool = False,
) -> Choice:
    """The kernel that computes the products in one launch, by a form of its own; no kernel if others compute them.

    Args:
        form: the form, by the attribute of the table's rows.
        weighed: (kernel) -> the choice of the kernel, or of XLA if it should be faster; or why it cannot run them.
        missing: the reason to give if no kernel has the form.
        batch_invariant: whether only a kernel may compute the products.

    Raises:
        UnsupportedError: the kernel asked for by name has the form and cannot run the products, or they must be
            batch-invariant and no kernel can run them.
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
    """The kernel that computes a gated pair of products in one launch; no kernel if they are to be composed.

    Raises:
        UnsupportedError: the kernel asked for by name has a gated form, which cannot run this pair.
    """

    def weighed(row: Kernel) -> Choice | str:
        found = resolve(row.name, (), problem, device, precision)
        if not isinstance(found, Choice):
            return found
        composed = _composed(problem, device, precision)
        if kernel != "auto":
            return found.ours_by(rules.BY_NAME, rules.BY_NAME.says, composed)
        if found.expected <= _ONE_LAUNCH_MARGIN * composed:
            why = f"one launch; two products and what follows should take {composed:.0f} us"
            return found.ours_by(rules.GATED_ONE_LAUNCH, why, composed)
        why = f"one launch expects {found.expected:.0f} us, two products should take {composed:.0f}"
        return found.ours_by(rules.GATED_COMPOSED, why, composed).left(rules.GATED_COMPOSED, why)

    return in_one_launch("gated", kernel, device, weighed, rules.GATED_MISSING)


#: One launch is taken if it should take at most so many times as long as two products, since it needs no memory for
#: their results.
_ONE_LAUNCH_MARGIN = 1.02


def _composed(problem: Problem, device: Device, precision: prec.Precision) -> float:
    """Microseconds that a gated pair should take as two products, be they XLA's or ours, and what follows them."""
    single = replace(problem, epilogue=Epilogue(), gated=False)
    best, theirs = contender(single, device, precision), xla_times.microseconds(single)
    product = min(best.expected if isinstance(best, Choice) else math.inf, math.inf if theirs is None else theirs)
    return 2 * product + xla_times.combining_microseconds(problem)


def _had(kernel: Kernel, options: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The options that the kernel has."""
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
                return found.ours_by(rules.TUNED, why, theirs)
        elif isinstance(best, Choice):
            return best.ours_by(rules.TUNED, why, theirs).left(rules.TUNED, why)
    if not isinstance(best, Choice):
        return replace(Choice.xlas(rules.UNFIT, best), theirs=theirs)
    question = replace(question, ours=best.expected, theirs=theirs, arithmetic=best.arithmetic)
    rule, side = rules_hopper.decide(question)
    choice = best.ours_by(rule, rule.sentence(question), theirs)
    return choice if side is Side.OURS else choice.left(rule, choice.why)


def _measured(known: tuning.Found, problem: Problem) -> str:
    """What a measurement says."""
    where = known.device if known.key.a == problem.dtypes[0] else f"{known.device} for {known.key.a}"
    return f"measured on {where}: {known.measured.us:.1f} us, otherwise {known.measured.instead_us:.1f} us"


def contender(
    problem: Problem, device: Device, precision: prec.Precision, options: tuple[tuple[str, int], ...] = ()
) -> Choice | str:
    """Of the kernels that ``auto`` chooses from, the one that expects the least time; or why none can run."""
    names = dict.fromkeys(name for x in Question(problem, device, precision).contenders for name in x.kernels)
    rows = [find_kernel(name) for name in names]
    configs = [configuration(row, _had(row, options)) for row in rows]
    tried = [resolve(row.name, config, problem, device, precision) for row, config in zip(rows, configs, strict=True)]
    choices = [found for found in tried if isinstance(found, Choice)]
    return min(choices, key=lambda choice: choice.expected) if choices else "; ".join(map(str, tried))
