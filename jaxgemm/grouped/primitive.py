"""The JAX primitive of grouped products, ``jaxgemm_grouped``, and its rules.

It has two forms. In "rows", each row of lhs is multiplied by its group's weights. In "sums", each group has a product
of its own, in which its rows are contracted. Either is bilinear, and its derivatives are of these forms again, so that
derivatives of every order exist.

Operands are ``lhs, rhs, sizes, offset``; each may have one axis more, the first, which is a batch:

=======  ==========  ===========================================  ============
form     lhs         rhs                                          result
=======  ==========  ===========================================  ============
rows     (m, k)      (held, k, n), or (held, n, k) transposed     (m, n)
sums     (m, k)      (m, n)                                       (held, k, n)
=======  ==========  ===========================================  ============

``sizes`` is (groups,) and ``offset`` (1,), the group of the first weight, both of type ``groups.SIZES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jaxgemm import dtypes
from jaxgemm._jax_private import (
    check_for_nans,
    device_count,
    explicit_axes,
    is_exported,
    is_partitioned,
    is_partly_manual,
    mapped_mesh_axes,
    needs_devices_while_lowering,
)
from jaxgemm.arguments import of_one_type
from jaxgemm.choice.xla_times import together
from jaxgemm.grouped import by_xla, partition, split
from jaxgemm.grouped.launch import decide, launch, wanted
from jaxgemm.kernels import UnsupportedError
from jaxgemm.primitive import tangent_of

grouped_p = Primitive("jaxgemm_grouped")
grouped_p.def_impl(partial(xla.apply_primitive, grouped_p))
check_for_nans(grouped_p)


@dataclass(frozen=True)
class Form:
    """What a grouped product computes; hashable, so that it can be a parameter of the primitive.

    Attributes:
        sums: whether it is of the form "sums".
        transposed: of the form "rows", whether k is the last axis of rhs.
        held: how many groups' weights there are: of rhs, or of the result.
    """

    sums: bool
    transposed: bool
    held: int

    @property
    def ranks(self) -> list[int]:
        """The ranks of the operands without a batch."""
        return [2, 2 if self.sums else 3, 1, 1]

    def batch(self, operands: Sequence[Any]) -> tuple[int, ...]:
        """The extent of the batch of operands with such shapes, as a shape: empty where there is none."""
        found = {x.shape[0] for x, rank in zip(operands, self.ranks, strict=True) if len(x.shape) > rank}
        assert len(found) < 2, found
        return tuple(found)

    def shape(self, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result without a batch."""
        if self.sums:
            return (self.held, lhs[-1], rhs[-1])
        return (lhs[-2], rhs[-2 if self.transposed else -1])


# Parameters of the primitive, which rules take and pass on:
#   form                                  a Form
#   precision, preferred_element_type     as dot_general_p has them
#   out_sharding                          as dot_general_p has it, of the result; None where shardings are no types
#   kernel                                as gemm_p has it
#   strict                                whether the kernel was asked for of this very product, not of one that it
#                                         is a derivative of
#   batch_invariant                       as gemm_p has it; derivatives do not


@grouped_p.def_effectful_abstract_eval
def _abstract_eval(lhs: Any, rhs: Any, sizes: Any, offset: Any, **params: Any) -> Any:
    form: Form = params["form"]
    batches = form.batch([lhs, rhs, sizes, offset])
    spec, matrix = partition.asked(params["out_sharding"], len(batches) + len(form.shape(lhs.shape, rhs.shape)))
    # As dot_general's result of a matrix of each, so that it varies over mesh axes, and is sharded, as that is.
    x, y = (partition.retyped(v, v.shape[-2:], v.sharding.spec[-2:]) for v in (lhs, rhs))
    dims = ((0,), (0,)) if form.sums else ((1,), (1 if form.transposed else 0,))
    out, effects = lax.dot_general_p.abstract_eval(
        x,
        y,
        dimension_numbers=(dims, ((), ())),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
        out_sharding=matrix,
    )
    spec = spec or partition.inferred(out, [lhs, rhs, sizes, offset], form)
    return partition.retyped(out, batches + form.shape(lhs.shape, rhs.shape), spec), effects


# --- Differentiation ------------------------------------------------------------------------------------------


#: What a derivative's products do not promise, though the product did.
DERIVED = {"strict": False, "batch_invariant": False}


def _jvp_rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    lhs, rhs, *where = primals
    dlhs, drhs = tangents[:2]
    out = grouped_p.bind(*primals, **params)
    derived = params | DERIVED
    terms = []
    if type(dlhs) is not ad.Zero:
        terms.append(grouped_p.bind(dlhs, rhs, *where, **derived))
    if type(drhs) is not ad.Zero:
        terms.append(grouped_p.bind(lhs, drhs, *where, **derived))
    return out, tangent_of(out, terms)


ad.primitive_jvps[grouped_p] = _jvp_rule


