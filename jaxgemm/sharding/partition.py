"""A product whose operands are spread over devices: each device runs the product of its own shards.

What is sharded along batch or free axes needs no communication. What is sharded along a contracting axis gives
partial sums, which one psum adds up, or one reduce-scatter where the result is sharded along the same mesh axis.
The epilogue follows the sum. No operand is gathered where ``jnp.dot`` gathers none.

Auto mode hands XLA's partitioner a sharding rule and a callback (``custom_partitioning``); explicit mode, where
shardings are part of the types, is a ``shard_map`` over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm._jax_private import varying_axes
from jaxgemm.epilogue import Epilogue
from jaxgemm.problem import DimensionNumbers

#: (lhs, rhs, *extra, **params) -> result, on one device.
Local = Callable[..., jax.Array]
#: The mesh axes along which one array axis is sharded, for each array axis.
Spec = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Factors:
    """The named axes of a product: "b0", "m0", "n0", "k0" and so on, for each array axis.

    Those that the result lacks are contracted. A product of groups has them as "g0": an axis of the weights, which is
    contracted, or one of the result alone.
    """

    lhs: tuple[str, ...]
    rhs: tuple[str, ...]
    out: tuple[str, ...]

    @property
    def contracted(self) -> tuple[str, ...]:
        """In the order in which lhs and rhs name them."""
        return tuple(dict.fromkeys(name for name in self.lhs + self.rhs if name not in self.out))

    @staticmethod
    def of(dims: DimensionNumbers, lhs_rank: int, rhs_rank: int) -> Factors:
        """The factors of a dot_general."""
        (lc, rc), (lb, rb) = dims

        def names(rank: int, batch: Sequence[int], contract: Sequence[int], free: str) -> tuple[str, ...]:
            out = [""] * rank
            for i, axis in enumerate(batch):
                out[axis] = f"b{i}"
            for i, axis in enumerate(contract):
                out[axis] = f"k{i}"
            rest = [axis for axis in range(rank) if not out[axis]]
            for i, axis in enumerate(rest):
                out[axis] = f"{free}{i}"
            return tuple(out)

        lhs, rhs = names(lhs_rank, lb, lc, "m"), names(rhs_rank, rb, rc, "n")
        out = (*(f"b{i}" for i in range(len(lb))), *(f for f in lhs if f[0] == "m"), *(f for f in rhs if f[0] == "n"))
        return Factors(lhs, rhs, out)

    def operands(self, epilogue: Epilogue) -> list[tuple[str, ...]]:
        """The factors of lhs, rhs, c and bias, as far as they are there."""
        extra = [self.out] * epilogue.has_c + [self.out[-1:]] * epilogue.has_bias
        return [self.lhs, self.rhs, *extra]


@dataclass(frozen=True)
class Assignment:
    """Which mesh axes each factor is sharded along, in the operands and in the result.

    Attributes:
        factors: the product's axes.
        axes: mesh axes by factor; a factor that is missing is whole on every device.
        scatter: (mesh axis, result axis) pairs: contracted over the mesh axis, and then scattered along it.
    """

    factors: Factors
    axes: dict[str, tuple[str, ...]]
    scatter: tuple[tuple[str, int], ...]

    def spec(self, names: Sequence[str]) -> PartitionSpec:
        """The sharding of an operand with these factors."""
        return PartitionSpec(*(self.axes.get(name) or None for name in names))

    def out_spec(self) -> PartitionSpec:
        """The sharding of the result."""
        return PartitionSpec(*(axes or None for axes in self.out_axes()))

    def out_axes(self) -> Spec:
        """The mesh axes of each axis of the result."""
        parts = [self.axes.get(name, ()) for name in self.factors.out]
        for mesh_axis, i in self.scatter:
            parts[i] += (mesh_axis,)
        return tuple(parts)

    def summed(self) -> tuple[str, ...]:
        """Mesh axes over which partial sums are added up without scattering."""
        scattered = {mesh_axis for mesh_axis, _ in self.scatter}
        contracted = [axis for name in self.factors.contracted for axis in self.axes.get(name, ())]
        return tuple(axis for axis in contracted if axis not in scattered)

    def is_partial(self) -> bool:
        """Whether each device's product is a part of a sum."""
        return bool(self.scatter or self.summed())

    def added_up(self, x: jax.Array) -> jax.Array:
        """The devices' partial sums as the result's shard, on each of them."""
        if x.dtype == np.bool_:  # a collective adds numbers
            return self.added_up(x.astype(np.int32)).astype(np.bool_)
        for mesh_axis, i in self.scatter:
            x = lax.psum_scatter(x, mesh_axis, scatter_dimension=i, tiled=True)
        summed = self.summed()
        return lax.psum(x, summed) if summed else x


