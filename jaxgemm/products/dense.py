"""Dense products: ``lax.dot_general`` with an epilogue.

Operands are ``lhs, rhs[, c][, bias]``, the result ``activation(alpha * dot_general(lhs, rhs) + beta * c + bias)``.
Its derivatives are dense products without an epilogue, and jnp code.

Parameters, besides those of every kind:

    dimension_numbers, out_sharding   as ``lax.dot_general`` has them
    epilogue                          an Epilogue
    options                           (name, value) pairs of a kernel's options
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm import dtypes
from jaxgemm import precision as prec
from jaxgemm._jax_private import explicit_axes
from jaxgemm.choice import rules
from jaxgemm.choice.select import select
from jaxgemm.epilogue import Epilogue, apply, composed_type
from jaxgemm.kernels import UnsupportedError, device_for, find_kernel
from jaxgemm.problem import DimensionNumbers, plan
from jaxgemm.products import axes, forms, report, symbolic
from jaxgemm.products.arguments import Options, check_kernel, of_one_type
from jaxgemm.products.call import call
from jaxgemm.products.kind import Decision, Kind, Linear, Params, by_name, may_be_xlas
from jaxgemm.products.register import register
from jaxgemm.products.transposes import read_through
from jaxgemm.products.xla_product import padding, why_padded, xla_product
from jaxgemm.sharding.partition import Assignment, Division, Factors, Local, vary_alike

#: The parameters that ``lax.dot_general`` has too.
DOT_PARAMS = ("dimension_numbers", "precision", "preferred_element_type", "out_sharding")

#: The types of operands and results that kernels have.
_OURS = {dtypes.named(name) for name in dtypes.ELEMENT_TYPES}


def bind(
    lhs: jax.Array,
    rhs: jax.Array,
    extra: tuple[jax.Array, ...],
    dims: DimensionNumbers,
    precision: prec.Precision,
    out: np.dtype,
    epilogue: Epilogue,
    kernel: str,
    options: Options = (),
    out_sharding: Any = None,
    batch_invariant: bool = False,
    strict: bool = True,
) -> jax.Array:
    """The product of checked operands. ``dims`` are as ``lax.dot_general`` takes them."""
    check_kernel(kernel, batch_invariant)
    if lhs.dtype != rhs.dtype and (kernel not in ("auto", "xla") or batch_invariant):
        lhs, rhs = of_one_type(lhs, rhs, np.dtype(out))
    if isinstance(out_sharding, PartitionSpec):
        out_sharding = NamedSharding(jax.sharding.get_abstract_mesh(), out_sharding)
    elif isinstance(out_sharding, NamedSharding):  # a type's sharding is of an abstract mesh
        out_sharding = NamedSharding(out_sharding.mesh.abstract_mesh, out_sharding.spec)
    result: jax.Array = gemm_p.bind(
        *vary_alike(lhs, rhs, *extra),
        dimension_numbers=dims,
        precision=prec.canonical(precision),
        preferred_element_type=np.dtype(out),
        out_sharding=out_sharding,
        epilogue=epilogue,
        kernel=kernel,
        options=options,
        batch_invariant=bool(batch_invariant),
        strict=strict,
    )
    return result


def _abstract(lhs: Any, rhs: Any, *_extra: Any, **params: Any) -> Any:
    return lax.dot_general_p.abstract_eval(lhs, rhs, **{name: params[name] for name in DOT_PARAMS})


# --- Transformations ------------------------------------------------------------------------------------------


def _activated(params: Params) -> tuple[str, Params] | None:
    name = params["epilogue"].activation
    return None if name is None else (name, dict(params, epilogue=params["epilogue"].linear()))


def _addends(tangents: Sequence[Any], out: jax.Array, params: Params) -> list[jax.Array]:
    """What the tangents of c and bias add to the result's tangent, if there are any and they are not zero."""
    terms = []
    epilogue: Epilogue = params["epilogue"]
    dc, dbias = epilogue.c_and_bias(tangents[2:])
    if dc is not None and type(dc) is not ad.Zero:
        dc = lax.convert_element_type(dc, out.dtype)
        terms.append(jnp.asarray(epilogue.beta, dc.dtype) * dc)
    if dbias is not None and type(dbias) is not ad.Zero:
        dbias = lax.convert_element_type(dbias, out.dtype)
        sharding = jax.typeof(out).sharding
        sharding = sharding if explicit_axes(sharding.mesh) else None
        terms.append(lax.broadcast_in_dim(dbias, out.shape, (out.ndim - 1,), out_sharding=sharding))
    return terms


