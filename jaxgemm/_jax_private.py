"""Every name of JAX's that is not public, each with what it stands in for; the rest of the package uses these.

Seen on jax 0.10.2 and 0.11.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax._src import checkify, dispatch
from jax._src.sharding_impls import ShardingContext, SPMDAxisContext
from jax.experimental import jet
from jax.extend.core import Primitive
from jax.sharding import AxisType


def needs_devices_while_lowering(primitive: Primitive) -> None:
    """Have the devices known when ``primitive`` is lowered, as ``custom_partitioning`` inside of a rule needs.

    Stands in for: nothing public. ``custom_partitioning`` does this for its own primitive only.
    """
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def is_partitioned(ctx: Any) -> bool:
    """Whether XLA will divide the program that is being lowered over several devices by itself.

    Stands in for: a public view of ``LoweringRuleContext.module_context.axis_context``. Inside of a ``shard_map``
    over all mesh axes it is False: there every device's program is written out.
    """
    context = ctx.module_context.axis_context
    # A program that is run under jax.set_mesh, none of whose arguments is placed, has devices and no mesh: each of them
    # has all of every operand.
    return isinstance(context, ShardingContext) and context.num_devices > 1 and context.abstract_mesh is not None


def explicit_axes(mesh: Any) -> bool:
    """Whether shardings on this mesh are part of types.

    Stands in for: ``AbstractMesh`` has the public ``axis_types``; an empty mesh has none to ask.
    """
    return not mesh.empty and any(t == AxisType.Explicit for t in mesh.axis_types)


def check_for_nans(primitive: Primitive) -> None:
    """Have ``jax.experimental.checkify`` look for NaN in what ``primitive`` gives, where it is asked to.

    Stands in for: nothing public. ``checkify`` passes over primitives that it does not know.
    """
    checkify.error_checks[primitive] = partial(checkify.nan_error_check, primitive)


def define_taylor_rule(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Have ``jax.experimental.jet`` take ``primitive``; ``rule(primals, series, **params)`` gives a primal and terms.

    Stands in for: nothing public. The table of rules is jet's own.
    """
    rules: dict[Primitive, Callable[..., Any]] = jet.jet_rules
    rules[primitive] = rule


def mapped_mesh_axes(axis_data: Any) -> tuple[str, ...] | None:
    """The mesh axes along which the axis of a ``vmap`` is sharded, where shardings are types; None: it is whole.

    Stands in for: a public view of the axis that rules in ``jax.interpreters.batching.fancy_primitive_batchers``
    are given.
    """
    axes: tuple[str, ...] | None = axis_data.explicit_mesh_axis
    return axes


def varying_axes(x: Any) -> frozenset[str]:
    """The mesh axes of the ``shard_map``s around us along which ``x`` differs; empty where they are not checked.

    ``x`` may be a value or a type.

    Stands in for: what ``jax.typeof(x)`` prints as ``{V:x}``, of which there is no public view.
    """
    aval = x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x)
    axes: frozenset[str] = aval.manual_axis_type.varying
    return axes


def is_partly_manual(ctx: Any) -> bool:
    """Whether the program being lowered is a ``shard_map``'s over some mesh axes, with XLA dividing it over others.

    Stands in for: as :func:`is_partitioned`.
    """
    context = ctx.module_context.axis_context
    if not isinstance(context, SPMDAxisContext):
        return False
    return any(size > 1 for name, size in context.mesh.shape.items() if name not in context.manual_axes)


def is_exported(ctx: Any) -> bool:
    """Whether the program being lowered is ``jax.export``'s, which may run in another process.

    Stands in for: as :func:`is_partitioned`, of ``LoweringParameters.for_export``.
    """
    return bool(ctx.module_context.lowering_parameters.for_export)


def device_count(ctx: Any) -> int:
    """How many devices run the program that is being lowered.

    Stands in for: as :func:`is_partitioned`.
    """
    context = ctx.module_context.axis_context
    if isinstance(context, ShardingContext):
        return int(context.num_devices)
    return int(context.mesh.size) if isinstance(context, SPMDAxisContext) else 1


def same_settings(eqns: Sequence[Any]) -> bool:
    """Whether equations were traced under the same settings, as of where they are computed.

    Stands in for: a public view of ``JaxprEqn.ctx``.
    """
    return all(eqn.ctx is eqns[0].ctx for eqn in eqns)