def _transpose_rule(ct: Any, lhs: Any, rhs: Any, sizes: Any, offset: Any, **params: Any) -> list[Any]:
    form: Form = params["form"]
    unknown = lhs if ad.is_undefined_primal(lhs) else rhs
    if ad.is_undefined_primal(lhs) == ad.is_undefined_primal(rhs):
        raise NotImplementedError("jaxgemm: a grouped product is linear in one operand at a time")
    place = 0 if unknown is lhs else 1
    result: list[Any] = [None] * 4
    if type(ct) is ad.Zero:
        result[place] = ad.Zero(unknown.aval)
        return result
    known = rhs if place == 0 else lhs
    if form.sums:  # rows of lhs are those of rhs times the cotangent of their group's sum, and the other way round
        x, y, derived = known, ct, Form(False, place == 0, form.held)
    elif place == 0:
        x, y, derived = ct, known, Form(False, not form.transposed, form.held)
    else:
        x, y = (ct, known) if form.transposed else (known, ct)
        derived = Form(True, False, form.held)
    if not split.of((x, y), dict(params, form=derived)):
        x, y = of_one_type(x, y)
    wanted = np.dtype(unknown.aval.dtype)
    shared = len(unknown.aval.shape) == form.ranks[place] and bool(derived.batch([x, y, sizes, offset]))
    # One operand for all of a batch: its parts are added up before they are rounded.
    kept = dtypes.summed(x.dtype, y.dtype, wanted) if shared else wanted
    target = partition.cotangent(unknown.aval, jax.typeof(ct) if shared else None)
    bound = {"form": derived, "preferred_element_type": kept, "out_sharding": target}
    out = grouped_p.bind(x, y, sizes, offset, **(params | DERIVED | bound))
    result[place] = jnp.sum(out, axis=0).astype(wanted) if shared else out
    return result


ad.primitive_transposes[grouped_p] = _transpose_rule


# --- vmap -----------------------------------------------------------------------------------------------------


def _batch_rule(axis_data: Any, args: Any, bdims: Any, **params: Any) -> tuple[Any, int | None]:
    if all(d is None for d in bdims):
        return grouped_p.bind(*args, **params), None
    form: Form = params["form"]
    params = dict(params, out_sharding=partition.batched(params["out_sharding"], mapped_mesh_axes(axis_data)))
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, bdims, strict=True)]
    size = next(x.shape[0] for x, d in zip(moved, bdims, strict=True) if d is not None)
    plain = [x if d is None else jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x, d in zip(moved, bdims, strict=True)]
    inner = form.batch(plain)
    if inner:  # both axes become one; what has one of them alone is repeated along the other
        for i, (x, d, rank) in enumerate(zip(moved, bdims, form.ranks, strict=True)):
            has_inner = plain[i].ndim > rank if d is None else len(plain[i].shape) > rank
            if d is None and not has_inner:
                continue
            core = x.shape[x.ndim - rank :]
            spread = x.reshape((size if d is not None else 1, inner[0] if has_inner else 1, *core))
            moved[i] = jnp.broadcast_to(spread, (size, *inner, *core)).reshape((size * inner[0], *core))
    out = grouped_p.bind(*moved, **params)
    return (out.reshape((size, *inner, *out.shape[1:])) if inner else out), 0


batching.fancy_primitive_batchers[grouped_p] = _batch_rule  # which is given the axis, and so its sharding


# --- Lowering -------------------------------------------------------------------------------------------------


def _compute(platform: str, parts: int, *operands: jax.Array, **params: Any) -> jax.Array:
    form: Form = params["form"]
    if parts == 1:
        choice = decide(platform, operands, params)
        if choice.kernel is not None:
            return launch(choice, operands, params)
    operands = (*of_one_type(operands[0], operands[1]), *operands[2:])
    product = {name: params[name] for name in ("precision", "preferred_element_type")}
    product |= {"platform": platform, "out_sharding": None, "parts": parts}
    if form.sums:
        function = partial(by_xla.sums, held=form.held, **product)
    else:
        batch = parts == 1 and _as_batch(operands, form)
        function = partial(by_xla.rows, transposed=form.transposed, batch=batch, **product)
    return by_xla.over_batch(function, list(operands), form.ranks)


def _as_batch(operands: Sequence[jax.Array], form: Form) -> bool:
    """Whether XLA computes a product of rows as one batch; where extents are symbols, it is not known."""
    lhs, rhs = operands[:2]
    extents = prod(form.batch(operands)), form.held, *lhs.shape[-2:], form.shape(lhs.shape, rhs.shape)[-1]
    return all(isinstance(extent, int) for extent in extents) and together(*extents)


def _rule(platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    decide(platform, ctx.avals_in, params)  # its refusal
    divided = partition.division(partial(_compute, platform, 1), ctx.avals_in, **params)
    if explicit_axes((out := ctx.avals_out[0]).sharding.mesh):
        function: Any = partial(divided.explicit, out)
    elif is_partitioned(ctx) and not is_exported(ctx):
        function = divided.automatic
    else:
        # XLA cannot divide a kernel's call. Inside of a shard_map over all of the mesh there is nothing to divide.
        parts = device_count(ctx) if is_partitioned(ctx) or is_partly_manual(ctx) else 1
        if parts > 1:
            _check_divisible(params)
        function = partial(_compute, platform, parts, **params)
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def _check_divisible(params: dict[str, Any]) -> None:
    """UnsupportedError if a kernel of ours is asked for where XLA divides the program, and no rule of ours is asked."""
    if params["strict"] and (params["batch_invariant"] or params["kernel"] not in ("auto", "xla")):
        raise UnsupportedError(
            f"{wanted(params)}: XLA divides this program over several devices by itself, as it is exported or inside "
            "of a shard_map over some of the mesh's axes, and it cannot divide a kernel's call; map over all axes, or "
            "leave the product to kernel 'auto'"
        )


for _platform in ("cuda", "cpu"):
    mlir.register_lowering(grouped_p, partial(_rule, _platform), platform=_platform)
mlir.register_lowering(grouped_p, partial(_rule, "other"))
needs_devices_while_lowering(grouped_p)
