"""The one JAX primitive, ``jaxgemm_gemm``: its shape, differentiation and lowering rules.

It is ``lax.dot_general`` with an epilogue: operands ``lhs, rhs[, c][, bias]``, result
``activation(alpha * dot_general(lhs, rhs) + beta * c + bias)``. Differentiation reduces it to bilinear
instances of itself and jnp code, so that derivatives of every order exist, forward and reverse. Its rules for
``vmap`` and for Taylor mode are in jaxgemm/batching.py and jaxgemm/taylor.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm import dtypes, partition, symbolic, wire
from jaxgemm import precision as prec
from jaxgemm._jax_private import (
    check_for_nans,
    device_count,
    explicit_axes,
    is_exported,
    is_partitioned,
    is_partly_manual,
    needs_devices_while_lowering,
)
from jaxgemm._runtime import GATED_TARGET, GROUPED_GATED_TARGET, GROUPED_TARGET, TARGET
from jaxgemm.choice.select import Choice, select
from jaxgemm.epilogue import Epilogue, apply, composed_type
from jaxgemm.kernels import UnsupportedError, device_for, find_kernel
from jaxgemm.problem import Plan, Problem, plan
from jaxgemm.transposes import lowered_order, read_through
from jaxgemm.xla_product import padding, xla_product

gemm_p = Primitive("jaxgemm_gemm")
gemm_p.def_impl(partial(xla.apply_primitive, gemm_p))
check_for_nans(gemm_p)

# Rules take and pass on the same parameters:
#   DOT_PARAMS                                                             as dot_general_p has them
#   epilogue                                                               an Epilogue
#   kernel, options, batch_invariant, strict                               as select() takes them

#: The types of operands and results that kernels have.
_OURS = {np.dtype(jnp.dtype(name)) for name in dtypes.ELEMENT_TYPES}

#: The parameters that dot_general_p has too.
DOT_PARAMS = ("dimension_numbers", "precision", "preferred_element_type", "out_sharding")


@gemm_p.def_effectful_abstract_eval
def _abstract_eval(lhs: Any, rhs: Any, *_extra: Any, **params: Any) -> Any:
    dot = {name: params[name] for name in DOT_PARAMS}
    return lax.dot_general_p.abstract_eval(lhs, rhs, **dot)


# --- Differentiation ------------------------------------------------------------------------------------------


def _jvp_rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    epilogue: Epilogue = params["epilogue"]
    if epilogue.activation is not None:
        # The derivative needs the activation's argument, which the fused form does not keep. It is kept in the
        # result's type, as it would be without fusion: wider, it would take as much memory again, and make the
        # products of the backward pass wider as well.
        out_dtype = np.dtype(params["preferred_element_type"])
        activation = Epilogue(activation=epilogue.activation)
        z, dz = _jvp_rule(primals, tangents, **dict(params, epilogue=epilogue.linear()))
        function = partial(activate, activation, out_dtype)
        if type(dz) is ad.Zero:
            out = function(z)
            return out, ad.Zero(jax.typeof(out).to_tangent_aval())
        return jax.jvp(function, (z,), (dz,))
    lhs, rhs = primals[:2]
    dlhs, drhs, *dextra = tangents
    out = gemm_p.bind(*primals, **params)
    product = dict(params, epilogue=epilogue.scaling(), strict=False)
    terms = []
    if type(dlhs) is not ad.Zero:
        terms.append(gemm_p.bind(dlhs, rhs, **product))
    if type(drhs) is not ad.Zero:
        terms.append(gemm_p.bind(lhs, drhs, **product))
    terms += addends(epilogue, dextra, out)
    return out, tangent_of(out, terms)


def tangent_of(out: jax.Array, terms: Sequence[Any]) -> Any:
    """The tangent of ``out`` that these add up to; without any it is zero."""
    return reduce(ad.add_tangents, terms) if terms else ad.Zero(jax.typeof(out).to_tangent_aval())


def activate(activation: Epilogue, out_dtype: np.dtype, z: jax.Array) -> jax.Array:
    """An epilogue that is an activation alone."""
    return apply(activation, z, None, None, out_dtype)


def addends(epilogue: Epilogue, dextra: Sequence[Any], out: jax.Array) -> list[jax.Array]:
    """What the tangents of c and bias, as far as they are there and not zero, add to that of the result ``out``."""
    terms = []
    dc, dbias = epilogue.split(tuple(dextra))
    if dc is not None and type(dc) is not ad.Zero:
        dc = lax.convert_element_type(dc, out.dtype)
        terms.append(jnp.asarray(epilogue.beta, dc.dtype) * dc)
    if dbias is not None and type(dbias) is not ad.Zero:
        dbias = lax.convert_element_type(dbias, out.dtype)
        sharding = jax.typeof(out).sharding
        sharding = sharding if explicit_axes(sharding.mesh) else None
        terms.append(lax.broadcast_in_dim(dbias, out.shape, (out.ndim - 1,), out_sharding=sharding))
    return terms


ad.primitive_jvps[gemm_p] = _jvp_rule


def free_axes(rank: int, contract: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that are neither contracted nor batches, in order."""
    return tuple(i for i in range(rank) if i not in contract and i not in batch)