def _cotangents(side: int, terms: list[tuple[Any, Any, Any]], operands: Sequence[Any], params: Params) -> list[Any]:
    assert params["epilogue"].is_scaling
    assert len(operands) == 2
    ((ct, y, x),) = terms
    dims, order, sharding = axes.cotangent(side, x.aval, np.ndim(y), params["dimension_numbers"])
    wanted = np.dtype(x.aval.dtype)
    common = dtypes.multiplied(ct.dtype, y.dtype)
    # Types that no kernel has, and types in a product with a named algorithm, are those that lax would have.
    as_lax = common is None or prec.is_algorithm(params["precision"]) or not {common, wanted} <= _OURS
    if common is not None and not as_lax:
        ct, y = lax.convert_element_type(ct, common), lax.convert_element_type(y, common)
    result = params["preferred_element_type"]
    kept = result if as_lax else dtypes.of_cotangent(wanted, result)
    derived = dict(params, dimension_numbers=dims, preferred_element_type=kept, out_sharding=sharding, strict=False)
    out = gemm_p.bind(*((y, ct) if side else (ct, y)), **derived)
    out = lax.transpose(out, tuple(int(i) for i in np.argsort(order)))
    if jnp.iscomplexobj(out) and not jnp.issubdtype(wanted, jnp.complexfloating):
        out = lax.real(out)
    return [lax.convert_element_type(out, wanted)]


def _batch(axis_data: Any, args: Any, bdims: Any, params: Params) -> tuple[Any, int | None]:
    lhs, rhs, *extra = args
    lhs_bdim, rhs_bdim, *extra_bdims = bdims
    epilogue: Epilogue = params["epilogue"]
    if epilogue.is_scaling:
        params, out_bdim = axes.batched(axis_data, params, lhs, rhs, lhs_bdim, rhs_bdim)
        return gemm_p.bind(lhs, rhs, **params), out_bdim
    c, bias = epilogue.c_and_bias(extra)
    c_bdim, bias_bdim = epilogue.c_and_bias(extra_bdims)
    # The epilogue stays fused if the mapped axis is an axis of rows, or a batch, with one bias for all. Otherwise jnp
    # computes the epilogue, with the mapped axis first everywhere, so that c and bias line up with the result.
    if bias_bdim is None and lhs_bdim is not None:
        params, out_bdim = axes.batched(axis_data, params, lhs, rhs, lhs_bdim, rhs_bdim)
        if c is not None:
            c = axes.at_axis(c, c_bdim, out_bdim, lhs.shape[lhs_bdim])
        operands = [x for x in (c, bias) if x is not None]
        return gemm_p.bind(lhs, rhs, *operands, **params), out_bdim
    out_dtype = np.dtype(params["preferred_element_type"])
    between = composed_type(epilogue, args, out_dtype, by_xla=may_be_xlas(params))
    product, z_bdim = dict(params, epilogue=epilogue.scaling(), preferred_element_type=between), None
    if lhs_bdim is not None or rhs_bdim is not None:
        product, z_bdim = axes.batched(axis_data, product, lhs, rhs, lhs_bdim, rhs_bdim)
    z = gemm_p.bind(lhs, rhs, **product)
    z = z[None] if z_bdim is None else jnp.moveaxis(z, z_bdim, 0)
    if c is not None:
        c = c[None] if c_bdim is None else jnp.moveaxis(c, c_bdim, 0)
    if bias is not None and bias_bdim is not None:
        bias = jnp.moveaxis(bias, bias_bdim, 0)
        bias = bias.reshape(bias.shape[0], *(1,) * (z.ndim - 2), bias.shape[1])
    return apply(epilogue.after_scaling(), z, c, bias, out_dtype), 0


# --- One device -----------------------------------------------------------------------------------------------


