"""The JAX primitive of grouped products with what follows them, ``jaxgemm_grouped_fused``.

Where one launch of a kernel computes all of it, it is that launch, on each of several devices too. Everywhere else, and
for derivatives, it is composed of ``jaxgemm_grouped`` and jnp code, so that JAX can do with it whatever it can do with
those.

Operands are ``lhs (m, k), w (held, k, n)[, w_up (held, k, n)], sizes (groups,), offset (1,)[, bias (held, n)]``. All
but the last two may have one axis more, the first, which is a batch. The result is (m, n): ``activation(lhs w +
bias)``, or ``activation(lhs w) * (lhs w_up)`` if it is gated. Rows that have no group, or one whose weights are not
held, are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import PartitionSpec

from jaxgemm import dtypes
from jaxgemm._jax_private import (
    check_for_nans,
    explicit_axes,
    is_exported,
    is_partitioned,
    is_partly_manual,
    mapped_mesh_axes,
    needs_devices_while_lowering,
)
from jaxgemm.choice import rules
from jaxgemm.choice.select import Choice
from jaxgemm.epilogue import Epilogue, composed_type
from jaxgemm.grouped import groups, partition
from jaxgemm.grouped import launch as grouped_launch
from jaxgemm.grouped.composed import finish
from jaxgemm.grouped.primitive import Form, grouped_p
from jaxgemm.grouped.problem import problem
from jaxgemm.kernels import UnsupportedError
from jaxgemm.partition import Assignment, Division, vary_alike
from jaxgemm.primitive import call
from jaxgemm.problem import Problem

grouped_fused_p = Primitive("jaxgemm_grouped_fused")
grouped_fused_p.def_impl(partial(xla.apply_primitive, grouped_fused_p))
check_for_nans(grouped_fused_p)

# Parameters of the primitive:
#   activation                                            a name, or None
#   gated, has_bias                                       which operands there are; a gated product has no bias
#   precision, preferred_element_type, out_sharding,
#   kernel, batch_invariant, strict                       as grouped_p has them


class Operands(NamedTuple):
    """The operands by what they are: arrays, or anything with shapes and types."""

    lhs: Any
    weights: Sequence[Any]
    where: Sequence[Any]
    bias: Any

    @property
    def held(self) -> int:
        """How many groups' weights there are."""
        held: int = self.weights[0].shape[-3]
        return held

    @property
    def of_first(self) -> tuple[Any, ...]:
        """The operands of the first product alone."""
        return (self.lhs, self.weights[0], *self.where)


def split(operands: Sequence[Any], params: dict[str, Any]) -> Operands:
    """The operands of the primitive."""
    lhs, *rest = operands
    weights = rest[: 1 + params["gated"]]
    sizes, offset, *bias = rest[len(weights) :]
    return Operands(lhs, weights, (sizes, offset), bias[0] if params["has_bias"] else None)


def epilogue(params: dict[str, Any]) -> Epilogue:
    """What follows the product, or of a gated pair the first one."""
    return Epilogue(has_bias=params["has_bias"], activation=params["activation"])


def of_product(found: Operands, params: dict[str, Any], dtype: np.dtype) -> dict[str, Any]:
    """The parameters of either product alone, in a type of its own."""
    shared = {name: value for name, value in params.items() if name not in ("activation", "gated", "has_bias")}
    return shared | {"form": Form(False, False, found.held), "preferred_element_type": np.dtype(dtype)}


@grouped_fused_p.def_effectful_abstract_eval
def _abstract_eval(*operands: Any, **params: Any) -> Any:
    found = split(operands, params)
    return grouped_p.abstract_eval(*found.of_first, **of_product(found, params, params["preferred_element_type"]))


def alone(found: Operands, params: dict[str, Any], *, narrow: bool = False) -> dict[str, Any]:
    """The parameters of either product where it is composed with what follows; see :func:`compose`."""
    out = np.dtype(params["preferred_element_type"])
    by_xla = narrow or (params["kernel"] in ("auto", "xla") and not params["batch_invariant"])
    extra = [] if found.bias is None else [found.bias]
    between = composed_type(epilogue(params), [found.lhs, found.weights[0], *extra], out, by_xla=by_xla)
    return of_product(found, params, between)