def _transpose_rule(ct: Any, lhs: Any, rhs: Any, *extra: Any, **params: Any) -> list[Any]:
    """Of the bilinear form, linear in one operand: that operand's cotangent is again a product."""
    assert params["epilogue"].is_scaling
    assert not extra
    if ad.is_undefined_primal(lhs) == ad.is_undefined_primal(rhs):
        raise NotImplementedError("jaxgemm: a product is linear in one operand at a time")
    if ad.is_undefined_primal(lhs):
        return [_cotangent(ct, lhs, rhs, params, lhs_known=False), None]
    return [None, _cotangent(ct, rhs, lhs, params, lhs_known=True)]


def _cotangent(ct: Any, x: Any, y: Any, params: dict[str, Any], *, lhs_known: bool) -> Any:
    """The cotangent of ``x``, the unknown operand; ``y`` is the known one."""
    if type(ct) is ad.Zero:
        return ad.Zero(x.aval)
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    (x_contract, y_contract), (x_batch, y_batch) = ((rc, lc), (rb, lb)) if lhs_known else ((lc, rc), (lb, rb))
    x_free = free_axes(len(x.aval.shape), x_contract, x_batch)
    y_free = free_axes(np.ndim(y), y_contract, y_batch)
    # ct has the axes (batch, lhs free, rhs free).
    batch = tuple(range(len(x_batch)))
    start = len(batch) + (0 if lhs_known else len(x_free))
    ct_y = tuple(range(start, start + len(y_free)))
    # The product comes out as (batch, x free, y's contracting axes in order), or with the last two swapped when
    # y stands on the left; x's contracting axes pair with y's.
    wanted = np.dtype(x.aval.dtype)
    common = dtypes.common(ct.dtype, y.dtype)
    # Types that no kernel has, and those that an algorithm rules, stay as lax has them.
    as_lax = common is None or prec.is_algorithm(params["precision"]) or not {common, wanted} <= _OURS
    if common is not None and not as_lax:
        ct, y = lax.convert_element_type(ct, common), lax.convert_element_type(y, common)
    by_y = tuple(x_contract[i] for i in np.argsort(y_contract))
    if lhs_known:
        dims = ((y_free, ct_y), (tuple(y_batch), batch))
        operands, order = (y, ct), (*x_batch, *by_y, *x_free)
    else:
        dims = ((ct_y, y_free), (batch, tuple(y_batch)))
        operands, order = (ct, y), (*x_batch, *x_free, *by_y)
    result = dict(
        params,
        dimension_numbers=dims,
        preferred_element_type=params["preferred_element_type"] if as_lax else wanted,
        out_sharding=_transposed_sharding(x.aval, order),
        strict=False,
    )
    out = lax.transpose(gemm_p.bind(*operands, **result), tuple(int(i) for i in np.argsort(order)))
    if jnp.iscomplexobj(out) and not jnp.issubdtype(wanted, jnp.complexfloating):
        out = lax.real(out)
    return lax.convert_element_type(out, wanted)


def _transposed_sharding(aval: Any, order: tuple[int, ...]) -> NamedSharding | None:
    """What the product must be sharded as so that its transposition is sharded as ``aval`` is."""
    if not explicit_axes(aval.sharding.mesh):
        return None
    spec = aval.sharding.spec
    return NamedSharding(aval.sharding.mesh, PartitionSpec(*(spec[i] for i in order)))


ad.primitive_transposes[gemm_p] = _transpose_rule


