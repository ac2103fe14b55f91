"""Grouped products by XLA's dense ones: a product a group, of which each row keeps its own group's.

As many operations as ``lax.ragged_dot`` takes where XLA has no kernel for it, but what is in one group's rows or
weights reaches no other group's result: NaN and infinity neither. Where there is little to multiply it is one batch of
products; else a loop over groups, whose temporaries are no larger than one product's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgemm.products.xla_product import xla_product
from jaxgemm.ragged.groups import owner
from jaxgemm.sharding.partition import vary_alike


def rows(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    *,
    transposed: bool,
    batch: bool,
    **product: Any,
) -> jax.Array:
    """Each row of ``lhs`` (m, k) times its group's weights, (held, k, n) or transposed; zeros where it has none.

    It is a ``batch`` of products, or a loop. What is left of ``product`` is :func:`xla_product`'s.
    """
    m, held, n = lhs.shape[0], rhs.shape[0], rhs.shape[1 if transposed else 2]
    mine = owner(sizes, offset, m, held)[:, None]
    dims = (((1,), (1 if transposed else 0,)), ((), ()))

    if batch:
        z = xla_product(
            lhs=jnp.broadcast_to(lhs, (held, *lhs.shape)),
            rhs=rhs,
            dims=(((2,), (2 if transposed else 1,)), ((0,), (0,))),
            **product,
        )
        own = z.at[jnp.minimum(mine[:, 0], held - 1), lax.iota(mine.dtype, m)].get(mode="promise_in_bounds")
        return jnp.where(mine < held, own, jnp.zeros((), own.dtype))

    def step(out: jax.Array, group: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        index, weights = group
        return jnp.where(mine == index, xla_product(lhs=lhs, rhs=weights, dims=dims, **product), out), None

    # What a scan carries has one type from the start, which in a shard_map tells along which mesh axes it varies.
    out, *_ = vary_alike(jnp.zeros((m, n), product["preferred_element_type"]), lhs, rhs, mine)
    return lax.scan(step, out, (lax.iota(mine.dtype, held), rhs))[0]


def sums(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, offset: jax.Array | None, *, held: int, **product: Any
) -> jax.Array:
    """For each of ``held`` groups the sum over its rows of what they are multiplied: ``lhs[rows].T @ rhs[rows]``.

    Of lhs (m, k) and rhs (m, n) it is (held, k, n).
    """
    mine = owner(sizes, offset, lhs.shape[0], held)[:, None]
    dims = (((0,), (0,)), ((), ()))

    def of(group: jax.Array) -> jax.Array:
        x, y = (jnp.where(mine == group, v, jnp.zeros((), v.dtype)) for v in (lhs, rhs))
        return xla_product(lhs=x, rhs=y, dims=dims, **product)

    if held == 0:
        return jnp.zeros((0, lhs.shape[1], rhs.shape[1]), product["preferred_element_type"])
    out: jax.Array = lax.map(of, lax.iota(mine.dtype, held))
    return out


def over_batch(function: Any, operands: list[jax.Array | None], ranks: list[int]) -> jax.Array:
    """``function`` of each part of those operands that have one axis more than ``ranks`` says, which is the first."""
    axes = [0 if x is not None and x.ndim > rank else None for x, rank in zip(operands, ranks, strict=True)]
    if all(axis is None for axis in axes):
        alone: jax.Array = function(*operands)
        return alone
    out: jax.Array = jax.vmap(function, in_axes=tuple(axes))(*operands)
    return out
