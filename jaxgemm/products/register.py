"""Tells JAX of a kind of product: the only place that creates a primitive, and the only one that lowers it.

A program is lowered under one policy of devices, for every kind:

- *One device*, also if a ``shard_map`` over all of the mesh's axes has divided the program already: the kernel that is
  decided for, or what the kind is without a kernel.
- *Shardings that are types*, and *operands that XLA's partitioner divides*: each device computes its part, as the
  kind's division says, and decides for itself.
- *XLA divides by itself*, in a ``shard_map`` over some of the mesh's axes, and in an exported program: no function of
  ours can be called when XLA divides. XLA computes the products, and a kernel asked for by name is refused. In such a
  ``shard_map`` this holds also if shardings are types, except for products of groups, which are divided there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jaxgemm._jax_private import (
    check_for_nans,
    define_taylor_rule,
    device_count,
    explicit_axes,
    is_exported,
    is_partly_manual,
    mesh_to_divide_over,
    with_devices,
)
from jaxgemm.kernels import UnsupportedError
from jaxgemm.products import derivatives
from jaxgemm.products.kind import KINDS, Decision, Kind, by_name, wanted
from jaxgemm.products.transposes import lowered_order
from jaxgemm.sharding.partition import vary_alike


def register(kind: Kind) -> Primitive:
    """The primitive of a kind, with all its rules."""
    primitive = _primitive(kind, kind.name)
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    check_for_nans(primitive)
    KINDS[primitive] = kind

    jvp, transpose, taylor = kind.jvp, kind.transpose, kind.taylor
    if kind.narrow:
        jvp = partial(derivatives.of_composition, kind.narrow)
        transpose = partial(derivatives.transpose_of_composition, kind.narrow)
    elif kind.linear:
        jvp = partial(derivatives.jvp, primitive, kind.linear)
        transpose = partial(derivatives.transpose, kind.linear)
        taylor = partial(derivatives.taylor, primitive, kind.linear)
    assert jvp is not None
    ad.primitive_jvps[primitive] = jvp
    if transpose:
        ad.primitive_transposes[primitive] = transpose
    if taylor:
        define_taylor_rule(primitive, taylor)
    # Rules of this table are given the axis that is mapped, and so its sharding.
    batching.fancy_primitive_batchers[primitive] = partial(_batch, primitive, kind)

    if kind.read_through:
        # With a cached rule, JAX lowers equal products once, to a function whose arguments do not show how they were
        # made. So the rule that looks for transpositions is not cached. It binds a second primitive, whose rules are
        # cached, and depend on the platform: JAX chooses by platform only among cached rules.
        inner = _primitive(kind, "jaxgemm_products" if kind.several else "jaxgemm_product")
        mlir.register_lowering(primitive, partial(_read_through, kind, inner), cacheable=False)
    else:
        inner = primitive
    for platform in ("cuda", "cpu"):
        mlir.register_lowering(inner, partial(_lower, kind, platform), platform=platform)
    mlir.register_lowering(inner, partial(_lower, kind, "other"))
    return primitive


def _primitive(kind: Kind, name: str) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = kind.several
    primitive.def_effectful_abstract_eval(kind.abstract)
    return primitive


def _batch(primitive: Primitive, kind: Kind, axis_data: Any, args: Any, axes: Any, **params: Any) -> tuple[Any, Any]:
    if all(axis is None for axis in axes):
        out = primitive.bind(*args, **params)
        return out, [None] * len(out) if kind.several else None
    args = vary_alike(*args)  # what is mapped may vary along the axis of spmd_axis_name
    if kind.batch and (found := kind.batch(axis_data, args, axes, params)):
        return found[0], found[1]
    assert kind.compose is not None
    out = jax.vmap(partial(kind.compose, **params), in_axes=tuple(axes))(*args)
    return out, [0] * len(out) if kind.several else 0


# --- Lowering -------------------------------------------------------------------------------------------------


def _read_through(kind: Kind, inner: Primitive, ctx: Any, *operands: Any, **params: Any) -> Any:
    """Lowers the product of the operands as they were before transpositions that the kind can read through."""
    assert kind.read_through is not None
    through, types, params = kind.read_through([lowered_order(x) for x in operands], ctx.avals_in, params)
    values = [x.owner.operands[0] if y else x for x, y in zip(operands, through, strict=True)]
    product = partial(inner.bind, **params)
    return mlir.lower_fun(product, multiple_results=kind.several)(ctx.replace(avals_in=types), *values)


def _lower(kind: Kind, platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    product = _placed(kind, platform, ctx, params)
    return mlir.lower_fun(product, multiple_results=kind.several)(with_devices(ctx), *operands)


def _placed(kind: Kind, platform: str, ctx: Any, params: dict[str, Any]) -> Callable[..., Any]:
    """The function that computes a product in the program that is lowered."""
    count, types, out = device_count(ctx), ctx.avals_in, ctx.avals_out[0]
    if kind.among_devices and count > 1:
        params = kind.among_devices(params)
    if kind.decide is None:
        assert kind.compose is not None
        return partial(kind.compose, **params)
    decision = kind.decided(platform, types, params)
    explicit, exported, partly = explicit_axes(out.sharding.mesh), is_exported(ctx), is_partly_manual(ctx)
    divides = mesh_to_divide_over(ctx) is not None
    by_xla = partly and not (explicit and kind.of_groups)
    by_xla = by_xla or (not explicit and exported and divides)
    if not (explicit or by_xla or divides):
        return partial(_on_one_device, kind, platform, decision, **params)
    divided = None
    if kind.division and not by_xla:
        local = partial(_compute, kind, platform)
        where = {"platform": platform, "decision": decision, "count": count, "out": out}
        divided = kind.division(local, types, params, **where)
    if divided is None and decision.choice.kernel is not None and by_name(params) and kind.refusal:
        place = "in a program that is exported" if exported else "inside of a shard_map over some of the mesh's axes"
        raise UnsupportedError(wanted(params) + kind.refusal.format(place=place))
    if divided is not None:
        return partial(divided.explicit, out) if explicit else divided.automatic
    return partial(_without_a_kernel(kind, platform, count), **params)


def _on_one_device(kind: Kind, platform: str, decision: Decision, *operands: jax.Array, **params: Any) -> Any:
    if decision.choice.kernel is None:
        return _without_a_kernel(kind, platform, 1)(*operands, **params)
    assert kind.launch is not None
    return kind.launch(decision, *operands, **params)


def _compute(kind: Kind, platform: str, *operands: jax.Array, **params: Any) -> Any:
    """A product on one of several devices."""
    return _on_one_device(kind, platform, kind.decided(platform, operands, params), *operands, **params)


def _without_a_kernel(kind: Kind, platform: str, parts: int) -> Callable[..., Any]:
    """XLA's product, or the kind's composition. XLA may divide either over ``parts`` devices."""
    if kind.by_xla:
        return partial(kind.by_xla, platform, parts)
    compose = (kind.narrow if parts > 1 else None) or kind.compose
    assert compose is not None
    return compose
