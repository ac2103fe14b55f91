"""The JAX primitive of grouped products with what follows them, ``jaxgemm_grouped_fused``.

Where one launch of a kernel computes all of it, it is that launch. Everywhere else, in programs on several devices,
under ``vmap`` and for derivatives, it is composed of ``jaxgemm_grouped`` and jnp code, so that JAX can do with it
whatever it can do with those.

Operands are ``lhs (m, k), w (held, k, n)[, w_up (held, k, n)], sizes (groups,), offset (1,)[, bias (held, n)]``, none
with a batch. The result is (m, n): ``activation(lhs w + bias)``, or ``activation(lhs w) * (lhs w_up)`` if it is gated.
Rows that have no group, or one whose weights are not held, are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jaxgemm import dtypes, rules, symbolic
from jaxgemm._jax_private import (
    check_for_nans,
    explicit_axes,
    is_partitioned,
    is_partly_manual,
    needs_devices_while_lowering,
)
from jaxgemm.epilogue import Epilogue, apply, composed_type
from jaxgemm.grouped import groups
from jaxgemm.grouped.choose import choose, problem
from jaxgemm.grouped.launch import asked, kept
from jaxgemm.grouped.primitive import Form, grouped_p
from jaxgemm.kernels import device_for
from jaxgemm.partition import vary_alike
from jaxgemm.primitive import call
from jaxgemm.problem import Problem
from jaxgemm.select import Choice

grouped_fused_p = Primitive("jaxgemm_grouped_fused")
grouped_fused_p.def_impl(partial(xla.apply_primitive, grouped_fused_p))
check_for_nans(grouped_fused_p)

# Parameters of the primitive:
#   activation                            a name, or None
#   gated, has_bias                       which operands there are; a gated product has no bias
#   precision, preferred_element_type     as dot_general_p has them
#   kernel, batch_invariant, strict       as grouped_p has them


class Operands(NamedTuple):
    """The operands by what they are: arrays, or anything with shapes and types."""

    lhs: Any
    weights: Sequence[Any]
    where: Sequence[Any]
    bias: Any


def split(operands: Sequence[Any], params: dict[str, Any]) -> Operands:
    """The operands of the primitive."""
    lhs, *rest = operands
    weights = rest[: 1 + params["gated"]]
    sizes, offset, *bias = rest[len(weights) :]
    return Operands(lhs, weights, (sizes, offset), bias[0] if params["has_bias"] else None)


def epilogue(params: dict[str, Any]) -> Epilogue:
    """What follows the product, or of a gated pair the first one."""
    return Epilogue(has_bias=params["has_bias"], activation=params["activation"])


@grouped_fused_p.def_effectful_abstract_eval
def _abstract_eval(*operands: Any, **params: Any) -> Any:
    lhs, (w, *_), where, _ = split(operands, params)
    given = _of_product(w, params, params["preferred_element_type"])
    return grouped_p.abstract_eval(lhs, w, *where, **given, out_sharding=None)


def _of_product(w: Any, params: dict[str, Any], dtype: np.dtype) -> dict[str, Any]:
    """Parameters of the product with these weights, but for its sharding."""
    shared = {name: params[name] for name in ("precision", "kernel", "batch_invariant", "strict")}
    return shared | {"form": Form(False, False, w.shape[0]), "preferred_element_type": np.dtype(dtype)}


def compose(*operands: jax.Array, narrow: bool = False, out_sharding: Any = None, **params: Any) -> jax.Array:
    """The same, composed of grouped products; with ``narrow`` these have the types of XLA's, whoever computes them.

    Products are narrow where they are kept for a derivative, as they would be in jnp: wider, they would take twice the
    memory, and make the products of the backward pass as wide.

    ``out_sharding`` is as grouped_p has it.
    """
    lhs, weights, where, bias = split(operands, params)
    after, out = epilogue(params), np.dtype(params["preferred_element_type"])
    by_xla = narrow or (params["kernel"] in ("auto", "xla") and not params["batch_invariant"])
    between = composed_type(after, [lhs, weights[0], *([] if bias is None else [bias])], out, by_xla=by_xla)

    def product(w: jax.Array) -> jax.Array:
        given = _of_product(w, params, between)
        result: jax.Array = grouped_p.bind(*vary_alike(lhs, w, *where), **given, out_sharding=out_sharding)
        return result

    z = product(weights[0])
    if params["gated"]:  # rows that have no group are zeros times an activation of zero
        return (apply(after, z, None, None, between) * product(weights[1])).astype(out)
    held = weights[0].shape[0]
    mine = groups.owner(*where, lhs.shape[0], held)
    rows = None if bias is None else bias.at[mine].get(mode="fill", fill_value=0)
    # What is left out here is finite: the activation of zeros.
    return jnp.where((mine < held)[:, None], apply(after, z, None, rows, out), jnp.zeros((), out))


# --- Transformations ------------------------------------------------------------------------------------------


def _batch_rule(args: Any, bdims: Any, **params: Any) -> tuple[Any, int]:
    args = vary_alike(*args)  # what is mapped may vary along the axis of spmd_axis_name
    return jax.vmap(partial(compose, **params), in_axes=tuple(bdims))(*args), 0


batching.primitive_batchers[grouped_fused_p] = _batch_rule


def _jvp_rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def function(*given: jax.Array) -> jax.Array:
        operands = list(primals)
        for i, value in zip(moving, given, strict=True):
            operands[i] = value
        return compose(*operands, narrow=True, **params)

    return jax.jvp(function, [primals[i] for i in moving], [tangents[i] for i in moving])


ad.primitive_jvps[grouped_fused_p] = _jvp_rule


# --- Lowering -------------------------------------------------------------------------------------------------


def decide(platform: str, operands: Sequence[Any], params: dict[str, Any]) -> Choice:
    """The kernel that computes all of it in one launch on one device, or no kernel where it is composed, and why.

    Raises:
        UnsupportedError: a kernel asked for by name cannot, or none can that is batch-invariant.
    """
    kernel, invariant = asked(params), params["batch_invariant"]
    if unknown := symbolic.choose(operands, kernel=kernel, batch_invariant=invariant):
        return kept(unknown, kernel, invariant)
    bias, out = split(operands, params).bias, np.dtype(params["preferred_element_type"])
    if bias is not None and dtypes.common(bias.dtype, out) != out:
        return Choice(None, (), 0, f"a bias of {bias.dtype} is wider than the result", rule=rules.UNFIT.name)
    found = _problem(operands, params)
    device = device_for(platform)
    return choose(found, device, precision=params["precision"], kernel=kernel, batch_invariant=invariant)


def _problem(operands: Sequence[Any], params: dict[str, Any]) -> Problem:
    lhs, weights, (sizes, _), _ = split(operands, params)
    return problem(
        lhs,
        weights[0],
        sizes,
        sums=False,
        transposed=False,
        held=weights[0].shape[0],
        out=params["preferred_element_type"],
        epilogue=epilogue(params),
        gated=params["gated"],
    )


def launch(choice: Choice, *operands: jax.Array, **params: Any) -> jax.Array:
    """All of it by one call of the chosen kernel."""
    lhs, weights, where, bias = split(operands, params)
    extra = [] if bias is None else [bias.astype(params["preferred_element_type"])]
    shape = lhs.shape[0], weights[0].shape[2]
    return call(choice, _problem(operands, params), shape, [lhs, *weights, *where, *extra])


def _rule(platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    function: Any = compose
    # XLA cannot divide a kernel's call; the products that it is composed of divide themselves.
    divided = is_partitioned(ctx) or is_partly_manual(ctx) or explicit_axes(ctx.avals_out[0].sharding.mesh)
    if not divided and (choice := decide(platform, ctx.avals_in, params)).kernel is not None:
        function = partial(launch, choice)
    return mlir.lower_fun(partial(function, **params), multiple_results=False)(ctx, *operands)


for _platform in ("cuda", "cpu"):
    mlir.register_lowering(grouped_fused_p, partial(_rule, _platform), platform=_platform)
mlir.register_lowering(grouped_fused_p, partial(_rule, "other"))
needs_devices_while_lowering(grouped_fused_p)
