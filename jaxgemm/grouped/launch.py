"""Grouped products by a kernel of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxgemm import rules, symbolic
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
    kernel, invariant = asked(params), params["batch_invariant"]
    if unknown := symbolic.choose(operands, kernel=kernel, batch_invariant=invariant):
        return kept(unknown, kernel, invariant)
    if len(operands[3].shape) > 1:
        why = "each product of the batch has an offset of its own"
        return kept(Choice(None, (), 0, why, rule=rules.UNFIT.name), kernel, invariant)
    device = device_for(platform)
    found = _problem(operands, params)
    return choose(found, device, precision=params["precision"], kernel=kernel, batch_invariant=invariant)


def asked(params: dict[str, Any]) -> str:
    """The kernel that is asked for: one by name is not of a product that only a derivative needs."""
    kernel: str = params["kernel"]
    return kernel if params["strict"] or kernel in ("auto", "xla") else "auto"


def kept(choice: Choice, kernel: str, batch_invariant: bool) -> Choice:
    """The choice of no kernel, where that may be; UnsupportedError where a kernel of ours has been asked for."""
    if batch_invariant or kernel not in ("auto", "xla"):
        wanted = "batch_invariant" if batch_invariant else f"kernel '{kernel}'"
        raise UnsupportedError(f"{wanted}: {choice.why}")
    return choice


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


def launch(choice: Choice, operands: tuple[jax.Array, ...], params: dict[str, Any]) -> jax.Array:
    """The product by the chosen kernel."""
    form = params["form"]
    lhs, rhs, *_ = operands
    batches = {x.shape[0] for x, rank in zip(operands, form.ranks, strict=True) if x.ndim > rank}
    return call(choice, _problem(operands, params), (*batches, *form.shape(lhs.shape, rhs.shape)), operands)