# --- Lowering -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """What a bound primitive becomes on a platform: lowering does it and ``explain`` prints it.

    Attributes:
        choice: the kernel, or XLA.
        problem: what the kernel is asked for; None if no kernel could be asked.
        view: how it lies in memory; None with ``problem``.
    """

    choice: Choice
    problem: Problem | None
    view: Plan | None


def decide(platform: str, avals: Sequence[Any], params: dict[str, Any]) -> Decision:
    """The decision for operands ``avals`` (lhs, rhs[, c][, bias], anything with shape and dtype).

    A kernel that cannot apply the epilogue or write the result's type is asked for ``alpha * product`` in the
    accumulator's type, and jnp does the rest. A result that the accumulator cannot hold, the kernel must write itself.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run the product either way.
    """
    lhs, rhs, *extra = avals
    out = np.dtype(params["preferred_element_type"])
    kept = dtypes.summed(np.dtype(lhs.dtype), np.dtype(rhs.dtype), out)
    epilogue: Epilogue = params["epilogue"]
    kernel, derived = params["kernel"], not params["strict"]
    invariant = params["batch_invariant"]
    if unknown := symbolic.choose(avals, kernel=kernel, batch_invariant=invariant, derived=derived):
        return Decision(unknown, None, None)
    wanted = {"precision": params["precision"], "kernel": kernel, "options": params["options"]}
    wanted["batch_invariant"] = invariant
    view = plan(lhs.shape, rhs.shape, params["dimension_numbers"])
    forms = [(epilogue, out)] if _fuses(epilogue, view, extra, out) else []
    if forms != [(epilogue.scaling(), kept)]:
        forms.append((epilogue.scaling(), kept))
    device = device_for(platform)
    problem, choice, refusal = None, None, None
    for form, result in forms:
        names = (np.dtype(lhs.dtype).name, np.dtype(rhs.dtype).name, result.name)
        problem = Problem(view.m, view.n, view.k, view.batch, view.a, view.b, names, form)
        try:
            choice = select(problem, device, **wanted)
        except UnsupportedError as error:
            refusal = refusal or error
            continue
        # What `auto` leaves to XLA is left whole.
        if choice.kernel is not None or kernel == "auto":
            return Decision(choice, problem, view)
    if choice is None:
        assert refusal is not None
        assert problem is not None
        if not derived:
            raise _refused(refusal, lhs, rhs, out)
        choice = select(problem, device, **{**wanted, "kernel": "auto", "options": (), "batch_invariant": False})
        choice = replace(choice, why=f"a derivative's product; {refusal}; {choice.why}")
    return Decision(choice, problem, view)


def _refused(refusal: UnsupportedError, lhs: Any, rhs: Any, out: np.dtype) -> UnsupportedError:
    """The refusal, and where the kernel's sums could not become the result either, that they cannot and why."""
    types = np.dtype(lhs.dtype), np.dtype(rhs.dtype)
    sums = dtypes.accumulator(dtypes.product(*types))
    if dtypes.summed(*types, out) == sums:
        return refusal
    return UnsupportedError(f"{refusal}; kernels sum these in {sums.name}, and {out.name} holds what that does not")


def _fuses(epilogue: Epilogue, view: Plan, extra: Sequence[Any], out: np.dtype) -> bool:
    """Whether kernels can apply the epilogue: c and bias have the result's type, and bias runs along n."""
    if any(np.dtype(x.dtype) != out for x in extra):
        return False
    return view.single_column_axis or not epilogue.has_bias


def _lower(
    platform: str, lhs: jax.Array, rhs: jax.Array, *extra: jax.Array, parts: int = 1, **params: Any
) -> jax.Array:
    decision = decide(platform, (lhs, rhs, *extra), params)
    choice, problem, view = decision.choice, decision.problem, decision.view
    out_dtype = np.dtype(params["preferred_element_type"])
    epilogue: Epilogue = params["epilogue"]
    c, bias = epilogue.split(extra)
    if choice.kernel is None:
        plain = epilogue == Epilogue()
        between = out_dtype if plain else composed_type(epilogue, (lhs, rhs, *extra), out_dtype, by_xla=True)
        dot = {name: params[name] for name in ("precision", "out_sharding")}
        dims = params["dimension_numbers"]
        z = xla_product(platform, lhs, rhs, dims, preferred_element_type=between, parts=parts, **dot)
        return z if plain else apply(epilogue, z, c, bias, out_dtype)
    assert problem is not None
    assert view is not None
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
    out = call(choice, problem, view.d_shape, operands)
    if view.d_axes is not None:
        out = lax.transpose(out, view.d_axes)
    if problem.epilogue != epilogue or out.dtype != out_dtype:
        rest = epilogue.after_scaling() if problem.epilogue != epilogue else Epilogue()
        out = apply(rest, out, c, bias, out_dtype)
    return out


