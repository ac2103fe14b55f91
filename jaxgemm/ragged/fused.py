"""Products of groups with what follows them: a bias and an activation, or a gated pair.

If one launch of a kernel can compute the whole, the product is this launch, also on each of several devices. Otherwise,
and for derivatives, it is composed of ``jaxgemm_grouped`` and jnp code, which JAX can transform in every way.

Operands are ``lhs (m, k), w (held, k, n)[, w_up (held, k, n)], sizes (groups,), offset (1,)[, bias (held, n)]``. All
but offset and bias may have a batch as a further first axis. The result is (m, n): ``activation(lhs w + bias)``, or
``activation(lhs w) * (lhs w_up)`` if it is gated. Rows without a group, or with a group whose weights are not held, are
zeros.

Parameters, besides those of every kind and ``out_sharding``:

    activation        a name, or None
    gated, has_bias   which operands there are; a gated product has no bias
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm import dtypes
from jaxgemm._jax_private import explicit_axes, mapped_mesh_axes
from jaxgemm.choice import rules
from jaxgemm.choice.resolve import Choice
from jaxgemm.epilogue import Epilogue, apply, composed_type, gated
from jaxgemm.kernels import UnsupportedError
from jaxgemm.problem import Problem
from jaxgemm.products import derivatives, report
from jaxgemm.products.call import call
from jaxgemm.products.derivatives import Series, Terms, series_of
from jaxgemm.products.kind import Decision, Kind, Params, may_be_xlas
from jaxgemm.products.register import register
from jaxgemm.ragged import arguments, by_xla, groups, partition
from jaxgemm.ragged.form import Form, problem
from jaxgemm.ragged.product import GROUPED, decide_for, grouped_p
from jaxgemm.ragged.report import describe
from jaxgemm.sharding.partition import Assignment, Division, vary_alike


class Operands(NamedTuple):
    """The operands by name: arrays, or anything with shapes and types."""

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


def _named(operands: Sequence[Any], params: Params) -> Operands:
    """The operands of the primitive."""
    lhs, *rest = operands
    weights = rest[: 1 + params["gated"]]
    sizes, offset, *bias = rest[len(weights) :]
    return Operands(lhs, weights, (sizes, offset), bias[0] if params["has_bias"] else None)


def _epilogue(params: Params) -> Epilogue:
    """What follows the product; in a gated pair, the first product."""
    return Epilogue(has_bias=params["has_bias"], activation=params["activation"])


def _of_product(found: Operands, params: Params, dtype: np.dtype) -> Params:
    """The parameters of either product alone, with a result of type ``dtype``."""
    shared = {name: value for name, value in params.items() if name not in ("activation", "gated", "has_bias")}
    return shared | {"form": Form(False, False, found.held), "preferred_element_type": np.dtype(dtype)}


def _abstract(*operands: Any, **params: Any) -> Any:
    found = _named(operands, params)
    return GROUPED.abstract(*found.of_first, **_of_product(found, params, params["preferred_element_type"]))


def _alone(found: Operands, params: Params, *, narrow: bool = False) -> Params:
    """The parameters of either product if jnp code follows it; see :func:`compose`."""
    out = np.dtype(params["preferred_element_type"])
    by_xla = narrow or may_be_xlas(params)
    extra = [] if found.bias is None else [found.bias]
    between = composed_type(_epilogue(params), [found.lhs, found.weights[0], *extra], out, by_xla=by_xla)
    return _of_product(found, params, between)


def _products(found: Operands, given: Params) -> list[jax.Array]:
    return [grouped_p.bind(*vary_alike(found.lhs, w, *found.where), **given) for w in found.weights]


def _finish(products: Sequence[jax.Array], found: Operands, params: Params, held: int) -> jax.Array:
    """The result, from the product or both products of a gated pair, for weights of ``held`` groups."""
    z, *up = products
    after, out = _epilogue(params), np.dtype(params["preferred_element_type"])
    if up:  # rows without a group are activation(0) * 0
        return gated(after.activation, z, up[0], out)

    def of(z: jax.Array, sizes: jax.Array, offset: jax.Array, bias: jax.Array | None) -> jax.Array:
        rows = None if bias is None else _of_rows(bias.astype(z.dtype), sizes, offset, _placed(z))
        has = groups.owner(sizes, offset, z.shape[0], held) < held
        # Rows without a group have the activation of zeros here, which is finite.
        return jnp.where(has[:, None], apply(after, z, None, rows, out), jnp.zeros((), out))

    return by_xla.over_batch(of, [z, *found.where, found.bias], [2, 1, 1, 2])


#: The number of rows, and the sharding of their product, if shardings are part of types.
_Rows = tuple[int, NamedSharding | None]


def _placed(z: jax.Array) -> _Rows:
    sharding = jax.typeof(z).sharding
    return z.shape[0], sharding if explicit_axes(sharding.mesh) else None


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _of_rows(bias: jax.Array, sizes: jax.Array, offset: jax.Array, rows: _Rows) -> jax.Array:
    """The bias (held, n) of each row's group; zeros for rows that have none.

    The derivative is a grouped product, whose transpose adds the rows of each group up in the accumulator's type, in
    one order. The transpose of a gather would be a scatter that adds in the type of the bias, in any order.
    """
    count, target = rows
    if target is not None:
        bias = jax.sharding.reshard(bias, NamedSharding(target.mesh, PartitionSpec(None, target.spec[1])))
    mine = groups.owner(sizes, offset, count, bias.shape[0])
    # The last row is for rows without a group.
    return jnp.pad(bias, ((0, 1), (0, 0))).at[mine].get(mode="promise_in_bounds", out_sharding=target)


@_of_rows.defjvp
def _of_rows_jvp(rows: _Rows, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    bias, *where = primals
    count, target = rows
    ones = jnp.ones((count, 1), bias.dtype)
    if target is not None:
        ones = jax.sharding.reshard(ones, NamedSharding(target.mesh, PartitionSpec(target.spec[0], None)))
    derived = arguments.parameters(
        precision=lax.Precision.HIGHEST, out=bias.dtype, kernel="auto", out_sharding=target, strict=False
    )
    operands = vary_alike(ones, jnp.expand_dims(tangents[0], 1), *where)
    tangent = grouped_p.bind(*operands, form=Form(False, False, bias.shape[0]), **derived)
    return _of_rows(*primals, rows), tangent


def compose(*operands: jax.Array, narrow: bool = False, **params: Any) -> jax.Array:
    """The same result, composed of grouped products.

    With ``narrow`` the products have the types that XLA's would have, whoever computes them; see ``Kind.narrow``.
    """
    found = _named(operands, params)
    return _finish(_products(found, _alone(found, params, narrow=narrow)), found, params, found.held)


# --- Transformations ------------------------------------------------------------------------------------------


def _batch(axis_data: Any, args: Any, bdims: Any, params: Params) -> tuple[Any, int] | None:
    mapped = _named(bdims, params)
    weights = {d is None for d in mapped.weights}
    fits = len(weights) == 1 and mapped.where[1] is None and mapped.bias is None
    if not fits or _has_batch(args, bdims, params):
        return None
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, bdims, strict=True)]
    target = partition.batched(params["out_sharding"], mapped_mesh_axes(axis_data))
    return grouped_fused_p.bind(*moved, **dict(params, out_sharding=target)), 0


def _has_batch(args: Sequence[Any], bdims: Sequence[int | None], params: Params) -> bool:
    """Whether the operands have a batch besides the axis that is mapped."""
    return any(x.ndim - (d is not None) > rank for x, d, rank in zip(args, bdims, _ranks(params), strict=True))


def _ranks(params: Params) -> list[int]:
    """The ranks of the operands without a batch."""
    return [2, *[3] * (1 + params["gated"]), 1, 1, *[2] * params["has_bias"]]


def _taylor(primals: Sequence[jax.Array], series: Sequence[Terms], **params: Any) -> Series:
    found, moved = _named(primals, params), _named(series, params)
    given = _alone(found, params, narrow=True)
    held, out = found.held, np.dtype(params["preferred_element_type"])
    bilinear = GROUPED.linear
    assert bilinear is not None

    def of_each_row(function: Callable[..., jax.Array], *operands: jax.Array) -> jax.Array:
        return by_xla.over_batch(function, [*found.where, *operands], [1, 1, *[2] * len(operands)])

    def bias(value: jax.Array) -> jax.Array:
        rows = (found.lhs.shape[-2], None)
        return of_each_row(lambda sizes, offset, b: _of_rows(b, sizes, offset, rows), value.astype(z[0].dtype))

    def masked(value: jax.Array) -> jax.Array:
        has = of_each_row(lambda sizes, offset: groups.owner(sizes, offset, found.lhs.shape[-2], held) < held)
        return jnp.where(has[..., None], value.astype(out), 0)

    z, *up = (
        derivatives.taylor(grouped_p, bilinear, (found.lhs, w, *found.where), (moved.lhs, terms, *moved.where), **given)
        for w, terms in zip(found.weights, moved.weights, strict=True)
    )
    if found.bias is not None:
        z = z[0] + bias(found.bias), [term + bias(b) for term, b in zip(z[1], moved.bias, strict=True)]
    z = derivatives.activated(params["activation"], z[0].dtype if up else out, z)
    if up:
        z = series_of(jnp.multiply, z, up[0])
    return masked(z[0]), [masked(term) for term in z[1]]


# --- Several devices ------------------------------------------------------------------------------------------


def _division(local: Any, operands: Sequence[Any], params: Params, **_: Any) -> Division:
    found = _named(operands, params)
    first = partition.division(local, found.of_first, _of_product(found, params, params["preferred_element_type"]))
    lhs, weights, *where = first.names
    held, columns = weights[-3], weights[-1]
    names = [lhs, *[weights] * len(found.weights), *where, *[(held, columns)] * params["has_bias"]]
    params = dict(params, out_sharding=None)

    def specs(plan: Assignment) -> list[PartitionSpec]:
        given = [plan.spec(n) for n in names]
        if params["has_bias"] and _contracts(plan):  # added to whole sums, the bias needs every group's row
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
    """Whether devices have parts of sums, which must be added up before the epilogue."""
    return bool(plan.axes.get("k0"))


def _on_shards(local: Any, rows: int, params: Params, plan: Assignment, *operands: jax.Array) -> jax.Array:
    """The result's shard on one device. ``rows``: the number of rows on all devices."""
    found = _named(operands, params)
    lhs, (sizes, offset) = found.lhs, found.where
    own = partition.own_groups(plan, sizes, offset, rows=rows, axis="m0", count=lhs.shape[-2], held=found.held)
    extra = [] if found.bias is None else [found.bias]
    if not _contracts(plan):  # rows of other devices' groups are zeros
        return plan.added_up(local(*vary_alike(lhs, *found.weights, *own, *extra), **params))
    sums = [plan.added_up(z) for z in _products(found._replace(where=own), _alone(found, params, narrow=True))]
    if axes := plan.out_axes()[-2]:
        count = sums[0].shape[-2]
        sizes = groups.portion(sizes, rows, lax.axis_index(axes) * count, count)
    held = found.held * lax.axis_size(plan.axes.get("g0", ()))
    return _finish(sums, found._replace(where=(sizes, offset)), params, held)


