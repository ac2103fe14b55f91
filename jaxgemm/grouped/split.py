"""Products of float32 rows and bfloat16, as backward passes of float32 results have them, by kernels of bfloat16.

A float32 row becomes two or three of bfloat16: what it rounds to, and what that leaves. They stand in the row's place,
next to each other, so that groups stay whole. In the form "rows" their results are added up; in "sums" the other
operand's rows are repeated. Two parts keep 16 bits of a number's 24, where TF32, in which XLA multiplies float32 by
default, keeps 11; three keep all. Weights are read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm import precision as prec

WIDE, NARROW = np.dtype(np.float32), np.dtype(jnp.bfloat16)


class Split(NamedTuple):
    """Which operand has float32 rows, 0 or 1, and how many rows of bfloat16 each of them becomes."""

    side: int
    parts: int


def of(operands: Sequence[Any], params: dict[str, Any]) -> Split | None:
    """How a ``jaxgemm_grouped`` of operands with these types is split; None: it is not of float32 rows and bfloat16."""
    types = tuple(np.dtype(x.dtype) for x in operands[:2])
    sides = [(WIDE, NARROW), *[(NARROW, WIDE)] * params["form"].sums]
    if types not in sides or prec.is_algorithm(params["precision"]):
        return None
    return Split(sides.index(types), 3 if prec.wants_full_fp32(params["precision"]) else 2)


def result_params(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the product of bfloat16; the results of a row's parts are added up before they are rounded."""
    return params if params["form"].sums else dict(params, preferred_element_type=WIDE)


def types(split: Split, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """The types of what :func:`rows` makes of operands with these types."""
    made = list(operands)
    for i in range(1 + params["form"].sums):
        *batch, count, width = operands[i].shape
        made[i] = jax.ShapeDtypeStruct((*batch, count * split.parts, width), NARROW)
    return made


def rows(split: Split, operands: Sequence[jax.Array], params: dict[str, Any]) -> list[jax.Array]:
    """The operands of the product of bfloat16."""
    lhs, rhs, sizes, offset = operands
    pair = [lhs, rhs]
    if params["form"].sums:
        pair[1 - split.side] = jnp.repeat(pair[1 - split.side], split.parts, axis=-2)
    pair[split.side] = _parts(pair[split.side], split.parts)
    return [*pair, jnp.clip(sizes, 0, lhs.shape[-2]) * split.parts, offset]


def joined(split: Split, out: jax.Array, params: dict[str, Any]) -> jax.Array:
    """The result, out of that of the product of bfloat16."""
    wanted = params["preferred_element_type"]
    if params["form"].sums:
        return out
    *batch, count, width = out.shape
    return jnp.sum(out.reshape(*batch, count // split.parts, split.parts, width), axis=-2).astype(wanted)


def _parts(x: jax.Array, count: int) -> jax.Array:
    """Rows of bfloat16 that add up to the rows of ``x``; of infinity and NaN the first has it, and the others are 0."""
    found, rest = [], x
    for _ in range(count):
        # Not a conversion and its inverse, which XLA takes for nothing where it may keep more bits than are asked for.
        part = lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7)
        found.append(part.astype(NARROW))
        rest = jnp.where(jnp.isfinite(part), rest - part, jnp.zeros((), WIDE))
    *batch, rows, width = x.shape
    return jnp.stack(found, axis=-2).reshape(*batch, rows * count, width)
