"""Grouped products by a kernel of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from jaxgemm import rules, symbolic
from jaxgemm.grouped import split
from jaxgemm.grouped.choose import choose, problem
from jaxgemm.kernels import UnsupportedError, device_for
from jaxgemm.primitive import call
from jaxgemm.problem import Problem
from jaxgemm.select import Choice


def decide(platform: str, operands: Sequence[Any], params: dict[str, Any]) -> Choice:
    """Who computes a ``jaxgemm_grouped`` of these operands, anything with shapes and types, on one device.

    Raises:
        UnsupportedError: a kernel asked for by name cannot, or none can that is batch-invariant.
    """
    found = chosen(platform, operands, operands[3], params, lambda: problem_of(operands, params))
    if found.kernel is not None and (parts := split.of(operands, params)):
        return replace(found, why=f"{found.why}; float32 rows as {parts.parts} of bfloat16 each")
    return found


def chosen(
    platform: str, operands: Sequence[Any], offset: Any, params: dict[str, Any], of: Callable[[], Problem]
) -> Choice:
    """Who computes the problem ``of`` these operands, ``offset`` among them, on one device.

    The problem is asked for only if every extent is known. A product that only a derivative needs takes the kernel that
    was asked for by name where that can compute it.

    Raises:
        UnsupportedError: as of :func:`decide`.
    """
    try:
        return _chosen(platform, operands, offset, params, of)
    except UnsupportedError:
        if params["strict"]:
            raise
        return _chosen(platform, operands, offset, dict(params, kernel="auto"), of)


def _chosen(
    platform: str, operands: Sequence[Any], offset: Any, params: dict[str, Any], of: Callable[[], Problem]
) -> Choice:
    kernel, invariant = params["kernel"], params["batch_invariant"]
    if unknown := symbolic.choose(operands, kernel=kernel, batch_invariant=invariant):
        return unknown
    if len(offset.shape) > 1:
        why = "each product of the batch has an offset of its own"
        if invariant or kernel not in ("auto", "xla"):
            raise UnsupportedError(f"{wanted(params)}: {why}")
        return Choice(None, (), 0, why, rule=rules.UNFIT.name)
    return choose(of(), device_for(platform), precision=params["precision"], kernel=kernel, batch_invariant=invariant)


def wanted(params: dict[str, Any]) -> str:
    """What is asked for that XLA's product would not be, for messages."""
    return "batch_invariant" if params["batch_invariant"] else f"kernel '{params['kernel']}'"


def problem_of(operands: Sequence[Any], params: dict[str, Any]) -> Problem:
    """What a kernel is asked for."""
    form = params["form"]
    if parts := split.of(operands, params):
        operands, params = split.types(parts, operands, params), split.result_params(params)
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
        narrow = split.rows(parts, operands, params)
        return split.joined(parts, launch(choice, narrow, split.result_params(params)), params)
    lhs, rhs, *_ = operands
    batches = {x.shape[0] for x, rank in zip(operands, form.ranks, strict=True) if x.ndim > rank}
    return call(choice, problem_of(operands, params), (*batches, *form.shape(lhs.shape, rhs.shape)), operands)
