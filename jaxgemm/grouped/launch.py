"""Grouped products by a kernel of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from jaxgemm import precision as prec
from jaxgemm import symbolic
from jaxgemm.choice import rules
from jaxgemm.choice.grouped import Beside, choose
from jaxgemm.choice.select import Choice
from jaxgemm.choice.xla_times import dense_microseconds
from jaxgemm.grouped import split
from jaxgemm.grouped.problem import problem
from jaxgemm.kernels import Device, UnsupportedError, device_for, find_kernel
from jaxgemm.primitive import call
from jaxgemm.problem import Problem


def decide(platform: str, operands: Sequence[Any], params: dict[str, Any]) -> Choice:
    """Who computes a ``jaxgemm_grouped`` of these operands, anything with shapes and types, on one device.

    Raises:
        UnsupportedError: a kernel asked for by name cannot, or none can that is batch-invariant.
    """
    parts = split.of(operands, params)
    if parts is None:
        return chosen(platform, operands, operands[3], params, lambda: problem_of(operands, params))

    def beside(device: Device, kernel: str) -> tuple[float, float | None]:
        wide = [jax.ShapeDtypeStruct(x.shape, split.WIDE) for x in operands[:2]]
        narrow = split.result_params(params)
        others = [_again(kernel, given, narrow).ours or 0.0 for given in split.types(parts, operands, params)[1:]]
        full = prec.wants_full_fp32(params["precision"])
        theirs = dense_microseconds(_problem([*wide, *operands[2:]], params), device, full=full)
        return split.microseconds(parts, operands, params, device) + sum(others), theirs

    found = chosen(platform, operands, operands[3], params, lambda: problem_of(operands, params), beside)
    if found.kernel is None:
        return found
    each = ", a launch for each part of rhs" if len(split.types(parts, operands, params)) > 1 else ""
    return replace(found, why=f"{found.why}; {parts}{each}")


def chosen(
    platform: str,
    operands: Sequence[Any],
    offset: Any,
    params: dict[str, Any],
    of: Callable[[], Problem],
    beside: Beside | None = None,
) -> Choice:
    """Who computes the problem ``of`` these operands, ``offset`` among them, on one device.

    The problem is asked for only if every extent is known. A product that only a derivative needs takes the kernel that
    was asked for by name where that can compute it.

    Raises:
        UnsupportedError: as of :func:`decide`.
    """
    try:
        return _chosen(platform, operands, offset, params, of, beside)
    except UnsupportedError:
        if params["strict"]:
            raise
        return _chosen(platform, operands, offset, dict(params, kernel="auto"), of, beside)


def _chosen(
    platform: str,
    operands: Sequence[Any],
    offset: Any,
    params: dict[str, Any],
    of: Callable[[], Problem],
    beside: Beside | None,
) -> Choice:
    kernel, invariant = params["kernel"], params["batch_invariant"]
    if unknown := symbolic.choose(operands, kernel=kernel, batch_invariant=invariant):
        return unknown
    if len(offset.shape) > 1:
        why = "each product of the batch has an offset of its own"
        if invariant or kernel not in ("auto", "xla"):
            raise UnsupportedError(f"{wanted(params)}: {why}")
        return Choice(None, (), 0, why, rule=rules.UNFIT.name)
    asked = {"precision": params["precision"], "kernel": kernel, "batch_invariant": invariant}
    return choose(of(), device_for(platform), **asked, beside=beside)


def wanted(params: dict[str, Any]) -> str:
    """What is asked for that XLA's product would not be, for messages."""
    return "batch_invariant" if params["batch_invariant"] else f"kernel '{params['kernel']}'"


def problem_of(operands: Sequence[Any], params: dict[str, Any]) -> Problem:
    """What a kernel is asked for, first if there are several products."""
    if parts := split.of(operands, params):
        return _problem(split.types(parts, operands, params)[0], split.result_params(params))
    return _problem(operands, params)


def _problem(operands: Sequence[Any], params: dict[str, Any]) -> Problem:
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


def launch(choice: Choice, operands: Sequence[jax.Array], params: dict[str, Any]) -> jax.Array:
    """The product by the chosen kernel."""
    form = params["form"]
    if parts := split.of(operands, params):
        assert choice.kernel is not None
        first, *others = split.products(parts, operands, params)
        narrow = split.result_params(params)
        made = [launch(choice, first, narrow)]
        made += [launch(_again(choice.kernel.name, given, narrow), given, narrow) for given in others]
        return split.joined(parts, made, params)
    shape = *form.batch(operands), *form.shape(operands[0].shape, operands[1].shape)
    return call(choice, problem_of(operands, params), shape, operands)


def _again(kernel: str, operands: Sequence[Any], params: dict[str, Any]) -> Choice:
    """A kernel with what suits one more product."""
    device = device_for(find_kernel(kernel).platform)
    return choose(_problem(operands, params), device, precision=params["precision"], kernel=kernel)
