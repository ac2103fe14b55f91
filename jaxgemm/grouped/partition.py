"""Grouped products whose operands are spread over devices: each device computes with what it has.

Sharded columns, and rows that are not contracted, need no communication: a device works out the sizes of the parts of
groups that it has. Weights sharded over their groups stay where they are: a device computes the rows of its groups, and
those of others as zeros, which one psum adds up. A contracted axis is as in jaxgemm/partition.py, which chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from jaxgemm.grouped import groups
from jaxgemm.partition import Assignment, Division, Factors, vary_alike

if TYPE_CHECKING:
    from jaxgemm.grouped.primitive import Form

#: (lhs, rhs, sizes, offset, form=, **params) -> result, on one device.
Local = Callable[..., jax.Array]

#: The axes of sizes and of offsets that every device has whole.
_SIZES, _OFFSET = "s0", "o0"


def division(local: Local, operands: Sequence[Any], *, form: Form, **params: Any) -> Division:
    """How the primitive's product of these operands, or of those with such types, is divided."""
    weights = ("g0", "n0", "k0") if form.transposed else ("g0", "k0", "n0")
    lhs, rhs = (("k0", "m0"), ("k0", "n0")) if form.sums else (("m0", "k0"), weights)
    out = ("g0", "m0", "n0") if form.sums else ("m0", "n0")
    axes: list[tuple[str, ...]] = [lhs, rhs, (_SIZES,), (_OFFSET,)]
    names = [(*("b0",) * (len(x.shape) - len(own)), *own) for x, own in zip(operands, axes, strict=True)]
    factors = Factors(names[0], names[1], (*("b0",) * any(n[0] == "b0" for n in names), *out))
    return Division(
        factors=factors,
        names=names,
        specs=lambda plan: [plan.spec(n) for n in names],
        whole=partial(local, form=form, **params),
        shards=partial(_on_shards, local, operands[0].shape[-2], form=form, **params),
        replicated=(_SIZES, _OFFSET),
        even=("g0",),
    )


def _on_shards(local: Local, rows: int, plan: Assignment, *operands: jax.Array, form: Form, **params: Any) -> jax.Array:
    """The product of one device's shards, then what adds the devices' partial sums up.

    ``rows`` is how many there are on all devices.
    """
    lhs, rhs, sizes, offset = operands
    if axes := plan.axes.get("k0" if form.sums else "m0"):
        count = lhs.shape[-2]
        sizes = groups.portion(sizes, rows, lax.axis_index(axes) * count, count)
    if axes := plan.axes.get("g0"):
        form = replace(form, held=form.held // lax.axis_size(axes))
        offset = groups.later(offset, lax.axis_index(axes) * form.held)
    # Rows of other devices' groups are zeros exactly, whatever the weights are.
    return plan.added_up(local(*vary_alike(lhs, rhs, sizes, offset), form=form, **params))