def decide(platform: str, avals: Sequence[Any], params: Params) -> Decision:
    """The decision for operands ``avals``, anything with shape and dtype.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run the product either way.
    """
    lhs, rhs, *extra = avals
    out = np.dtype(params["preferred_element_type"])
    if unknown := symbolic.choose(avals, params):
        return Decision(unknown)
    how = {name: params[name] for name in ("precision", "kernel", "options", "batch_invariant")}
    view = plan(lhs.shape, rhs.shape, params["dimension_numbers"])
    asked, converted = forms.of(lhs, rhs, extra, params, view)
    device = device_for(platform)
    names = np.dtype(lhs.dtype).name, np.dtype(rhs.dtype).name
    found, refusal = None, None
    for form, result in asked:
        problem = view.problem((*names, result.name), form)
        try:
            choice = select(problem, device, **how)
        except UnsupportedError as error:
            refusal = refusal or error
            continue
        if choice.kernel is not None:
            return Decision(choice, problem, view)
        # XLA computes the product whole, with its epilogue, whichever form a kernel was asked for.
        found = Decision(choice, view.problem((*names, out.name), params["epilogue"]), view)
        if params["kernel"] == "xla" or choice.rule != rules.UNFIT.name or not converted:
            return found
    if found is None:
        assert refusal is not None
        raise forms.refused(refusal, lhs, rhs, params)
    return found


def _launch(decision: Decision, lhs: jax.Array, rhs: jax.Array, *extra: jax.Array, **params: Any) -> jax.Array:
    problem, view = decision.problem, decision.view
    assert problem is not None
    assert view is not None
    out_dtype = np.dtype(params["preferred_element_type"])
    epilogue: Epilogue = params["epilogue"]
    c, bias = epilogue.c_and_bias(extra)
    if view.lhs_axes is not None:
        lhs = lax.transpose(lhs, view.lhs_axes)
    if view.rhs_axes is not None:
        rhs = lax.transpose(rhs, view.rhs_axes)
    operands = [lhs, rhs]
    if problem.epilogue.has_c:
        assert c is not None
        operands.append(c if view.d_axes is None else lax.transpose(c, np.argsort(view.d_axes)))
    if problem.epilogue.has_bias:
        assert bias is not None
        operands.append(bias)
    out = call(decision.choice, problem, view.d_shape, operands)
    if view.d_axes is not None:
        out = lax.transpose(out, view.d_axes)
    if problem.epilogue == epilogue and out.dtype == out_dtype:
        return out
    kept = dtypes.summed(np.dtype(lhs.dtype), np.dtype(rhs.dtype), out_dtype)
    rest = epilogue.after_scaling() if out.dtype == kept else epilogue
    return apply(rest, lax.convert_element_type(out, kept), c, bias, out_dtype)


def _by_xla(platform: str, parts: int, lhs: jax.Array, rhs: jax.Array, *extra: jax.Array, **params: Any) -> jax.Array:
    out_dtype = np.dtype(params["preferred_element_type"])
    epilogue: Epilogue = params["epilogue"]
    plain = epilogue == Epilogue()
    between = out_dtype if plain else composed_type(epilogue, (lhs, rhs, *extra), out_dtype, by_xla=True)
    dot = {name: params[name] for name in ("precision", "out_sharding")} | {"preferred_element_type": between}
    z = xla_product(platform, lhs, rhs, params["dimension_numbers"], parts=parts, **dot)
    return z if plain else apply(epilogue, z, *epilogue.c_and_bias(extra), out_dtype)


def _read_through(orders: Sequence[Any], avals: Sequence[Any], params: Params) -> tuple[list[bool], list[Any], Params]:
    through, types, dims = read_through(orders[:2], avals[:2], params["dimension_numbers"])
    extra = avals[2:]
    return [*through, *[False] * len(extra)], [*types, *extra], dict(params, dimension_numbers=dims)


def _describe(
    avals: Sequence[Any], params: Params, decision: Decision, limits: Any, types: Sequence[Any], platform: str
) -> list[report.Product]:
    ours = decision.choice.kernel is not None
    padded = "" if ours else why_padded(platform, types[0], types[1], params["dimension_numbers"])
    return [replace(report.of_problem(avals, params, decision, limits), padded=padded)]


