"""Which grouped products a ``lax.ragged_dot_general`` is made of: its axes, merged into those of the primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgemm.ragged import groups
from jaxgemm.ragged.form import Form

#: (form, lhs, rhs, sizes) -> result, as the primitive takes them
Bind = Callable[[Form, jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class Axes:
    """The axes of an operand by kind, each kind in the order in which the result or the sum has its axes."""

    batch: tuple[int, ...]
    before: tuple[int, ...]
    ragged: tuple[int, ...]
    after: tuple[int, ...]
    rest: tuple[int, ...]

    def extents(self, x: jax.Array, kind: str) -> tuple[int, ...]:
        """The extents of the axes of one kind."""
        return tuple(x.shape[axis] for axis in getattr(self, kind))

    def merged(self, x: jax.Array) -> jax.Array:
        """The operand as (batch, before, ragged and after, rest), an axis each."""
        kinds = (self.batch, self.before, self.ragged + self.after, self.rest)
        x = lax.transpose(x, [axis for kind in kinds for axis in kind])
        at = 0
        shape = []
        for kind in kinds:
            shape.append(prod(x.shape[at : at + len(kind)]))
            at += len(kind)
        return x.reshape(shape)


def around(axes: Sequence[int], ragged: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes before the ragged one, and those after it."""
    at = list(axes).index(ragged)
    return tuple(axes[:at]), tuple(axes[at + 1 :])


def rows(bind: Bind, lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, numbers: Any) -> jax.Array:
    """The product for a ragged axis that is free: each row times its group's weights."""
    (lc, rc), (lb, rb) = numbers.dot_dimension_numbers
    (ragged,), (group,) = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    before, after = around([i for i in range(lhs.ndim) if i not in lb and i not in lc], ragged)
    axes = Axes(lb, before, (ragged,), after, lc)
    columns = tuple(i for i in range(rhs.ndim) if i not in rb and i not in rc and i != group)
    # Weights whose last axes are the contracted ones are read as they lie, transposed.
    transposed = bool(rc) and set(rc) == set(range(rhs.ndim - len(rc), rhs.ndim))
    kinds = (rb, (group,), columns, rc) if transposed else (rb, (group,), rc, columns)
    x = axes.merged(lhs)
    w = lax.transpose(rhs, [axis for kind in kinds for axis in kind])
    held, n, k = rhs.shape[group], prod(rhs.shape[i] for i in columns), prod(rhs.shape[i] for i in rc)
    w = w.reshape((x.shape[0], held, *((n, k) if transposed else (k, n))))
    form = Form(False, transposed, held)
    out = _over_batches(partial(bind, form), x, w, _per_row(sizes, axes, lhs), len(lb) + len(before))
    shape = [axes.extents(lhs, kind) for kind in ("batch", "before", "ragged", "after")]
    return out.reshape([*(n for kind in shape for n in kind), *(rhs.shape[i] for i in columns)])


def sums(bind: Bind, lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, numbers: Any) -> jax.Array:
    """The product for a ragged axis that is contracted: a sum for each group."""
    (lc, rc), (lb, rb) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    at = lc.index(ragged)
    free = [
        tuple(i for i in range(x.ndim) if i not in contract and i not in batch)
        for x, contract, batch in ((lhs, lc, lb), (rhs, rc, rb))
    ]
    several = sizes.ndim > 1 and bool(lc[:at])  # groups differ along the axes before; their results are added
    x_axes, y_axes = (
        Axes(batch, c[:at] if several else (), (c[at],), c[at + 1 :] if several else c[:at] + c[at + 1 :], rest)
        for c, batch, rest in ((lc, lb, free[0]), (rc, rb, free[1]))
    )
    held = sizes.shape[-1]
    form = Form(True, False, held)
    x, y = x_axes.merged(lhs), y_axes.merged(rhs)
    out = _over_batches(
        partial(bind, form), x, y, _per_row(sizes, x_axes, lhs), len(lb) + len(x_axes.before), both=True
    )
    out = jnp.sum(out, axis=1, dtype=out.dtype) if several else out[:, 0]
    out = jnp.moveaxis(out, 1, 0)
    shape = [x_axes.extents(lhs, "batch"), x_axes.extents(lhs, "rest"), y_axes.extents(rhs, "rest")]
    return out.reshape([held, *(n for kind in shape for n in kind)])


def _per_row(sizes: jax.Array, axes: Axes, lhs: jax.Array) -> jax.Array:
    """Sizes in rows of the merged operand: (groups,), or (batch, before, groups)."""
    rows = lhs.shape[axes.ragged[0]]
    sizes = groups.narrow(sizes)
    if (times := prod(axes.extents(lhs, "after"))) != 1:
        sizes = jnp.clip(sizes, 0, rows) * jnp.asarray(times, sizes.dtype)
    if sizes.ndim == 1:
        return sizes
    batch, before = (prod(axes.extents(lhs, kind)) for kind in ("batch", "before"))
    return sizes.reshape((batch, before, sizes.shape[-1]))


def _over_batches(
    function: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    y: jax.Array,
    sizes: jax.Array,
    axes: int,
    both: bool = False,
) -> jax.Array:
    """``function`` mapped over the first two axes of ``x``. ``y`` has the first of these axes, or ``both``."""
    each = 0 if sizes.ndim > 1 else None
    if axes == 0:
        y0 = y[0, 0] if both else y[0]
        return function(x[0, 0], y0, sizes[0, 0] if each == 0 else sizes)[None, None]
    inner = jax.vmap(function, (0, 0 if both else None, each))
    out: jax.Array = jax.vmap(inner, (0, 0, each))(x, y, sizes)
    return out