def assign(
    factors: Factors,
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    specs: tuple[Spec, Spec, Spec],
    sizes: dict[str, int],
) -> Assignment:
    """The assignment of mesh axes to factors that moves the fewest elements.

    A mesh axis may be claimed by several factors, as when activations and weights are both sharded along it. Then
    one of them keeps it and an operand (or the result) is moved; which, is counted.

    Args:
        factors: the product's axes.
        shapes: of lhs, rhs and result.
        specs: mesh axes of each array axis of lhs, rhs and result, as they are.
        sizes: extent of each mesh axis.
    """
    claims: dict[str, tuple[str, ...]] = {}
    lhs, rhs, out = (
        dict(zip(names, spec, strict=True))
        for names, spec in zip((factors.lhs, factors.rhs, factors.out), specs, strict=True)
    )
    alone = [(name, axes) for name, axes in out.items() if name not in factors.lhs + factors.rhs]
    for name, axes in (*lhs.items(), *rhs.items(), *alone):
        if len(axes) > len(claims.get(name, ())):
            claims[name] = axes
    orders = ["bmnk", "bnmk", "kbmn", "kbnm"]
    if not alone and not any(set(lhs[name]) & set(rhs[name]) for name in lhs if name[0] == "k"):
        # Both contracted axes sharded alike means partial sums. Where only one is, gathering it may be cheaper, though
        # not for a sum of each group: there XLA does not either.
        orders += ["bmn", "bnm"]
    if any(name[0] == "g" for name in claims):  # last or first, but never gathered for nothing
        orders = [order for given in orders for order in (f"{given}g", f"g{given}")]
    best: tuple[float, Assignment] | None = None
    for order in orders:
        candidate = _claim(factors, claims, order, shapes[2], specs[2], sizes)
        cost = _moved(candidate, shapes, specs, sizes)
        if best is None or cost < best[0]:
            best = cost, candidate
    assert best is not None
    return best[1]


def _claim(
    factors: Factors,
    claims: dict[str, tuple[str, ...]],
    order: str,
    out_shape: Sequence[int],
    out: Spec,
    sizes: dict[str, int],
) -> Assignment:
    """The assignment in which factors take the mesh axes that they claim in this order of their kinds.

    A kind that the order leaves out takes none: operands are gathered along it.
    """
    used: set[str] = set()
    given: dict[str, tuple[str, ...]] = {}
    for name in sorted((n for n in claims if n[0] in order), key=lambda n: (order.index(n[0]), n)):
        axes = tuple(axis for axis in claims[name] if axis not in used)
        used.update(axes)
        if axes:
            given[name] = axes
    contracted = [axis for name in factors.contracted for axis in given.get(name, ())]
    scatter = []
    for i, (name, axes) in enumerate(zip(factors.out, out, strict=True)):
        parts = prod(sizes[a] for a in given.get(name, ()))
        for axis in axes:
            if axis in contracted and out_shape[i] % (parts * sizes[axis]) == 0:
                scatter.append((axis, i))
                parts *= sizes[axis]
    return Assignment(factors, given, tuple(scatter))


def _moved(
    plan: Assignment,
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    specs: tuple[Spec, Spec, Spec],
    sizes: dict[str, int],
) -> float:
    """Elements that each device receives: operands and results that are moved, partial sums that are added up."""

    def held(shape: Sequence[int], axes: set[str]) -> float:
        return prod(shape) / prod(sizes[a] for a in axes)

    def change(shape: Sequence[int], before: Spec, after: Spec) -> float:
        # An axis that moves from one dimension to another counts as gathered: not every XLA exchanges the parts.
        was, becomes = ({(a, i) for i, axes in enumerate(spec) for a in axes} for spec in (before, after))
        return held(shape, {a for a, _ in was & becomes}) - held(shape, {a for a, _ in was})

    names = plan.factors.lhs, plan.factors.rhs
    cost = sum(
        change(shape, spec, tuple(plan.axes.get(f, ()) for f in own))
        for own, shape, spec in zip(names, shapes[:2], specs[:2], strict=True)
    )
    # A ring scatters the sums first, and then gathers what is asked for whole.
    own = {a for name in plan.factors.out for a in plan.axes.get(name, ())}
    scattered = own | {a for a, _ in plan.scatter}
    cost += held(shapes[2], own) - held(shapes[2], scattered)
    cost += 2.0 * (held(shapes[2], scattered) - held(shapes[2], scattered | set(plan.summed())))
    return cost + change(shapes[2], plan.out_axes(), specs[2])


def _mesh_axes(sharding: Any, rank: int) -> Spec:
    spec = () if sharding is None else sharding.spec  # JAX's older partitioner has none of what is whole
    parts = [() if p is None else (p,) if isinstance(p, str) else tuple(p) for p in spec]
    return tuple(parts + [()] * (rank - len(parts)))