def _products(found: Operands, given: dict[str, Any]) -> list[jax.Array]:
    return [grouped_p.bind(*vary_alike(found.lhs, w, *found.where), **given) for w in found.weights]


def _finish(products: Sequence[jax.Array], found: Operands, params: dict[str, Any], held: int) -> jax.Array:
    out = np.dtype(params["preferred_element_type"])
    return finish(products, found.where, found.bias, held=held, activation=params["activation"], out=out)


def compose(*operands: jax.Array, narrow: bool = False, **params: Any) -> jax.Array:
    """The same, composed of grouped products; with ``narrow`` these have the types of XLA's, whoever computes them.

    Products are narrow where they are kept for a derivative, as they would be in jnp: wider, they would take twice the
    memory, and make the products of the backward pass as wide. So are those of which several devices add up parts.
    """
    found = split(operands, params)
    return _finish(_products(found, alone(found, params, narrow=narrow)), found, params, found.held)


# --- Transformations ------------------------------------------------------------------------------------------


def _batch_rule(axis_data: Any, args: Any, bdims: Any, **params: Any) -> tuple[Any, int | None]:
    if all(d is None for d in bdims):
        return grouped_fused_p.bind(*args, **params), None
    args = vary_alike(*args)  # what is mapped may vary along the axis of spmd_axis_name
    mapped = split(bdims, params)
    weights = {d is None for d in mapped.weights}
    fits = len(weights) == 1 and mapped.where[1] is None and mapped.bias is None
    if not fits or _has_batch(args, bdims, params):
        return jax.vmap(partial(compose, **params), in_axes=tuple(bdims))(*args), 0
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, bdims, strict=True)]
    target = partition.batched(params["out_sharding"], mapped_mesh_axes(axis_data))
    return grouped_fused_p.bind(*moved, **dict(params, out_sharding=target)), 0


def _has_batch(args: Sequence[Any], bdims: Sequence[int | None], params: dict[str, Any]) -> bool:
    """Whether the operands have a batch besides the axis that is mapped."""
    return any(x.ndim - (d is not None) > rank for x, d, rank in zip(args, bdims, _ranks(params), strict=True))


def _ranks(params: dict[str, Any]) -> list[int]:
    """The ranks of the operands without a batch."""
    return [2, *[3] * (1 + params["gated"]), 1, 1, *[2] * params["has_bias"]]


batching.fancy_primitive_batchers[grouped_fused_p] = _batch_rule


def _jvp_rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def function(*given: jax.Array) -> jax.Array:
        operands = list(primals)
        for i, value in zip(moving, given, strict=True):
            operands[i] = value
        return compose(*operands, narrow=True, **params)

    return jax.jvp(function, [primals[i] for i in moving], [tangents[i] for i in moving])


ad.primitive_jvps[grouped_fused_p] = _jvp_rule


# --- Several devices ------------------------------------------------------------------------------------------


def _division(local: Any, operands: Sequence[Any], params: dict[str, Any]) -> Division:
    """How the operands, or those with such types, are divided; ``local`` computes one device's."""
    found = split(operands, params)
    first = partition.division(local, found.of_first, **of_product(found, params, params["preferred_element_type"]))
    lhs, weights, *where = first.names
    held, columns = weights[-3], weights[-1]
    names = [lhs, *[weights] * len(found.weights), *where, *[(held, columns)] * params["has_bias"]]
    params = dict(params, out_sharding=None)

    def specs(plan: Assignment) -> list[PartitionSpec]:
        given = [plan.spec(n) for n in names]
        if params["has_bias"] and _contracts(plan):  # it is added to the sum, whatever group a row is of
            given[-1] = PartitionSpec(None, plan.out_spec()[-1])
        return given

    return replace(
        first,
        names=names,
        specs=specs,
        whole=partial(local, **params),
        shards=partial(_on_shards, local, found.lhs.shape[-2], params),
    )


def _contracts(plan: Assignment) -> bool:
    """Whether devices have parts of sums, which are to be added up before anything follows them."""
    return bool(plan.axes.get("k0"))


