"""Says what each product of a program becomes: the kernel, its configuration, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params
from jax.sharding import AxisType, NamedSharding

from jaxgemm import api, roofline
from jaxgemm._jax_private import explicit_axes
from jaxgemm.choice import rules
from jaxgemm.choice.select import Choice
from jaxgemm.kernels import default_platform
from jaxgemm.override import routing_of
from jaxgemm.problem import Axes
from jaxgemm.products.kind import KINDS, by_name
from jaxgemm.products.report import Product as Product
from jaxgemm.products.transposes import traced_order
from jaxgemm.rewriting.left import Left, products_left


@dataclass(frozen=True)
class Explanation:
    """The products of a program, in the order of its jaxpr, on one device.

    Attributes:
        device: the device's name.
        products: one entry a product.
        left: the products that are XLA's own because nothing routes them to jaxgemm; see :func:`jaxgemm.override`.
        note: what is to be known of a program that XLA divides over several devices; empty: it divides none.
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


#: Of a program with operands that are placed on several devices, in a mesh whose axes are no part of types.
_DIVIDED = (
    ", of arguments on {count} devices. XLA divides the products, and each device decides for its part as is said here "
    "of the whole; in a program that jax.export makes they are XLA's"
)
#: Inside of a shard_map over some of the mesh's axes.
_PARTLY = (
    "in a shard_map over some of the mesh's axes XLA divides it over the others, and it cannot divide a kernel's call"
)


def explain(function: Any, *args: Any, platform: str | None = None, **kwargs: Any) -> Explanation:
    """What the products of a program become, without running it.

    Inside of ``shard_map``, and where shardings are part of types, products are those of one device. Elsewhere XLA
    divides them when it compiles, which ``explain`` does not: it shows them whole, and says so.

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
    closed = jax.make_jaxpr(lambda *operands: function(*operands, **kwargs))(*args)
    limits = _limits(target)
    name = limits.name if limits else target
    count = max((_placed_on(x) for x in jax.tree.leaves(args)), default=1)
    products = [p for found in _walk(closed.jaxpr, 1) for p in _products(*found, target, limits, count)]
    left = products_left(closed.jaxpr, routing_of(function))
    return Explanation(name, tuple(products), tuple(left), _DIVIDED.format(count=count) if count > 1 else "")


def _placed_on(x: Any) -> int:
    """The devices that an argument is spread over, or whole on each of, if its type does not say how; else 1."""
    sharding = getattr(x, "sharding", None)
    if not isinstance(sharding, NamedSharding) or explicit_axes(sharding.mesh):
        return 1
    return int(sharding.mesh.size)


def _walk(jaxpr: Jaxpr, trips: int) -> Iterator[tuple[Any, list[Axes | None], int]]:
    """Products, how their operands are transposed, and how often they run."""
    makers: dict[Any, Any] = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        if eqn.primitive in KINDS and KINDS[eqn.primitive].decide:
            operands = [None if isinstance(v, Literal) else makers.get(v) for v in eqn.invars]
            yield eqn, [traced_order(maker) for maker in operands], trips
        times = trips * eqn.params["length"] if eqn.primitive.name == "scan" else trips
        for inner in jaxprs_in_params(eqn.params):
            yield from _walk(inner, times)


def _products(
    eqn: Any,
    orders: list[Axes | None],
    trips: int,
    platform: str,
    limits: roofline.DeviceLimits | None,
    count: int,
    partly: bool = False,
) -> Iterator[Product]:
    kind, avals, params = KINDS[eqn.primitive], [v.aval for v in eqn.invars], eqn.params
    assert kind.decide is not None
    types, out = avals, eqn.outvars[0].aval
    if kind.read_through:
        _, types, params = kind.read_through(orders, avals, params)
    mesh = out.sharding.mesh
    if kind.among_devices and max(count, 1 if mesh.empty else mesh.size) > 1:
        params = kind.among_devices(params)
    if kind.part and explicit_axes(mesh):
        types, params = kind.part(types, params, out)
        avals = types
    decision = kind.decide(platform, types, params)
    partly |= _is_partly_manual(mesh)
    if partly and decision.choice.rule not in rules.SETTLED and not by_name(params):
        decision = replace(decision, choice=Choice(None, (), 0, _PARTLY, rule=rules.DIVIDED.name))
    found: Iterable[Product]
    if decision.choice.kernel is None and kind.compose:
        assert kind.describe_composed is not None
        # Explained is what runs on one device.
        alone = dict(params, out_sharding=None) if "out_sharding" in params else params
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in types]
        composed = _walk(jax.make_jaxpr(partial(kind.compose, **alone))(*structs).jaxpr, 1)
        products = [p for part in composed for p in _products(*part, platform, limits, count, partly)]
        found = kind.describe_composed(products, decision, avals=avals, params=params)
    else:
        assert kind.describe is not None
        found = kind.describe(avals, params, decision, limits, types=types, platform=platform)
    yield from (replace(product, trips=trips) for product in found)


def _is_partly_manual(mesh: Any) -> bool:
    """Whether the axes of this mesh of a type are in part those of a ``shard_map``, and the others XLA's."""
    manual = not mesh.empty and AxisType.Manual in mesh.axis_types
    return manual and any(
        size > 1 and kind == AxisType.Auto for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    )


def _limits(platform: str) -> roofline.DeviceLimits | None:
    if platform != "cuda":
        return None
    return roofline.attached_device() or roofline.KNOWN_DEVICES["NVIDIA H200"]