def call(choice: Choice, problem: Problem, shape: tuple[int, ...], operands: Sequence[jax.Array]) -> jax.Array:
    """The problem by the chosen kernel, a result of this shape.

    Operands are a, b[, b_up][, sizes, offset][, c][, bias].
    """
    assert choice.kernel is not None
    results = [jax.ShapeDtypeStruct(shape, jnp.dtype(problem.dtypes[2]))]
    if choice.workspace:
        results.append(jax.ShapeDtypeStruct((-(-choice.workspace // 256) * 256,), jnp.uint8))
    targets = (GROUPED_TARGET, GROUPED_GATED_TARGET) if problem.groups else (TARGET, GATED_TARGET)
    run = jax.ffi.ffi_call(targets[problem.gated], results)
    asked = replace(problem, arithmetic=choice.arithmetic)
    out: jax.Array = run(*operands, **wire.attributes(choice.kernel.name, choice.config, asked))[0]
    return out


def _beside_collectives(params: dict[str, Any]) -> dict[str, Any]:
    """With a block for every tile, where the kernel has that option: resident blocks wait for a collective's to end."""
    name, options = params["kernel"], dict(params["options"])
    if name in ("auto", "xla") or "grid" not in find_kernel(name).options:
        return params
    return dict(params, options=tuple({"grid": 2, **options}.items()))


def _rule(platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    """Lower for one device, or for the shards of several.

    A product that XLA computes is left whole, as its partitioner knows how to divide it, unless its sums must be of
    certain lengths on each device.
    """
    if params["kernel"] == "auto" and not params["batch_invariant"] and device_count(ctx) > 1:
        # XLA runs products beside collectives, where ours have been slower (docs/sharding.md).
        params = dict(params, kernel="xla", options=())
    elif device_count(ctx) > 1:
        params = _beside_collectives(params)
    local = partial(_lower, platform)
    by_kernel = decide(platform, ctx.avals_in, params).choice.kernel is not None
    if by_kernel or _padded_by_shard(platform, ctx, params):
        out = ctx.avals_out[0]
        if is_partly_manual(ctx) or (not by_kernel and is_exported(ctx)):
            if by_kernel and params["strict"] and (params["kernel"] != "auto" or params["batch_invariant"]):
                raise UnsupportedError(
                    f"kernel '{params['kernel']}' inside of a shard_map over some of the mesh's axes: XLA divides the "
                    "program over the others, which it cannot do with a kernel's call; map over all axes, or ask for "
                    "kernel 'auto' or 'xla'"
                )
            params = dict(params, kernel="xla", options=(), batch_invariant=False)
            local = partial(_lower, platform, parts=device_count(ctx))
        elif explicit_axes(out.sharding.mesh):
            local = partial(partition.explicit, local, out)
        elif is_partitioned(ctx):
            local = partial(partition.automatic, local)
    return mlir.lower_fun(partial(local, **params), multiple_results=False)(ctx, *operands)


def _padded_by_shard(platform: str, ctx: Any, params: dict[str, Any]) -> bool:
    """Whether XLA's product is one whose sums may be of a wrong length on a device, though not as a whole."""
    lhs, rhs = ctx.avals_in[:2]
    count = device_count(ctx)
    return count > 1 and padding(platform, lhs, rhs, params["dimension_numbers"], parts=count) is not None


# What gemm_p is lowered to once the transpositions in front of its operands are found. JAX lowers equal products once,
# to a function whose arguments do not show how they were made. So the rule that looks for transpositions is not cached,
# and the rule for this primitive is; and only among cached rules does JAX choose by platform.
_product_p = Primitive("jaxgemm_product")
_product_p.def_effectful_abstract_eval(_abstract_eval)
for _platform in ("cuda", "cpu"):
    mlir.register_lowering(_product_p, partial(_rule, _platform), platform=_platform)
mlir.register_lowering(_product_p, partial(_rule, "other"))


def _outer_rule(ctx: Any, *operands: Any, **params: Any) -> Any:
    orders = [lowered_order(value) for value in operands[:2]]
    through, avals, dims = read_through(orders, ctx.avals_in[:2], params["dimension_numbers"])
    values = [x.owner.operands[0] if y else x for x, y in zip(operands[:2], through, strict=True)]
    product = partial(_product_p.bind, **dict(params, dimension_numbers=dims))
    ctx = ctx.replace(avals_in=(*avals, *ctx.avals_in[2:]))
    return mlir.lower_fun(product, multiple_results=False)(ctx, *values, *operands[2:])


mlir.register_lowering(gemm_p, _outer_rule, cacheable=False)
needs_devices_while_lowering(gemm_p)
