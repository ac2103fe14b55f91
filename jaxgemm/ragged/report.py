"""What ``explain`` says of a grouped product: its shape in words, and the least time that it can take."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from jaxgemm import precision as prec
from jaxgemm import roofline
from jaxgemm.dtypes import ELEMENT_TYPES
from jaxgemm.epilogue import Epilogue
from jaxgemm.products.kind import Decision, Params
from jaxgemm.products.report import BOTH, Product, operands_of
from jaxgemm.ragged import parts
from jaxgemm.ragged.form import Form


def describe(
    avals: Sequence[Any], params: Params, decision: Decision, limits: roofline.DeviceLimits | None, **_: Any
) -> list[Product]:
    """A product of groups, with what follows it, or both products of a gated pair."""
    weights = 1 + params.get("gated", False)
    lhs, rhs = avals[:2]
    sizes, offset = avals[1 + weights : 3 + weights]
    form: Form = params.get("form") or Form(False, False, rhs.shape[-3])
    (m, k), n = lhs.shape[-2:], form.shape(lhs.shape, rhs.shape)[-1]
    given = (lhs, rhs, sizes, offset)
    batch = next(iter(form.batch(given)), None)
    groups = sizes.shape[-1]
    text = f"{'sums' if form.sums else 'rows'} of {groups} groups"
    if form.held != groups:
        text += f", {form.held} of them held"
    text += f": m {k}, n {n}, k {m} in all" if form.sums else f": m {m}, n {n}, k {k}"
    if batch is not None:
        text += f", batch {batch}"
    if not form.sums:
        text += f", layout {'NT' if form.transposed else 'NN'}"
    result = np.dtype(params["preferred_element_type"])
    floor = None if limits is None else _floor(lhs, rhs, result, batch or 1, weights, form, params["precision"], limits)
    operands = operands_of(avals[: 1 + weights])
    after = Epilogue(has_bias=params.get("has_bias", False), activation=params.get("activation"))
    both = BOTH if weights == 2 else ""
    return [Product(operands, result.name, decision, after, params["precision"], floor, gated=both, groups=text)]


def _floor(
    lhs: Any,
    rhs: Any,
    result: np.dtype,
    batch: int,
    weights: int,
    form: Form,
    precision: prec.Precision,
    limits: roofline.DeviceLimits,
) -> roofline.Floor | None:
    """The least time, if each row has a held group, and weights are read of no more groups than there are rows."""
    names = np.dtype(lhs.dtype).name, np.dtype(rhs.dtype).name, result.name
    known = all(isinstance(extent, int) for extent in (*lhs.shape, *rhs.shape))
    if not known or not all(name in ELEMENT_TYPES for name in names):
        return None
    rows, (m, k) = prod(lhs.shape[:-1]), lhs.shape[-2:]
    out = form.shape(lhs.shape, rhs.shape)
    read = prod(rhs.shape)
    if not form.sums:
        # Weights without a batch serve the rows of the whole batch.
        read = read // max(form.held, 1) * min(form.held, m if len(rhs.shape) > 3 else rows)
    elements = prod(lhs.shape), weights * read, batch * prod(out)
    found = parts.of((lhs, rhs), {"form": form, "precision": precision, "preferred_element_type": result})
    return roofline.least(
        2.0 * weights * batch * m * k * out[-1],
        sum(count * ELEMENT_TYPES[name].bytes for count, name in zip(elements, names, strict=True)),
        limits=limits,
        a=parts.NARROW.name if found and 1 in found else names[0],  # two float32 operands would be faster in TF32
        precision="highest" if prec.wants_full_fp32(precision) else "default",
    )
