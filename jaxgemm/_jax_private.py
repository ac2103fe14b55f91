"""Every name of JAX's that is not public, each with what it stands in for; the rest of the package uses these.

Seen on jax 0.10.2 and 0.11.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax._src import checkify
from jax._src.sharding_impls import ShardingContext, SPMDAxisContext
from jax.experimental import jet
from jax.extend.core import Primitive
from jax.sharding import AbstractMesh, AxisType


def mesh_to_divide_over(ctx: Any) -> Any:
    """The mesh over which XLA will divide the program that is being lowered, by itself; None: it divides it not.

    Inside of a ``shard_map`` over all mesh axes it is None: there every device's program is written out. Where the
    operands' types name no mesh, as with ``in_shardings``, it has an axis for each prime factor of the number of
    devices, by which a sharding over any other mesh can be told.

    Stands in for: a public view of ``LoweringRuleContext.module_context.axis_context``.
    """
    context = ctx.module_context.axis_context
    if not isinstance(context, ShardingContext) or context.num_devices == 1:
        return None
    meshes = (x.sharding.mesh for x in (*ctx.avals_in, *ctx.avals_out))
    found = next((m for m in meshes if not m.empty and m.size == context.num_devices), None)
    return found or _mesh_of_primes(context.num_devices)


def _mesh_of_primes(count: int) -> AbstractMesh:
    """A mesh of so many devices, with an axis for each prime factor.

    Stands in for: the program's own mesh, which its context does not tell.
    """
    factors = []
    while count > 1:
        factors.append(next(n for n in range(2, count + 1) if count % n == 0))
        count //= factors[-1]
    names = tuple(f"devices{i}" for i in range(len(factors)))
    return AbstractMesh(tuple(factors), names, axis_types=(AxisType.Auto,) * len(factors))


def with_devices(ctx: Any) -> Any:
    """The context with devices, as ``custom_partitioning`` inside of a rule needs, if it has some and XLA divides it.

    Any will do: what is said of shardings is of places in the mesh.

    Stands in for: nothing public. JAX gives devices to programs with its own such primitives only.
    """
    module, mesh = ctx.module_context, mesh_to_divide_over(ctx)
    if mesh is None or module.backend is None:
        return ctx
    devices = tuple(module.backend.devices()[: mesh.size])
    return ctx.replace(module_context=module.replace(axis_context=ShardingContext(mesh.size, devices, mesh)))


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

    Stands in for: as :func:`mesh_to_divide_over`.
    """
    context = ctx.module_context.axis_context
    if not isinstance(context, SPMDAxisContext):
        return False
    return any(size > 1 for name, size in context.mesh.shape.items() if name not in context.manual_axes)


def is_exported(ctx: Any) -> bool:
    """Whether the program being lowered is ``jax.export``'s, which may run in another process.

    Stands in for: as :func:`mesh_to_divide_over`, of ``LoweringParameters.for_export``.
    """
    return bool(ctx.module_context.lowering_parameters.for_export)


def device_count(ctx: Any) -> int:
    """How many devices run the program that is being lowered.

    Stands in for: as :func:`mesh_to_divide_over`.
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