def vary_alike(*operands: jax.Array) -> tuple[jax.Array, ...]:
    """Operands that vary along the same mesh axes inside a ``shard_map``, as primitives ask of theirs.

    Where one is the same on several devices and another is not, as weights and activations are, the gradient of
    the first is then summed over those devices.
    """
    have = [varying_axes(x) for x in operands]
    want = frozenset[str]().union(*have)
    if not want:
        return operands
    missing = [tuple(sorted(want - own)) for own in have]
    return tuple(lax.pcast(x, m, to="varying") if m else x for x, m in zip(operands, missing, strict=True))


@dataclass(frozen=True)
class Division:
    """How a product of several operands is divided over devices.

    Attributes:
        factors: its axes.
        names: the factors of each operand, those of lhs and rhs first.
        specs: the shardings of the operands under an assignment.
        whole: the product on one device.
        shards: the product of one device's shards, under an assignment.
        replicated: factors along which nothing may be sharded.
        even: factors that must have equal parts on all devices, or else are whole.
    """

    factors: Factors
    names: Sequence[tuple[str, ...]]
    specs: Callable[[Assignment], Sequence[PartitionSpec]]
    whole: Callable[..., jax.Array]
    shards: Callable[..., jax.Array]
    replicated: tuple[str, ...] = ()
    even: tuple[str, ...] = ()

    def plan(self, mesh: Any, lhs: Any, rhs: Any, out: Any) -> Assignment:
        """The assignment for operands and a result of these types, which have shapes and shardings."""
        sizes = dict(mesh.shape)

        def spec(names: Sequence[str], x: Any) -> Spec:
            parts = zip(names, x.shape, _mesh_axes(x.sharding, len(x.shape)), strict=True)
            return tuple(
                () if n in self.even and size % prod(sizes[a] for a in axes) else axes for n, size, axes in parts
            )

        specs = spec(self.factors.lhs, lhs), spec(self.factors.rhs, rhs), spec(self.factors.out, out)
        return assign(self.factors, (lhs.shape, rhs.shape, out.shape), specs, sizes)

    def automatic(self, *operands: jax.Array) -> jax.Array:
        """The product with a rule for XLA's partitioner, for operands whose sharding the compiler propagates."""

        def partition(mesh: Any, arguments: Any, result: Any) -> Any:
            plan = self.plan(mesh, arguments[0], arguments[1], result)
            shardings = tuple(NamedSharding(mesh, spec) for spec in self.specs(plan))
            shards = partial(_off_mesh, self.shards, plan)
            return mesh, shards, NamedSharding(mesh, plan.out_spec()), shardings

        def infer(mesh: Any, arguments: Any, result: Any) -> Any:
            """For JAX's older partitioner, which reads no rule: as for a result that nobody asks to be sharded."""
            whole = SimpleNamespace(shape=result.shape, sharding=NamedSharding(mesh, PartitionSpec()))
            return NamedSharding(mesh, self.plan(mesh, arguments[0], arguments[1], whole).out_spec())

        @custom_partitioning
        def product(*args: jax.Array) -> jax.Array:
            return self.whole(*args)

        product.def_partition(
            partition=partition,
            infer_sharding_from_operands=infer,
            sharding_rule=", ".join(" ".join(n) for n in self.names) + " -> " + " ".join(self.factors.out),
            reduction_factors=self.factors.contracted,  # in the order in which the rule names them
            need_replication_factors=self.replicated,
        )
        out: jax.Array = product(*operands)
        return out

    def explicit(self, target: Any, *operands: jax.Array) -> jax.Array:
        """The product inside a shard_map over the shardings of its operands' types; ``target`` is the result's type."""
        mesh = target.sharding.mesh
        plan = self.plan(mesh, jax.typeof(operands[0]), jax.typeof(operands[1]), target)
        in_specs = tuple(self.specs(plan))
        moved = [jax.sharding.reshard(x, NamedSharding(mesh, s)) for x, s in zip(operands, in_specs, strict=True)]
        body = jax.shard_map(partial(self.shards, plan), mesh=mesh, in_specs=in_specs, out_specs=plan.out_spec())
        result: jax.Array = jax.sharding.reshard(body(*moved), target.sharding)
        return result


def _off_mesh(function: Callable[..., jax.Array], *arguments: Any) -> jax.Array:
    """``function``, in which no array's type says how it is sharded.

    JAX traces what a device does under the mesh that ``jax.set_mesh`` has set. With explicit axes, the types of arrays
    that are made there would name these, and XLA cannot compile that (as seen with JAX 0.12).
    """
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return function(*arguments)
