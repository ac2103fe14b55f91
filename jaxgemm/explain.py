"""Says what each product of a program becomes: the kernel, its configuration, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

from jaxgemm import api, roofline
from jaxgemm.kernels import default_platform
from jaxgemm.override import OPENED, RAGGED, Routing, refusal, routing_of
from jaxgemm.products.kind import KINDS
from jaxgemm.products.report import Product as Product
from jaxgemm.products.report import operands_of
from jaxgemm.products.transposes import traced_order


@dataclass(frozen=True)
class Left:
    """A product that stays ``lax.dot_general`` or ``lax.ragged_dot``.

    Attributes:
        operands: "float32[128,64] x float32[64,32] -> float32".
        why: the reason.
        trips: how often the program runs it, where that is static (the length of a scan).
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
    """

    device: str
    products: tuple[Product, ...]
    left: tuple[Left, ...] = ()

    def __str__(self) -> str:
        count = len(self.products)
        head = f"{count} product{'' if count == 1 else 's'} on {self.device}"
        head += f", {len(self.left)} more left to XLA" if self.left else ""
        return "\n\n".join([head, *map(str, self.products), *map(str, self.left)])


def explain(function: Any, *args: Any, platform: str | None = None, **kwargs: Any) -> Explanation:
    """What the products of a program become, without running it.

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
    left = (found for each in _equations(jaxpr) for found in _left(each, routing_of(function)))
    return Explanation(limits.name if limits else target, tuple(_products(jaxpr, target, limits)), tuple(left))


class _Equation(NamedTuple):
    """One of a program.

    Attributes:
        eqn: the equation.
        makers: those that make the values around it.
        trips: how often it runs.
        closed: the primitive around it that :func:`override` does not open; empty: there is none.
    """

    eqn: Any
    makers: Mapping[Any, Any]
    trips: int
    closed: str


def _equations(jaxpr: Jaxpr, trips: int = 1, closed: str = "") -> Iterator[_Equation]:
    makers: dict[Any, Any] = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        yield _Equation(eqn, makers, trips, closed)
        name = eqn.primitive.name
        times = trips * eqn.params["length"] if name == "scan" else trips
        within = closed or ("" if name in OPENED else name)
        for inner in jaxprs_in_params(eqn.params):
            yield from _equations(inner, times, within)


def _products(jaxpr: Jaxpr, platform: str, limits: roofline.DeviceLimits | None) -> Iterator[Product]:
    """What the products of a program become."""
    for found in _equations(jaxpr):
        if found.eqn.primitive in KINDS and KINDS[found.eqn.primitive].decide:
            yield from _product(found, platform, limits)


def _product(of: _Equation, platform: str, limits: roofline.DeviceLimits | None) -> Iterator[Product]:
    kind, avals, params = KINDS[of.eqn.primitive], [v.aval for v in of.eqn.invars], of.eqn.params
    types = avals
    if kind.read_through:
        makers = [None if isinstance(v, Literal) else of.makers.get(v) for v in of.eqn.invars]
        _, types, params = kind.read_through([traced_order(maker) for maker in makers], avals, params)
    decision = kind.decided(platform, types, params)
    found: Iterable[Product]
    if decision.choice.kernel is None and kind.compose:
        assert kind.describe_composed is not None
        # Explained is what runs on one device.
        alone = dict(params, out_sharding=None) if "out_sharding" in params else params
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in types]
        composed = jax.make_jaxpr(partial(kind.compose, **alone))(*structs).jaxpr
        found = kind.describe_composed(_products(composed, platform, limits), decision, avals=avals, params=params)
    else:
        assert kind.describe is not None
        found = kind.describe(avals, params, decision, limits, types=types, platform=platform)
    yield from (replace(product, trips=of.trips) for product in found)


def _left(of: _Equation, routing: Routing | None) -> Iterator[Left]:
    """An equation that is a product and not jaxgemm's, of a program that ``override`` routed so, if it did."""
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


def _limits(platform: str) -> roofline.DeviceLimits | None:
    if platform != "cuda":
        return None
    return roofline.attached_device() or roofline.KNOWN_DEVICES["NVIDIA H200"]
