"""Grouped products whose operands are spread over devices: each device computes with what it has.

Sharded columns, and rows that are not contracted, need no communication: a device works out the sizes of the parts of
groups that it has. Weights sharded over their groups stay where they are: a device computes the rows of its groups, has
zeros in all other rows, and one psum adds the devices' results up. How a contracted axis is divided,
jaxgemm/sharding/partition.py chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm._jax_private import explicit_axes
from jaxgemm.products.kind import Params
from jaxgemm.ragged import groups
from jaxgemm.ragged.form import Form
from jaxgemm.sharding.partition import Assignment, Division, Factors, vary_alike

#: (lhs, rhs, sizes, offset, form=, **params) -> result, on one device.
Local = Callable[..., jax.Array]

#: The axes of sizes and of offsets that every device has whole.
_SIZES, _OFFSET = "s0", "o0"


def division(local: Local, operands: Sequence[Any], params: Params, **_: Any) -> Division:
    """How the primitive's product of these operands, arrays or types, is divided over devices."""
    form: Form = params["form"]
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
        whole=partial(local, **params),
        shards=partial(_on_shards, local, operands[0].shape[-2], **params),
        replicated=(_SIZES, _OFFSET),
        even=("g0",),
    )


# --- Shardings that are types ---------------------------------------------------------------------------------


def retyped(aval: Any, shape: Sequence[int], spec: Sequence[Any]) -> Any:
    """The type with this shape, sharded by this spec."""
    return aval.update(shape=tuple(shape), sharding=aval.sharding.update(spec=PartitionSpec(*spec)))


def asked(target: NamedSharding | None, rank: int) -> tuple[tuple[Any, ...], NamedSharding | None]:
    """The mesh axes that ``target`` asks for, for each axis of the result; and ``target`` for the last two axes alone.

    Without a target these are () and None.
    """
    if target is None:
        return (), None
    spec = (*target.spec, *[None] * (rank - len(target.spec)))
    return spec, NamedSharding(target.mesh, PartitionSpec(*spec[-2:]))


def inferred(matrix: Any, operands: Sequence[Any], form: Form) -> tuple[Any, ...]:
    """The mesh axes of each axis of the result; the type ``matrix`` has those of the last two axes.

    Raises:
        ValueError: weights are sharded over their groups, and so the result is a sum.
    """
    if not form.sums and operands[1].sharding.spec[-3] is not None:
        raise ValueError(
            "the weights of a grouped product are sharded over their groups, and rows are added up over devices: say "
            "by out_sharding how the result is to be sharded"
        )
    batches = [x.sharding.spec[0] for x, rank in zip(operands, form.ranks, strict=True) if len(x.shape) > rank]
    batch = [next((axes for axes in batches if axes is not None), None)] * bool(batches)
    return (*batch, *[None] * form.sums, *matrix.sharding.spec)


def cotangent(wanted: Any, ct: Any) -> NamedSharding | None:
    """The sharding of a product that is to become a cotangent of type ``wanted``; None if no type has shardings.

    ``ct``: the type of the result's cotangent, if the product has a batch that ``wanted`` lacks; else None.
    """
    if not explicit_axes(wanted.sharding.mesh):
        return None
    batch = () if ct is None else ct.sharding.spec[:1]
    return NamedSharding(wanted.sharding.mesh, PartitionSpec(*batch, *wanted.sharding.spec))


def batched(target: NamedSharding | None, mapped: Any) -> NamedSharding | None:
    """``out_sharding`` with the mapped axis as a first axis, along the mesh axes ``mapped``."""
    return target and NamedSharding(target.mesh, PartitionSpec(mapped, *target.spec))


# --- On a device ----------------------------------------------------------------------------------------------


def own_groups(
    plan: Assignment, sizes: jax.Array, offset: jax.Array, *, rows: int, axis: str, count: int, held: int
) -> tuple[jax.Array, jax.Array]:
    """Sizes and offset for what one device has: ``count`` of ``rows``, and the weights of ``held`` groups.

    ``axis``: the factor that rows are.
    """
    if axes := plan.axes.get(axis):
        sizes = groups.portion(sizes, rows, lax.axis_index(axes) * count, count)
    if axes := plan.axes.get("g0"):
        offset = groups.later(offset, lax.axis_index(axes) * held)
    return sizes, offset


def _on_shards(local: Local, rows: int, plan: Assignment, *operands: jax.Array, form: Form, **params: Any) -> jax.Array:
    """The product of one device's shards, then the sum over the devices' parts.

    ``rows``: the number of rows on all devices.
    """
    lhs, rhs, *where = operands
    if axes := plan.axes.get("g0"):
        form = replace(form, held=form.held // lax.axis_size(axes))
    axis = "k0" if form.sums else "m0"
    own = own_groups(plan, *where, rows=rows, axis=axis, count=lhs.shape[-2], held=form.held)
    # Rows of other devices' groups are zeros exactly, whatever the weights are.
    return plan.added_up(local(*vary_alike(lhs, rhs, *own), form=form, **params))
