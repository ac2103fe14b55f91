"""Grouped products by XLA's dense products: all rows times each group's weights; a row keeps its own group's result.

That takes as many operations as ``lax.ragged_dot`` does without a kernel of XLA's for it. But values in one group's
rows or weights, NaN and infinity among them, reach no other group's result. Small products are one batch. Larger ones
are a loop over groups, whose temporaries are no larger than those of one product.
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
    """Each row of ``lhs`` (m, k) times its group's weights, (held, k, n) or transposed; zeros if it has none.

    ``batch``: whether XLA computes one batch of products rather than a loop. ``product``: arguments of
    :func:`xla_product`.
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

    # A scan's carry keeps its first type. In a shard_map the type says along which mesh axes the carry varies.
    out, *_ = vary_alike(jnp.zeros((m, n), product["preferred_element_type"]), lhs, rhs, mine)
    return lax.scan(step, out, (lax.iota(mine.dtype, held), rhs))[0]


def sums(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    *,
    held: int,
    batch: bool,
    **product: Any,
) -> jax.Array:
    """``lhs[rows].T @ rhs[rows]`` for the rows of each of ``held`` groups.

    lhs is (m, k), rhs (m, n), and the result (held, k, n). ``batch``: as :func:`rows` has it.
    """
    mine = owner(sizes, offset, lhs.shape[0], held)[:, None]
    every = lax.iota(mine.dtype, held)
    dims = (((1,), (1,)), ((0,), (0,))) if batch else (((0,), (0,)), ((), ()))

    def of(group: jax.Array) -> jax.Array:
        x, y = (jnp.where(mine == group, v, jnp.zeros((), v.dtype)) for v in (lhs, rhs))
        return xla_product(lhs=x, rhs=y, dims=dims, **product)

    if held == 0:
        return jnp.zeros((0, lhs.shape[1], rhs.shape[1]), product["preferred_element_type"])
    out: jax.Array = of(every[:, None, None]) if batch else lax.map(of, every)
    return out


def over_batch(function: Any, operands: list[jax.Array | None], ranks: list[int]) -> jax.Array:
    """``function`` mapped over the first axis of each operand that has one axis more than ``ranks`` says."""
    axes = [0 if x is not None and x.ndim > rank else None for x, rank in zip(operands, ranks, strict=True)]
    if all(axis is None for axis in axes):
        alone: jax.Array = function(*operands)
        return alone
    out: jax.Array = jax.vmap(function, in_axes=tuple(axes))(*operands)
    return out