# --- Several devices ------------------------------------------------------------------------------------------


def _among_devices(params: Params) -> Params:
    """A kernel that has the option gets a block for every tile: resident blocks would wait for a collective to end."""
    kernel = params["kernel"]
    auto = kernel == "auto" and not params["batch_invariant"]
    if not auto and (kernel in ("auto", "xla") or "grid" not in find_kernel(kernel).options):
        return params
    return dict(params, options=tuple({"grid": 2, **dict(params["options"])}.items()))


def _division(
    local: Local, avals: Sequence[Any], params: Params, platform: str, decision: Decision, count: int, out: Any
) -> Division | None:
    """None if XLA computes the product on every device, unless sums on a device may be of a wrong length for XLA.

    If shardings are part of types, each device's part is known, and decided for. Otherwise XLA's partitioner calls
    ``local``, which decides.
    """
    lhs, rhs = avals[:2]
    padded = count > 1 and padding(platform, lhs, rhs, params["dimension_numbers"], parts=count) is not None
    if decision.choice.kernel is None and decision.choice.rule in rules.SETTLED and not padded:
        return None
    known = explicit_axes(out.sharding.mesh) and not by_name(params) and not padded
    if known and decide(platform, *_part(avals, params, out)).choice.kernel is None:
        return None
    return _divided(local, avals, params)


def _divided(local: Local, avals: Sequence[Any], params: Params) -> Division:
    factors = Factors.of(params["dimension_numbers"], *(len(x.shape) for x in avals[:2]))
    names = factors.operands(params["epilogue"])

    def specs(plan: Assignment) -> list[PartitionSpec]:
        out = plan.out_spec()  # c and bias are sharded as the result is, since they are added to whole sums
        return [*map(plan.spec, names[:2]), *(PartitionSpec(*out[len(out) - len(n) :]) for n in names[2:])]

    return Division(factors, names, specs, partial(local, **params), partial(_on_shards, local, params))


def _part(avals: Sequence[Any], params: Params, out: Any) -> tuple[list[Any], Params]:
    """The operands' types and the parameters on one device, from types that say how operands are sharded."""
    mesh = out.sharding.mesh
    divided = _divided(_launch, avals, params)
    plan = divided.plan(mesh, avals[0], avals[1], out)
    shapes = [NamedSharding(mesh, s).shard_shape(x.shape) for x, s in zip(avals, divided.specs(plan), strict=True)]
    types = [jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(shapes, avals, strict=True)]
    if plan.is_partial():
        return types[:2], dict(params, epilogue=params["epilogue"].scaling())
    return types, params


def _on_shards(local: Local, params: Params, plan: Assignment, *operands: jax.Array) -> jax.Array:
    """The product of one device's shards, then the sum over the devices' parts, then the epilogue."""
    epilogue: Epilogue = params["epilogue"]
    params = dict(params, out_sharding=None)
    if not plan.is_partial():
        return local(*operands, **params)
    lhs, rhs, *extra = operands
    # Partial sums are exchanged in the result's type: as many bytes as jnp.dot exchanges.
    x = plan.added_up(local(lhs, rhs, **dict(params, epilogue=epilogue.scaling())))
    if epilogue.is_scaling:
        return x
    out_dtype = np.dtype(params["preferred_element_type"])
    return apply(epilogue.after_scaling(), x, *epilogue.c_and_bias(extra), out_dtype)


DENSE = Kind(
    name="jaxgemm_gemm",
    abstract=_abstract,
    linear=Linear(
        pairs=lambda operands: [(operands[0], operands[1])],
        bind=lambda pairs, _, params: [gemm_p.bind(*pair, **params) for pair in pairs],
        derived=lambda params: dict(params, epilogue=params["epilogue"].scaling(), strict=False),
        cotangents=_cotangents,
        addends=_addends,
        activated=_activated,
    ),
    batch=_batch,
    decide=decide,
    launch=_launch,
    by_xla=_by_xla,
    among_devices=_among_devices,
    division=_division,
    part=_part,
    read_through=_read_through,
    dimensions=lambda _, params: params["dimension_numbers"],
    describe=_describe,
)
gemm_p: Primitive = register(DENSE)
