"""Where groups of rows begin and end, from sizes that only the device knows.

Groups lie one after the other from row 0 on. Sizes below 0 count as 0, and groups end at the last row, even if sizes
sum to more. Rows after the last group belong to no group.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

#: The type in which sizes reach kernels.
SIZES = jnp.int32


def narrow(given: jax.Array) -> jax.Array:
    """Sizes or an offset of any integer type as ``SIZES``.

    A value that does not fit becomes the nearest that does: a size that is still more than all rows, or an offset that
    is still far from any group.
    """
    return given if given.dtype == SIZES else _narrowed(given)


@partial(jax.jit, inline=True)  # else an eager call would bring the limits from the host
def _narrowed(given: jax.Array) -> jax.Array:
    own, wanted = jnp.iinfo(given.dtype), jnp.iinfo(SIZES)
    least, most = max(int(own.min), int(wanted.min)), min(int(own.max), int(wanted.max))
    return jnp.clip(given, least, most).astype(SIZES)


def later(offset: jax.Array, by: jax.Array) -> jax.Array:
    """An offset plus a number that is no less than 0; one beyond all groups stays beyond them."""
    most = jnp.asarray(jnp.iinfo(SIZES).max, SIZES)
    return jnp.minimum(offset, most - by) + by


def ends(sizes: jax.Array, rows: int) -> jax.Array:
    """The row after the last one of each group, along the last axis."""
    most = jnp.asarray(rows, SIZES)

    def add(a: jax.Array, b: jax.Array) -> jax.Array:
        return a + jnp.minimum(b, most - a)  # a + b may not fit

    clipped = jnp.clip(sizes, 0, most)
    if sizes.shape[-1] == 0:
        return clipped
    found: jax.Array = lax.associative_scan(add, clipped, axis=-1)
    return found


def portion(sizes: jax.Array, rows: int, first: jax.Array, count: int) -> jax.Array:
    """How many rows each group has among the ``count`` from row ``first`` on, along the last axis."""
    inside = jnp.clip(ends(sizes, rows) - first, 0, count)
    return jnp.diff(inside, axis=-1, prepend=jnp.zeros((), SIZES))


def owner(sizes: jax.Array, offset: jax.Array | None, rows: int, held: int) -> jax.Array:
    """For each row, the index of its group's weights among the ``held`` ones; ``held`` if they are not among them.

    ``offset`` (1,) is the group of the first weight; None: 0. The result is (rows,), of type ``SIZES``.
    """
    places = lax.iota(SIZES, rows)
    # Sorting counts rows in 32 bits, and a symbolic number of rows is not known to fit.
    method = "sort" if isinstance(rows, int) else "scan_unrolled"
    group = jnp.searchsorted(ends(sizes, rows), places, side="right", method=method).astype(SIZES)
    local = group if offset is None else group - offset[0]
    exists = (group < sizes.shape[-1]) & (local >= 0) & (local < held)
    return jnp.where(exists, local, held)
