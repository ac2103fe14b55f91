"""Grouped products by a kernel of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxgemm import rules, symbolic
from jaxgemm.grouped.choose import choose, problem
from jaxgemm.kernels import device_for
from jaxgemm.primitive import call
from jaxgemm.select import Choice


def decide(platform: str, operands: Sequence[Any], params: dict[str, Any]) -> Choice:
    """Who computes a ``jaxgemm_grouped`` of these operands, anything with shapes and types, on one device.

    Raises:
        UnsupportedError: a kernel asked for by name cannot.
    """
    form = params["form"]
    lhs, rhs, sizes, offset = operands
    kernel = params["kernel"] if params["strict"] or params["kernel"] in ("auto", "xla") else "auto"
    if unknown := symbolic.choose(operands, kernel=kernel):
        return unknown
    if len(offset.shape) > 1:
        return Choice(None, (), 0, "each product of the batch has an offset of its own", rule=rules.UNFIT.name)
    found = problem(
        lhs,
        rhs,
        sizes,
        sums=form.sums,
        transposed=form.transposed,
        held=form.held,
        out=params["preferred_element_type"],
    )
    return choose(found, device_for(platform), precision=params["precision"], kernel=kernel)


def launch(choice: Choice, operands: tuple[jax.Array, ...], params: dict[str, Any]) -> jax.Array:
    """The product by the chosen kernel."""
    form = params["form"]
    lhs, rhs, sizes, offset = operands
    of = problem(
        lhs,
        rhs,
        sizes,
        sums=form.sums,
        transposed=form.transposed,
        held=form.held,
        out=params["preferred_element_type"],
    )
    batches = {x.shape[0] for x, rank in zip(operands, form.ranks, strict=True) if x.ndim > rank}
    return call(choice, of, (*batches, *form.shape(lhs.shape, rhs.shape)), (lhs, rhs, sizes, offset))