# --- One device -----------------------------------------------------------------------------------------------


def decide(platform: str, operands: Sequence[Any], params: Params) -> Decision:
    """The kernel that computes the whole in one launch on one device, or no kernel if the product is composed; and why.

    If a kernel asked for by name cannot compute the whole, it is asked to compute the products alone.

    Raises:
        UnsupportedError: the kernel cannot compute the products alone either.
    """
    found = _named(operands, params)
    decision = _in_one_launch(platform, operands, found, params)
    if decision.choice.kernel is None:
        GROUPED.decided(platform, found.of_first, _alone(found, params))
    return decision


def _in_one_launch(platform: str, operands: Sequence[Any], found: Operands, params: Params) -> Decision:
    out = np.dtype(params["preferred_element_type"])
    if found.bias is not None and dtypes.common(found.bias.dtype, out) != out:
        why = f"a bias of {found.bias.dtype} is wider than the result"
        return Decision(Choice.xlas(rules.UNFIT, why))
    try:
        return decide_for(platform, operands, found.where[1], params, lambda: [_problem(found, params)])
    except UnsupportedError as refusal:
        return Decision(Choice.xlas(rules.UNFIT, str(refusal)))


def _problem(found: Operands, params: Params) -> Problem:
    out, form = params["preferred_element_type"], Form(False, False, found.held)
    return problem(form, found.lhs, found.weights[0], found.where[0], out, _epilogue(params), params["gated"])


def _launch(decision: Decision, *operands: jax.Array, **params: Any) -> jax.Array:
    assert decision.problem is not None
    found = _named(operands, params)
    batches = {x.shape[0] for x, rank in zip(operands, _ranks(params), strict=True) if x.ndim > rank}
    extra = [] if found.bias is None else [found.bias.astype(params["preferred_element_type"])]
    shape = (*batches, found.lhs.shape[-2], found.weights[0].shape[-1])
    return call(decision.choice, decision.problem, shape, [found.lhs, *found.weights, *found.where, *extra])


def _describe_composed(
    products: Iterable[report.Product], decision: Decision, params: Params, **_: Any
) -> Iterable[report.Product]:
    if params["gated"]:
        return report.pair(products, decision.choice)
    return (replace(product, epilogue=_epilogue(params)) for product in products)


GROUPED_FUSED = Kind(
    name="jaxgemm_grouped_fused",
    abstract=_abstract,
    batch=_batch,
    taylor=_taylor,
    decide=decide,
    launch=_launch,
    compose=compose,
    narrow=partial(compose, narrow=True),
    division=_division,
    of_groups=True,
    describe=describe,
    describe_composed=_describe_composed,
)
grouped_fused_p = register(GROUPED_FUSED)
