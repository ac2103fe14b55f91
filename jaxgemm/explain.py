"""Says what each product of a program becomes: the kernel, its configuration, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params, primitives
from jax.sharding import AxisType, NamedSharding

from jaxgemm import api, roofline
from jaxgemm._jax_private import explicit_axes
from jaxgemm.choice import rules
from jaxgemm.choice.resolve import Choice
from jaxgemm.kernels import default_platform
from jaxgemm.override import OPENED, RAGGED, Routing, refusal, routing_of
from jaxgemm.products.kind import KINDS, by_name
from jaxgemm.products.report import Product as Product
from jaxgemm.products.report import operands_of
from jaxgemm.products.transposes import traced_order
from jaxgemm.rewriting.narrow import why_by_jnp


@dataclass(frozen=True)
class Left:
    """A product that stays ``lax.dot_general`` or ``lax.ragged_dot``.

    Attributes:
        operands: "float32[128,64] x float32[64,32] -> float32".
        why: the reason.
        trips: how often the program runs the product, as far as that is static (the length of a scan).
    """

    operands: str
    why: str
    trips: int = 1

    def __str__(self) -> str:
        times = "" if self.trips == 1 else f"  ({self.trips} times)"
        return f"{self.operands}{times}\n  left       {self.why}"


@dataclass(frozen=True)
class Explanation:
    """The products of a program, in the order of its jaxpr, on one device.

    Attributes:
        device: the device's name.
        products: one entry a product.
        left: the products that are XLA's own because nothing routes them to jaxgemm; see :func:`jaxgemm.override`.
        note: what to know of a program that XLA divides over several devices; empty if XLA divides nothing.
    """

    device: str
    products: tuple[Product, ...]
    left: tuple[Left, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        count = len(self.products)
        head = f"{count} product{'' if count == 1 else 's'} on {self.device}"
        head += f", {len(self.left)} more left to XLA" if self.left else ""
        return "\n\n".join([head + self.note, *map(str, self.products), *map(str, self.left)])


#: The note on a program whose operands are placed on several devices, in a mesh whose axes are no part of types.
_DIVIDED = (
    ", of arguments on {count} devices. XLA divides the products, and each device decides for its part as is said here "
    "of the whole; in a program that jax.export makes, XLA computes them"
)
#: Why a product inside of a shard_map over some of the mesh's axes is XLA's.
_PARTLY = (
    "in a shard_map over some of the mesh's axes XLA divides it over the others, and it cannot divide a kernel's call"
)
#: Why a product that is one launch on one device is composed.
_COMPOSED = "one launch is on one device, and this program is divided over several"


def explain(function: Any, *args: Any, platform: str | None = None, **kwargs: Any) -> Explanation:
    """What the products of a program become, without running it.

    Inside of ``shard_map``, and if shardings are part of types, the products are those of one device. Otherwise XLA
    divides products when it compiles; ``explain`` does not compile, so it shows whole products, and says so.

    Args:
        function: a function of ``args`` that calls jaxgemm or is :func:`jaxgemm.override`'s; or the first operand
            of a ``gemm`` whose other arguments follow. Arguments may be arrays or ``jax.ShapeDtypeStruct``.
        *args: the function's arguments.
        platform: "cuda" or "cpu"; by default that of JAX's default device. "cuda" without such a device
            explains for an H200.
        **kwargs: the function's keyword arguments, taken as static.

    Returns:
        An :class:`Explanation`; print it, or read ``.products``.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run its product.
    """
    if not callable(function):
        return explain(lambda *operands: api.gemm(*operands, **kwargs), function, *args, platform=platform)
    target = platform or default_platform()
    jaxpr = jax.make_jaxpr(lambda *operands: function(*operands, **kwargs))(*args).jaxpr
    limits = _limits(target)
    count = max((_placed_on(x) for x in jax.tree.leaves(args)), default=1)
    on = _On(target, limits, count)
    left = (found for each in _equations(jaxpr) for found in _left(each, routing_of(function)))
    note = _DIVIDED.format(count=count) if count > 1 else ""
    return Explanation(limits.name if limits else target, tuple(_products(jaxpr, on)), tuple(left), note)


class _On(NamedTuple):
    """What a program is explained for.

    Attributes:
        platform, limits: the device.
        devices: on how many devices the arguments are.
        partly: whether the product is inside of a shard_map over some of the mesh's axes.
    """

    platform: str
    limits: roofline.DeviceLimits | None
    devices: int
    partly: bool = False


def _placed_on(x: Any) -> int:
    """How many devices an argument is on, in parts or whole, if its type does not say so; else 1."""
    sharding = getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding) or explicit_axes(sharding.mesh):
        return 1
    return int(sharding.mesh.size)


class _Equation(NamedTuple):
    """An equation of a program.

    Attributes:
        eqn: the equation.
        jaxpr: the jaxpr that it is in.
        makers: the equation that makes each value of its jaxpr.
        trips: how often it runs.
        closed: the primitive around it that :func:`override` does not open; empty if there is none.
    """

    eqn: Any
    jaxpr: Jaxpr
    makers: Mapping[Any, Any]
    trips: int
    closed: str


def _equations(jaxpr: Jaxpr, trips: int = 1, closed: str = "") -> Iterator[_Equation]:
    makers: dict[Any, Any] = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        yield _Equation(eqn, jaxpr, makers, trips, closed)
        name = eqn.primitive.name
        times = trips * eqn.params["length"] if name == "scan" else trips
        within = closed or ("" if name in OPENED else name)
        for inner in _run_by(eqn):
            yield from _equations(inner, times, within)


def _run_by(eqn: Any) -> Iterable[Jaxpr]:
    """The jaxprs that an equation runs. A linear solve has others, for its derivatives."""
    if eqn.primitive is primitives.linear_solve_p:
        return (eqn.params["jaxprs"].solve.jaxpr,)
    return jaxprs_in_params(eqn.params)


def _products(jaxpr: Jaxpr, on: _On) -> Iterator[Product]:
    """What the products of a program become."""
    for found in _equations(jaxpr):
        if found.eqn.primitive in KINDS and KINDS[found.eqn.primitive].decide:
            yield from _product(found, on)


def _product(of: _Equation, on: _On) -> Iterator[Product]:
    kind, avals, params = KINDS[of.eqn.primitive], [v.aval for v in of.eqn.invars], of.eqn.params
    types, out = avals, of.eqn.outvars[0].aval
    if kind.read_through:
        makers = [None if isinstance(v, Literal) else of.makers.get(v) for v in of.eqn.invars]
        _, types, params = kind.read_through([traced_order(maker) for maker in makers], avals, params)
    mesh = out.sharding.mesh
    if kind.among_devices and max(on.devices, 1 if mesh.empty else mesh.size) > 1:
        params = kind.among_devices(params)
    on = on._replace(partly=on.partly or (_is_partly_manual(mesh) and not (explicit_axes(mesh) and kind.of_groups)))
    if kind.part and explicit_axes(mesh) and not on.partly:
        types, params = kind.part(types, params, out)
        avals = types
    decision = kind.decided(on.platform, types, params)
    several = explicit_axes(mesh) or on.partly or (on.devices > 1 and AxisType.Manual not in mesh.axis_types)
    undivided = kind.compose and not kind.division and not (kind.refusal and by_name(params))
    if several and undivided and decision.choice.kernel is not None:
        decision = replace(decision, choice=Choice.xlas(rules.DIVIDED, _COMPOSED))
    elif on.partly and decision.choice.rule not in rules.SETTLED and not by_name(params):
        decision = replace(decision, choice=Choice.xlas(rules.DIVIDED, _PARTLY))
    found: Iterable[Product]
    if decision.choice.kernel is None and kind.compose:
        assert kind.describe_composed is not None
        # The products shown are those of one device.
        alone = dict(params, out_sharding=None) if "out_sharding" in params else params
        placed = [x.sharding if kind.part is None and explicit_axes(x.sharding.mesh) else None for x in types]
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s) for x, s in zip(types, placed, strict=True)]
        composed = jax.make_jaxpr(partial(kind.compose, **alone))(*structs).jaxpr
        found = kind.describe_composed(_products(composed, on), decision, avals=avals, params=params)
    else:
        assert kind.describe is not None
        found = kind.describe(avals, params, decision, on.limits, types=types, platform=on.platform)
    by_jnp = why_by_jnp(of.jaxpr, of.eqn)
    for product in found:
        scaled = f"applied by jnp: {by_jnp}" if by_jnp else product.scaled
        yield replace(product, trips=of.trips, scaled=scaled)


def _left(of: _Equation, routing: Routing | None) -> Iterator[Left]:
    """The equation, if it is a product and not jaxgemm's. ``routing``: how the program was routed, if it was."""
    eqn = of.eqn
    if eqn.primitive is lax.dot_general_p or eqn.primitive.name == RAGGED:
        operands = f"{operands_of([v.aval for v in eqn.invars[:2]])} -> {eqn.outvars[0].aval.dtype.name}"
        yield Left(operands, _why(eqn, routing, of.closed), of.trips)


def _why(eqn: Any, routing: Routing | None, closed: str) -> str:
    if closed:
        return f"it is inside of {closed}, which is not opened"
    reason = refusal(eqn, routing or Routing())
    if reason or routing is None:
        return reason or "nothing routes it to jaxgemm; jaxgemm.override would"
    return "it was traced outside of the function that is overridden"


def _is_partly_manual(mesh: Any) -> bool:
    """Whether a type's mesh has axes of a ``shard_map`` and others, as :func:`is_partly_manual` has it."""
    others = any(n > 1 and t != AxisType.Manual for n, t in zip(mesh.axis_sizes, mesh.axis_types, strict=True))
    return others and AxisType.Manual in mesh.axis_types


def _limits(platform: str) -> roofline.DeviceLimits | None:
    if platform != "cuda":
        return None
    return roofline.attached_device() or roofline.KNOWN_DEVICES["NVIDIA H200"]
