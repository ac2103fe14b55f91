"""A ragged product written with dense ones, so that a kernel of ours can compute it.

``lax.ragged_dot`` multiplies the rows of each group by that group's weights. Here rows outside of a group are masked
to zero and every group is multiplied, which is what JAX makes of it where XLA has no instruction for it: as many
operations, the same gradients, and shapes that do not depend on the groups' sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgemm.problem import DimensionNumbers
from jaxgemm.xla_product import pad, padding

#: (lhs, rhs, dimension_numbers) -> result
Product = Callable[[jax.Array, jax.Array, DimensionNumbers], jax.Array]


@dataclass(frozen=True)
class Dense:
    """Which dense product a ragged one becomes.

    Attributes:
        lhs_axis, rhs_axis: the axis of each operand along which it is cut into groups; None where it is not cut.
        dims: of the dense product. A cut operand has the groups as an axis before all others.
    """

    lhs_axis: int | None
    rhs_axis: int | None
    dims: DimensionNumbers

    @staticmethod
    def of(numbers: Any) -> Dense:
        """The dense form of a ``lax.RaggedDotDimensionNumbers``."""
        (lc, rc), (lb, rb) = (tuple(map(tuple, pair)) for pair in numbers.dot_dimension_numbers)
        (axis,) = numbers.lhs_ragged_dimensions
        if axis in lb:  # groups of whole products
            return Dense(None, None, ((lc, rc), (lb, rb)))
        if axis in lc:  # each group has a product of its own, over its part of the contracted axis
            dims = ((_after(lc), _after(rc)), ((0, *_after(lb)), (0, *_after(rb))))
            return Dense(axis, rc[lc.index(axis)], dims)
        # Each row is multiplied by its own group's weights alone: the groups are contracted too.
        (group,) = numbers.rhs_group_dimensions
        return Dense(axis, None, (((*_after(lc), 0), (*rc, group)), (_after(lb), rb)))


def _after(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(i + 1 for i in axes)


def ragged_product(
    product: Product, lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, *, numbers: Any
) -> jax.Array:
    """``lax.ragged_dot_general`` by a dense product.

    Args:
        product: computes the dense one.
        lhs, rhs: as ``lax.ragged_dot_general`` takes them.
        group_sizes: shape (groups,), or (outer axes of ``lhs``, groups): its batch axes, and those of the ragged
            axis's kind (free or contracting) that come before it.
        numbers: a ``lax.RaggedDotDimensionNumbers``.
    """
    dense = Dense.of(numbers)
    (lc, rc), (lb, rb) = numbers.dot_dimension_numbers
    if dense.lhs_axis is not None:
        lhs = _by_group(lhs, group_sizes, dense.lhs_axis, lb, lc)
    if dense.rhs_axis is not None:
        rhs = _by_group(rhs, group_sizes, dense.rhs_axis, rb, rc)
    return product(lhs, rhs, dense.dims)


def _by_group(
    x: jax.Array, group_sizes: jax.Array, axis: int, batch: Sequence[int], contract: Sequence[int]
) -> jax.Array:
    """``x`` once a group, with zeros where it belongs to others; the groups are the first axis."""
    kind = contract if axis in contract else [i for i in range(x.ndim) if i not in batch and i not in contract]
    outer = [*batch, *kind[: list(kind).index(axis)]] if group_sizes.ndim > 1 else []
    ends = lax.cumsum(group_sizes, axis=group_sizes.ndim - 1)

    def aligned(bounds: jax.Array) -> jax.Array:
        bounds = jnp.transpose(jnp.moveaxis(bounds, -1, 0), (0, *(1 + outer.index(i) for i in sorted(outer))))
        return jnp.expand_dims(bounds, [1 + i for i in range(x.ndim) if i not in outer])

    place = lax.broadcasted_iota(ends.dtype, x.shape, axis)[None]
    belongs = (aligned(ends - group_sizes) <= place) & (place < aligned(ends))
    return jnp.where(belongs, x[None], jnp.zeros((), x.dtype))


def with_whole_sums(eqn: Any) -> Any:
    """A ragged product of a jaxpr that stays XLA's, with sums as long as XLA needs them."""
    lhs, rhs, *_ = (v.aval for v in eqn.invars)
    dims = eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    # A jaxpr does not say for which platform it is, nor over how many devices it will be divided.
    found = padding("cuda", lhs, rhs, dims, parts=jax.device_count())
    if found is None:
        return eqn

    def ragged_dot(lhs: jax.Array, rhs: jax.Array, *sizes: jax.Array) -> jax.Array:
        out: jax.Array = eqn.primitive.bind(*pad(lhs, rhs, dims, found), *sizes, **eqn.params)
        return out

    return as_call(eqn, ragged_dot)


def as_call(eqn: Any, function: Callable[..., Any]) -> Any:
    """An equation of a jaxpr as a call of a function of the same operands."""
    avals = [v.aval for v in eqn.invars]
    with jax.sharding.use_abstract_mesh(avals[0].sharding.mesh):  # which is another one inside of a shard_map
        (call,) = jax.make_jaxpr(jax.jit(function))(*avals).jaxpr.eqns
    return eqn.replace(primitive=call.primitive, params=call.params)