def _on_shards(local: Any, rows: int, params: dict[str, Any], plan: Assignment, *operands: jax.Array) -> jax.Array:
    """The result's shard on one device. ``rows`` is how many there are on all devices."""
    found = split(operands, params)
    lhs, (sizes, offset) = found.lhs, found.where
    own = partition.own_groups(plan, sizes, offset, rows=rows, axis="m0", count=lhs.shape[-2], held=found.held)
    extra = [] if found.bias is None else [found.bias]
    if not _contracts(plan):  # rows of other devices' groups are zeros
        return plan.added_up(local(*vary_alike(lhs, *found.weights, *own, *extra), **params))
    sums = [plan.added_up(z) for z in _products(found._replace(where=own), alone(found, params, narrow=True))]
    if axes := plan.out_axes()[-2]:
        count = sums[0].shape[-2]
        sizes = groups.portion(sizes, rows, lax.axis_index(axes) * count, count)
    held = found.held * lax.axis_size(plan.axes.get("g0", ()))
    return _finish(sums, found._replace(where=(sizes, offset)), params, held)


# --- Lowering -------------------------------------------------------------------------------------------------


def decide(platform: str, operands: Sequence[Any], params: dict[str, Any]) -> Choice:
    """The kernel that computes all of it in one launch on one device, or no kernel where it is composed, and why.

    One that is asked for by name, and cannot, is asked for the products alone, which refuse where it cannot either.
    """
    found = split(operands, params)
    out = np.dtype(params["preferred_element_type"])
    if found.bias is not None and dtypes.common(found.bias.dtype, out) != out:
        return Choice(None, (), 0, f"a bias of {found.bias.dtype} is wider than the result", rule=rules.UNFIT.name)
    try:
        return grouped_launch.chosen(platform, operands, found.where[1], params, lambda: problem_of(operands, params))
    except UnsupportedError as refusal:
        return Choice(None, (), 0, str(refusal), rule=rules.UNFIT.name)


def problem_of(operands: Sequence[Any], params: dict[str, Any]) -> Problem:
    """What a kernel is asked for."""
    found = split(operands, params)
    return problem(
        found.lhs,
        found.weights[0],
        found.where[0],
        sums=False,
        transposed=False,
        held=found.held,
        out=params["preferred_element_type"],
        epilogue=epilogue(params),
        gated=params["gated"],
    )


def _compute(platform: str, *operands: jax.Array, **params: Any) -> jax.Array:
    """All of it on one device: by one call of a kernel, or composed."""
    choice = decide(platform, operands, params)
    return compose(*operands, **params) if choice.kernel is None else launch(choice, *operands, **params)


def launch(choice: Choice, *operands: jax.Array, **params: Any) -> jax.Array:
    """All of it by one call of the chosen kernel."""
    found = split(operands, params)
    batches = {x.shape[0] for x, rank in zip(operands, _ranks(params), strict=True) if x.ndim > rank}
    extra = [] if found.bias is None else [found.bias.astype(params["preferred_element_type"])]
    shape = (*batches, found.lhs.shape[-2], found.weights[0].shape[-1])
    given = [found.lhs, *found.weights, *found.where, *extra]
    return call(choice, problem_of(operands, params), shape, given)


def _rule(platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    found, out = split(ctx.avals_in, params), ctx.avals_out[0]
    if decide(platform, ctx.avals_in, params).kernel is None:
        grouped_launch.decide(platform, found.of_first, alone(found, params))  # its refusal
    divided = _division(partial(_compute, platform), ctx.avals_in, params)
    if explicit_axes(out.sharding.mesh):
        function: Any = partial(divided.explicit, out)
    elif is_partly_manual(ctx) or (is_partitioned(ctx) and is_exported(ctx)):
        function = partial(compose, **params)  # XLA divides what it can, and refuses what it cannot
    else:
        function = divided.automatic if is_partitioned(ctx) else divided.whole
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


for _platform in ("cuda", "cpu"):
    mlir.register_lowering(grouped_fused_p, partial(_rule, _platform), platform=_platform)
mlir.register_lowering(grouped_fused_p, partial(_rule, "other"))
needs_devices_while_lowering(grouped_fused_p)
