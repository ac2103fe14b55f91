"""Products of float32 by kernels of bfloat16.

A float32 number becomes two or three bfloat16 numbers, its parts: the first is the number rounded, and each further
part is the rest rounded. Two parts keep 16 of the number's 24 bits, three keep all. TF32, in which XLA multiplies
float32 by default, keeps 11. The smallest products of parts are left out: of the four products of two parts each, three
count.

In the form "rows", the parts of a row lie next to each other, as rows of the same group, and are multiplied by each
part of the weights. The results are added up. In "sums", all products of parts lie next to each other along the axis
that is contracted, and one product of bfloat16 adds them up.

Infinity and NaN have themselves as first part, and 0 as the others. The product of first parts is then right. Other
products may be NaN, as zero times infinity is; infinities and NaN in them are replaced by 0. Parts are those of half
the number: rounding may increase a first part, and neither the part nor a product of parts may pass the largest float32
before the result does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm import precision as prec
from jaxgemm.choice.xla_times import parts_microseconds
from jaxgemm.kernels import Device

WIDE, NARROW = np.dtype(np.float32), np.dtype(jnp.bfloat16)
#: The types of results.
RESULTS = frozenset({WIDE, NARROW, np.dtype(np.float16)})


class Parts(NamedTuple):
    """How many parts a number of each operand has; 1: it is bfloat16 already."""

    lhs: int
    rhs: int

    @property
    def with_rhs(self) -> list[int]:
        """How many parts of ``lhs``, the first ones, are multiplied by each part of ``rhs``."""
        return [min(self.lhs, max(self) - j) for j in range(self.rhs)]

    def __str__(self) -> str:
        return f"float32 as {max(self)} of bfloat16 each"


def of(operands: Sequence[Any], params: dict[str, Any]) -> Parts | None:
    """The parts of a ``jaxgemm_grouped`` of operands with these types; None if it is not made of parts.

    A result of another type, wider or of integers, is not made of parts. Nor is a product of two float32 operands at
    full precision: sums of so many products of parts would not keep it.
    """
    types = tuple(np.dtype(x.dtype) for x in operands[:2])
    full = prec.wants_full_fp32(params["precision"])
    known = WIDE in types and {*types} <= {WIDE, NARROW} and np.dtype(params["preferred_element_type"]) in RESULTS
    if not known or prec.is_algorithm(params["precision"]) or (full and types == (WIDE, WIDE)):
        return None
    return Parts(*(1 if dtype == NARROW else 3 if full else 2 for dtype in types))


def result_params(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the products of bfloat16, whose results are joined before they are rounded."""
    return dict(params, preferred_element_type=WIDE)


def types(counts: Parts, operands: Sequence[Any], params: dict[str, Any]) -> list[list[Any]]:
    """The types of the operands that :func:`products` makes of operands with these types."""
    lhs, rhs, *where = operands
    taken = counts.with_rhs
    if params["form"].sums:
        return [[*(_rows(x, sum(taken)) for x in (lhs, rhs)), *where]]
    return [[_rows(lhs, count), jax.ShapeDtypeStruct(rhs.shape, NARROW), *where] for count in taken]


def _rows(x: Any, times: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*x.shape[:-2], x.shape[-2] * times, x.shape[-1]), NARROW)


def products(counts: Parts, operands: Sequence[jax.Array], params: dict[str, Any]) -> list[list[jax.Array]]:
    """The operands of each product of bfloat16."""
    lhs, rhs, sizes, offset = operands
    x, y = _parts(lhs, counts.lhs), _parts(rhs, counts.rhs)
    sizes = jnp.clip(sizes, 0, lhs.shape[-2])
    taken = counts.with_rhs
    if not params["form"].sums:
        return [[_beside(x[:n]), part, sizes * n, offset] for n, part in zip(taken, y, strict=True)]
    # Here one product adds all pairs up, and nothing can be replaced afterwards. So infinity and NaN stay only in the
    # pair of first parts.
    pairs = [(i, j) for j, count in enumerate(taken) for i in range(count)]
    left = [_finite(x[i]) if j else x[i] for i, j in pairs]
    right = [_finite(y[j]) if i else y[j] for i, j in pairs]
    return [[_beside(left), _beside(right), sizes * len(pairs), offset]]


def joined(counts: Parts, results: Sequence[jax.Array], params: dict[str, Any]) -> jax.Array:
    """The result, joined from the results of the products of bfloat16."""
    doubled = 2.0 ** sum(count > 1 for count in counts)  # undoes the halving of each operand
    if params["form"].sums:
        return (doubled * results[0]).astype(params["preferred_element_type"])
    found = []
    for z, count in zip(results, counts.with_rhs, strict=True):
        *batch, rows, width = z.shape
        each = z.reshape(*batch, rows // count, count, width)
        found += [each[..., i, :] for i in range(count)]
    first, *others = found
    return (doubled * (first + sum(map(_finite, others)))).astype(params["preferred_element_type"])


def microseconds(counts: Parts, operands: Sequence[Any], params: dict[str, Any], device: Device) -> float:
    """The time that it should take to make the parts, and to add up the results of several products."""
    lhs, rhs = operands[:2]
    form, taken = params["form"], counts.with_rhs
    made = types(counts, operands, params)
    moved = _bytes(lhs) + sum(_bytes(given[0]) for given in made)
    if counts.rhs > 1 or form.sums:
        moved += _bytes(rhs) + sum(_bytes(given[1]) for given in made)
    results = *form.batch(operands), *form.shape(lhs.shape, rhs.shape)
    moved += prod(results) * WIDE.itemsize * (2 if form.sums else sum(taken) + 1)
    return parts_microseconds(moved, device)


def _bytes(x: Any) -> int:
    size: int = prod(x.shape) * np.dtype(x.dtype).itemsize
    return size


def _beside(arrays: list[jax.Array]) -> jax.Array:
    """Rows of arrays next to each other: the first row of each, then the second, and so on."""
    *batch, rows, width = arrays[0].shape
    return jnp.stack(arrays, axis=-2).reshape(*batch, rows * len(arrays), width)


def _finite(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(x), x, jnp.zeros((), x.dtype))


def _parts(x: jax.Array, count: int) -> list[jax.Array]:
    """Arrays of bfloat16 that add up to half of ``x``; if ``count`` is 1, ``x`` itself."""
    if count == 1:
        return [x]
    found, rest = [], 0.5 * x
    for _ in range(count):
        # XLA would remove a conversion and its inverse if it may keep more bits than a program asks for.
        part = lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7)
        found.append(part.astype(NARROW))
        rest = _finite(rest) - _finite(part)
    return found
