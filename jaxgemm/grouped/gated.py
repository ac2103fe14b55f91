"""``ragged_gated``: the pair of products of a gated layer, for rows in groups."""

from __future__ import annotations

from functools import partial

import jax
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import precision as prec
from jaxgemm.grouped.api import ragged_dot


def ragged_gated(
    lhs: ArrayLike,
    w_gate: ArrayLike,
    w_up: ArrayLike,
    group_sizes: ArrayLike,
    *,
    activation: str | None = "silu",
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    kernel: str = "auto",
) -> jax.Array:
    """``activation(x w_gate[g]) * (x w_up[g])`` for each row's group; zeros for rows without a group."""
    dot = partial(
        ragged_dot,
        lhs,
        group_sizes=group_sizes,
        precision=precision,
        preferred_element_type=preferred_element_type,
        group_offset=group_offset,
        kernel=kernel,
    )
    return dot(w_gate, activation=activation) * dot(w_up)
