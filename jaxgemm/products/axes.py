"""How the axes of a ``dot_general`` change: with a mapped axis, and in the products that are its cotangents."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm._jax_private import explicit_axes, mapped_mesh_axes
from jaxgemm.problem import Axes, DimensionNumbers


def free(rank: int, contract: Axes, batch: Axes) -> Axes:
    """The axes that are neither contracted nor batches, in order."""
    return tuple(i for i in range(rank) if i not in contract and i not in batch)


def batched(
    axis_data: Any, params: dict[str, Any], lhs: Any, rhs: Any, lhs_bdim: int | None, rhs_bdim: int | None
) -> tuple[dict[str, Any], int]:
    """Parameters with the mapped axis, and the place of that axis in the result.

    The mapped axis is a batch axis if both operands have it. Else it is a free axis of the operand that has it, so that
    the other operand is read once.
    """

    def bump(axes: Axes, at: int | None) -> Axes:
        return axes if at is None else tuple(i + (i >= at) for i in axes)

    (lc, rc), (lb, rb) = params["dimension_numbers"]
    lc, lb, rc, rb = bump(lc, lhs_bdim), bump(lb, lhs_bdim), bump(rc, rhs_bdim), bump(rb, rhs_bdim)
    if lhs_bdim is not None and rhs_bdim is not None:
        lb, rb, out_bdim = (lhs_bdim, *lb), (rhs_bdim, *rb), 0
    elif lhs_bdim is not None:
        out_bdim = len(lb) + free(np.ndim(lhs), lc, lb).index(lhs_bdim)
    else:
        assert rhs_bdim is not None
        out_bdim = np.ndim(lhs) - len(lc) + free(np.ndim(rhs), rc, rb).index(rhs_bdim)
    out_sharding = params["out_sharding"]
    if out_sharding is not None:
        spec, rank = out_sharding.spec, np.ndim(lhs) + np.ndim(rhs) - 2 * len(lc) - len(lb)
        axes = [*spec.partitions, *[None] * (rank - 1 - len(spec.partitions))]  # a spec may leave the last axes out
        axes.insert(out_bdim, mapped_mesh_axes(axis_data))
        partitions = PartitionSpec(*axes, unreduced=spec.unreduced, reduced=spec.reduced)
        out_sharding = NamedSharding(out_sharding.mesh, partitions)
    return dict(params, dimension_numbers=((lc, rc), (lb, rb)), out_sharding=out_sharding), out_bdim


def at_axis(x: jax.Array, bdim: int | None, axis: int, size: int) -> jax.Array:
    """``x`` with its batch axis, or a new one that repeats it, at ``axis``."""
    x = lax.expand_dims(x, [axis]) if bdim is None else jnp.moveaxis(x, bdim, axis)
    return jnp.broadcast_to(x, (*x.shape[:axis], size, *x.shape[axis + 1 :]))


def cotangent(side: int, x: Any, y_rank: int, dims: DimensionNumbers) -> tuple[DimensionNumbers, Axes, Any]:
    """The product that is the cotangent of an operand, up to a transposition.

    lhs (``side`` 0) has the product of the result's cotangent with rhs; rhs (1) has the product of lhs with the
    result's cotangent. ``x`` is the operand's type, and ``y_rank`` the other operand's rank.

    Returns:
        The product's dimension numbers; for each axis of the product, the axis of the operand that it is; and the
        product's sharding, with which its transposition is sharded as the operand is.
    """
    (contracts, batches), other = dims, 1 - side
    x_contract, y_contract, x_batch, y_batch = contracts[side], contracts[other], batches[side], batches[other]
    x_free, y_free = free(len(x.shape), x_contract, x_batch), free(y_rank, y_contract, y_batch)
    # The result's cotangent has the axes (batch, lhs free, rhs free).
    batch = tuple(range(len(x_batch)))
    start = len(batch) + (0 if side else len(x_free))
    of_y = tuple(range(start, start + len(y_free)))
    # The product comes out as (batch, x free, y's contracting axes in order), or with the last two swapped when
    # y stands on the left; x's contracting axes pair with y's.
    by_y = tuple(x_contract[i] for i in np.argsort(y_contract))
    if side:
        found, order = ((y_free, of_y), (tuple(y_batch), batch)), (*x_batch, *by_y, *x_free)
    else:
        found, order = ((of_y, y_free), (batch, tuple(y_batch))), (*x_batch, *x_free, *by_y)
    sharding = None
    if explicit_axes(x.sharding.mesh):
        sharding = NamedSharding(x.sharding.mesh, PartitionSpec(*(x.sharding.spec[i] for i in order)))
    return found, order, sharding
