"""Products of groups of rows, each with weights of its own.

A grouped product has one of two forms. In "rows", each row of lhs is multiplied by its group's weights. In "sums", each
group has a product of its own, in which its rows are contracted. Both forms are bilinear, and their derivatives have
these forms again, so that derivatives of every order exist.

Operands are ``lhs, rhs, sizes, offset``; each may have a batch as a further first axis:

=======  ==========  ===========================================  ============
form     lhs         rhs                                          result
=======  ==========  ===========================================  ============
rows     (m, k)      (held, k, n), or (held, n, k) transposed     (m, n)
sums     (m, k)      (m, n)                                       (held, k, n)
=======  ==========  ===========================================  ============

``sizes`` is (groups,) and ``offset`` (1,), the group of the first weight, both of type ``groups.SIZES``.

Parameters, besides those of every kind:

    form           a Form
    out_sharding   as ``lax.dot_general`` has it, of the result; None if no type has shardings
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from jaxgemm import dtypes
from jaxgemm import precision as prec
from jaxgemm._jax_private import mapped_mesh_axes
from jaxgemm.choice import rules
from jaxgemm.choice.grouped import Beside, choose
from jaxgemm.choice.resolve import Choice
from jaxgemm.choice.xla_times import dense_microseconds, together
from jaxgemm.kernels import Device, UnsupportedError, device_for
from jaxgemm.problem import DimensionNumbers, Problem
from jaxgemm.products import dense, symbolic
from jaxgemm.products.arguments import for_cotangent, of_one_type
from jaxgemm.products.call import call
from jaxgemm.products.kind import Decision, Kind, Linear, Params, may_be_xlas, wanted
from jaxgemm.products.register import register
from jaxgemm.ragged import by_xla, partition, parts
from jaxgemm.ragged.form import Form, problem
from jaxgemm.ragged.report import describe


def _abstract(lhs: Any, rhs: Any, sizes: Any, offset: Any, **params: Any) -> Any:
    form: Form = params["form"]
    batches = form.batch([lhs, rhs, sizes, offset])
    spec, matrix = partition.asked(params["out_sharding"], len(batches) + len(form.shape(lhs.shape, rhs.shape)))
    # dot_general's result for one matrix of each operand says over which mesh axes the result varies or is sharded.
    x, y = (partition.retyped(v, v.shape[-2:], v.sharding.spec[-2:]) for v in (lhs, rhs))
    dims = ((0,), (0,)) if form.sums else ((1,), (1 if form.transposed else 0,))
    each = dict(params, dimension_numbers=(dims, ((), ())), out_sharding=matrix)
    out, effects = dense.DENSE.abstract(x, y, **each)
    spec = spec or partition.inferred(out, [lhs, rhs, sizes, offset], form)
    return partition.retyped(out, batches + form.shape(lhs.shape, rhs.shape), spec), effects


# --- Transformations ------------------------------------------------------------------------------------------

#: Promises of a product that the products of its derivatives do not keep.
_DERIVED = {"strict": False, "batch_invariant": False}


def _cotangents(side: int, terms: list[tuple[Any, Any, Any]], operands: Sequence[Any], params: Params) -> list[Any]:
    form: Form = params["form"]
    ((ct, known, unknown),) = terms
    where = operands[2:]
    if form.sums:  # either operand's cotangent: rows of the other times the cotangent of their group's sum
        x, y, derived = known, ct, Form(False, side == 0, form.held)
    elif side == 0:
        x, y, derived = ct, known, Form(False, not form.transposed, form.held)
    else:
        x, y = (ct, known) if form.transposed else (known, ct)
        derived = Form(True, False, form.held)
    if not parts.of((x, y), dict(params, form=derived)):
        x, y = for_cotangent(x, y)
    wanted, result = np.dtype(unknown.aval.dtype), params["preferred_element_type"]
    shared = len(unknown.aval.shape) == form.ranks[side] and bool(derived.batch([x, y, *where]))
    # If a whole batch has one operand, its cotangents are added up before they are rounded.
    kept = dtypes.summed(x.dtype, y.dtype, wanted) if shared else dtypes.of_cotangent(wanted, result)
    target = partition.cotangent(unknown.aval, jax.typeof(ct) if shared else None)
    bound = {"form": derived, "preferred_element_type": kept, "out_sharding": target}
    out = grouped_p.bind(x, y, *where, **(params | _DERIVED | bound))
    out = jnp.sum(out, axis=0) if shared else out
    return [out if out.dtype == wanted else out.astype(wanted)]


def _batch(axis_data: Any, args: Any, bdims: Any, params: Params) -> tuple[Any, int]:
    form: Form = params["form"]
    params = dict(params, out_sharding=partition.batched(params["out_sharding"], mapped_mesh_axes(axis_data)))
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, bdims, strict=True)]
    size = next(x.shape[0] for x, d in zip(moved, bdims, strict=True) if d is not None)
    plain = [x if d is None else jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x, d in zip(moved, bdims, strict=True)]
    inner = form.batch(plain)
    if inner:  # both axes become one; an operand with one of them is repeated along the other
        for i, (x, d, rank) in enumerate(zip(moved, bdims, form.ranks, strict=True)):
            has_inner = plain[i].ndim > rank if d is None else len(plain[i].shape) > rank
            if d is None and not has_inner:
                continue
            core = x.shape[x.ndim - rank :]
            spread = x.reshape((size if d is not None else 1, inner[0] if has_inner else 1, *core))
            moved[i] = jnp.broadcast_to(spread, (size, *inner, *core)).reshape((size * inner[0], *core))
    out = grouped_p.bind(*moved, **params)
    return (out.reshape((size, *inner, *out.shape[1:])) if inner else out), 0


# --- One device -----------------------------------------------------------------------------------------------


def decide(platform: str, operands: Sequence[Any], params: Params) -> Decision:
    """Who computes a ``jaxgemm_grouped`` of these operands, anything with shapes and types, on one device.

    Raises:
        UnsupportedError: the kernel asked for by name cannot compute it, or no batch-invariant kernel can.
    """
    counts = parts.of(operands, params)
    if counts is None:
        return _decide_whole(platform, operands, params)
    # A kernel that takes float32 as it is runs only if there is memory for the parts of all rows. That depends on m, so
    # a batch-invariant product is always made of parts.
    if 1 in counts or params["batch_invariant"]:
        return _decide_parts(platform, counts, operands, params)
    ways = [partial(_decide_whole, platform), partial(_decide_parts, platform, counts)]
    found, refusals = [], []
    for way in ways:
        try:
            found.append(way(operands, params))
        except UnsupportedError as refusal:
            refusals.append(refusal)
    if not found:
        raise refusals[0]
    return min(found, key=_expected)


def _expected(decision: Decision) -> float:
    """The microseconds that the chosen kernel expects; infinity without a kernel or a cost model."""
    choice = decision.choice
    return math.inf if choice.kernel is None or choice.ours is None else choice.ours


def _decide_whole(platform: str, operands: Sequence[Any], params: Params) -> Decision:
    """By a kernel that takes the operands as they are."""
    return decide_for(platform, operands, operands[3], params, lambda: [_problem(operands, params)])


def _decide_parts(platform: str, counts: parts.Parts, operands: Sequence[Any], params: Params) -> Decision:
    """By a kernel of bfloat16, which multiplies their parts."""
    narrow = parts.result_params(params)
    calls = parts.types(counts, operands, params)

    def beside(device: Device) -> tuple[float, float | None]:
        wide = [jax.ShapeDtypeStruct(x.shape, parts.WIDE) for x in operands[:2]]
        full = prec.wants_full_fp32(params["precision"])
        theirs = dense_microseconds(_problem([*wide, *operands[2:]], params), device, full=full)
        return parts.microseconds(counts, operands, params, device), theirs

    asked = lambda: [_problem(given, narrow) for given in calls]  # noqa: E731
    found = decide_for(platform, operands, operands[3], params, asked, beside)
    if found.choice.kernel is None:
        return found
    each = ", a launch for each part of rhs" if len(calls) > 1 else ""
    return replace(found, choice=replace(found.choice, why=f"{found.choice.why}; {counts}{each}"))


def decide_for(
    platform: str,
    operands: Sequence[Any],
    offset: Any,
    params: Params,
    problems_of: Callable[[], Sequence[Problem]],
    beside: Beside | None = None,
) -> Decision:
    """Who computes the problems of these operands, ``offset`` among them, one call each, on one device.

    ``problems_of`` is called only if every extent is known.

    Raises:
        UnsupportedError: as for :func:`decide`.
    """
    if unknown := symbolic.choose(operands, params):
        return Decision(unknown)
    if len(offset.shape) > 1:
        why = "each product of the batch has an offset of its own"
        if not may_be_xlas(params):
            raise UnsupportedError(f"{wanted(params)}: {why}")
        return Decision(Choice.xlas(rules.UNFIT, why))
    first, *further = problems_of()
    how = {name: params[name] for name in ("precision", "kernel", "batch_invariant")}
    return Decision(choose(first, device_for(platform), **how, further=further, beside=beside), first)


def _problem(operands: Sequence[Any], params: Params) -> Problem:
    lhs, rhs, sizes, _ = operands
    return problem(params["form"], lhs, rhs, sizes, params["preferred_element_type"])


def _launch(decision: Decision, *operands: jax.Array, **params: Any) -> jax.Array:
    """The product by the chosen kernel."""
    counts = parts.of(operands, params)
    if counts is None or decision.choice.arithmetic != "plain":
        return _call(decision.choice, operands, params)
    choices = [decision.choice, *decision.choice.further]
    calls = zip(choices, parts.products(counts, operands, params), strict=True)
    narrow = parts.result_params(params)
    return parts.joined(counts, [_call(choice, given, narrow) for choice, given in calls], params)


def _call(choice: Choice, operands: Sequence[jax.Array], params: Params) -> jax.Array:
    form = params["form"]
    shape = *form.batch(operands), *form.shape(operands[0].shape, operands[1].shape)
    return call(choice, _problem(operands, params), shape, operands)


def _by_xla(platform: str, count: int, *operands: jax.Array, **params: Any) -> jax.Array:
    form: Form = params["form"]
    operands = (*of_one_type(operands[0], operands[1]), *operands[2:])
    product = {name: params[name] for name in ("precision", "preferred_element_type")}
    product |= {"platform": platform, "out_sharding": None, "parts": count}
    product["batch"] = count == 1 and _as_batch(operands, form)
    if form.sums:
        function = partial(by_xla.sums, held=form.held, **product)
    else:
        function = partial(by_xla.rows, transposed=form.transposed, **product)
    return by_xla.over_batch(function, list(operands), form.ranks)


def _as_batch(operands: Sequence[jax.Array], form: Form) -> bool:
    """Whether XLA computes products of all rows by each group as one batch; never if extents are symbolic."""
    lhs, rhs = operands[:2]
    extents = prod(form.batch(operands)), form.held, *lhs.shape[-2:], form.shape(lhs.shape, rhs.shape)[-1]
    return all(isinstance(extent, int) for extent in extents) and together(*extents)


def _dimensions(types: Sequence[Any], params: Params) -> DimensionNumbers:
    batched = all(len(x.shape) > rank for x, rank in zip(types[:2], params["form"].ranks, strict=False))
    return ((), ()), (((0,), (0,)) if batched else ((), ()))


GROUPED = Kind(
    name="jaxgemm_grouped",
    abstract=_abstract,
    linear=Linear(
        pairs=lambda operands: [(operands[0], operands[1])],
        bind=lambda pairs, operands, params: [grouped_p.bind(*pair, *operands[2:], **params) for pair in pairs],
        derived=lambda params: params | _DERIVED,
        cotangents=_cotangents,
    ),
    batch=_batch,
    decide=decide,
    launch=_launch,
    by_xla=_by_xla,
    division=partition.division,
    dimensions=_dimensions,
    of_groups=True,
    describe=describe,
)
grouped_p: Primitive = register(GROUPED)
