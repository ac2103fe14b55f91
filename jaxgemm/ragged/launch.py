"""Products of groups by a kernel of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from jaxgemm import precision as prec
from jaxgemm.choice import rules
from jaxgemm.choice.grouped import Beside, choose
from jaxgemm.choice.select import Choice
from jaxgemm.choice.xla_times import dense_microseconds
from jaxgemm.kernels import Device, UnsupportedError, device_for, find_kernel
from jaxgemm.problem import Problem
from jaxgemm.products import symbolic
from jaxgemm.products.call import call
from jaxgemm.products.kind import Decision, Params, wanted
from jaxgemm.ragged import parts
from jaxgemm.ragged.problem import problem


def decide(platform: str, operands: Sequence[Any], params: Params) -> Decision:
    """Who computes a ``jaxgemm_grouped`` of these operands, anything with shapes and types, on one device.

    Raises:
        UnsupportedError: a kernel asked for by name cannot, or none can that is batch-invariant.
    """
    counts = parts.of(operands, params)
    if counts is None:
        return decided(platform, operands, operands[3], params, lambda: _problem(operands, params))
    narrow = parts.result_params(params)
    first, *others = parts.types(counts, operands, params)

    def beside(device: Device, kernel: str) -> tuple[float, float | None]:
        wide = [jax.ShapeDtypeStruct(x.shape, parts.WIDE) for x in operands[:2]]
        more = [_again(kernel, given, narrow).choice.ours or 0.0 for given in others]
        full = prec.wants_full_fp32(params["precision"])
        theirs = dense_microseconds(_problem([*wide, *operands[2:]], params), device, full=full)
        return parts.microseconds(counts, operands, params, device) + sum(more), theirs

    found = decided(platform, operands, operands[3], params, lambda: _problem(first, narrow), beside)
    if found.choice.kernel is None:
        return found
    each = ", a launch for each part of rhs" if others else ""
    return replace(found, choice=replace(found.choice, why=f"{found.choice.why}; {counts}{each}"))


def decided(
    platform: str,
    operands: Sequence[Any],
    offset: Any,
    params: Params,
    problem_of: Callable[[], Problem],
    beside: Beside | None = None,
) -> Decision:
    """Who computes the problem of these operands, ``offset`` among them, on one device.

    The problem is asked for only if every extent is known. A product that only a derivative needs takes the kernel that
    was asked for by name where that can compute it.

    Raises:
        UnsupportedError: as of :func:`decide`.
    """
    kernel, invariant = params["kernel"], params["batch_invariant"]
    try:
        if unknown := symbolic.choose(operands, kernel=kernel, batch_invariant=invariant):
            return Decision(unknown)
        if len(offset.shape) > 1:
            why = "each product of the batch has an offset of its own"
            if invariant or kernel not in ("auto", "xla"):
                raise UnsupportedError(f"{wanted(params)}: {why}")
            return Decision(Choice(None, (), 0, why, rule=rules.UNFIT.name))
        asked = problem_of()
        how = {"precision": params["precision"], "kernel": kernel, "batch_invariant": invariant}
        return Decision(choose(asked, device_for(platform), **how, beside=beside), asked)
    except UnsupportedError:
        if params["strict"] or kernel == "auto":
            raise
        return decided(platform, operands, offset, dict(params, kernel="auto"), problem_of, beside)


def _problem(operands: Sequence[Any], params: Params) -> Problem:
    form = params["form"]
    lhs, rhs, sizes, _ = operands
    return problem(
        lhs,
        rhs,
        sizes,
        sums=form.sums,
        transposed=form.transposed,
        held=form.held,
        out=params["preferred_element_type"],
    )


def launch(decision: Decision, *operands: jax.Array, **params: Any) -> jax.Array:
    """The product by the chosen kernel."""
    choice = decision.choice
    assert choice.kernel is not None
    if counts := parts.of(operands, params):
        first, *others = parts.products(counts, operands, params)
        narrow = parts.result_params(params)
        made = [_call(decision, first, narrow)]
        made += [_call(_again(choice.kernel.name, given, narrow), given, narrow) for given in others]
        return parts.joined(counts, made, params)
    return _call(decision, operands, params)


def _call(decision: Decision, operands: Sequence[jax.Array], params: Params) -> jax.Array:
    form = params["form"]
    assert decision.problem is not None
    shape = *form.batch(operands), *form.shape(operands[0].shape, operands[1].shape)
    return call(decision.choice, decision.problem, shape, operands)


def _again(kernel: str, operands: Sequence[Any], params: Params) -> Decision:
    """A kernel with what suits one more product."""
    asked = _problem(operands, params)
    choice = choose(asked, device_for(find_kernel(kernel).platform), precision=params["precision"], kernel=kernel)
    return Decision(choice, asked)
