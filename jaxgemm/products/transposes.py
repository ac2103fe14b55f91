"""Transpositions in front of a product, which the product can read through: ``x @ w.T`` needs no copy of ``w``.

XLA folds transpositions into its own products, but not into a call. So they are looked for when a program is lowered,
after every transformation, and in the jaxpr, for ``explain``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from jaxgemm._jax_private import explicit_axes
from jaxgemm.problem import Axes, DimensionNumbers


def lowered_order(value: Any) -> Axes | None:
    """The permutation, if this value of a lowered program is the result of a transposition; else None."""
    owner = value.owner
    if getattr(owner, "name", None) != "stablehlo.transpose":
        return None
    return tuple(int(i) for i in owner.attributes["permutation"])


def traced_order(maker: Any) -> Axes | None:
    """The permutation, if this equation of a jaxpr is a transposition; else None, as without an equation."""
    if maker is None or maker.primitive is not lax.transpose_p:
        return None
    return tuple(maker.params["permutation"])


def read_through(
    orders: Sequence[Axes | None], avals: Sequence[Any], dims: DimensionNumbers
) -> tuple[list[bool], list[Any], DimensionNumbers]:
    """The dot_general that gives the same result from operands as they were before transpositions in these orders.

    Returns:
        Which operands to take before they are transposed; then the types of both operands, and the dimension numbers.
    """
    through, types, (contract, batch) = [False, False], list(avals), (list(dims[0]), list(dims[1]))
    for side, order in enumerate(orders):
        # If shardings are part of types, the operand had another sharding before, which is not known here.
        if order is None or explicit_axes(avals[side].sharding.mesh):
            continue
        axes, shared = contract[side], batch[side]
        free = [order[i] for i in range(len(order)) if i not in axes and i not in shared]
        if free != sorted(free):  # the result has the free axes in this order
            continue
        shape = [avals[side].shape[order.index(i)] for i in range(len(order))]
        through[side], types[side] = True, avals[side].update(shape=tuple(shape))
        contract[side], batch[side] = tuple(order[i] for i in axes), tuple(order[i] for i in shared)
    return through, types, ((contract[0], contract[1]), (batch[0], batch[1]))


def read_through_all(
    orders: Sequence[Axes | None], avals: Sequence[Any], transposed: tuple[bool, bool]
) -> tuple[list[bool], list[Any], tuple[bool, bool]]:
    """The same for many products: all lhs, then all rhs. All operands of a side are transposed, or none.

    ``transposed`` says whether the products take all lhs, and all rhs, transposed; never both. It is returned as it is
    once transpositions are read through.
    """
    count = len(orders) // 2
    through, types = [False] * len(orders), list(avals)
    for side, own in enumerate((range(count), range(count, 2 * count))):
        then = (not transposed[0], transposed[1]) if side == 0 else (transposed[0], not transposed[1])
        if all(then) or any(orders[i] != (1, 0) or explicit_axes(avals[i].sharding.mesh) for i in own):
            continue
        transposed = then
        for i in own:
            through[i], types[i] = True, avals[i].update(shape=avals[i].shape[::-1])
    return through, types, transposed
