"""The products of a program that are not jaxgemm's, and why: what ``explain`` lists beside those that are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.extend.core import Jaxpr, jaxprs_in_params

from jaxgemm.override import OPENED, RAGGED, Routing, refusal


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


def products_left(jaxpr: Jaxpr, routing: Routing | None) -> Iterator[Left]:
    """The products of a jaxpr that are not jaxgemm's.

    Args:
        jaxpr: a program that :func:`override` has been through, or any other.
        routing: how it was routed, if it was.
    """
    yield from _products_left(jaxpr, routing, "", 1)


def _products_left(jaxpr: Jaxpr, routing: Routing | None, closed: str, trips: int) -> Iterator[Left]:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if eqn.primitive is lax.dot_general_p or name == RAGGED:
            operands = _operands([v.aval for v in eqn.invars[:2]], eqn.outvars[0].aval)
            yield Left(operands, _why(eqn, routing, closed), trips)
        times = trips * eqn.params["length"] if name == "scan" else trips
        within = closed or ("" if name in OPENED else name)
        for inner in jaxprs_in_params(eqn.params):
            yield from _products_left(inner, routing, within, times)


def _why(eqn: Any, routing: Routing | None, closed: str) -> str:
    if closed:
        return f"it is inside of {closed}, which is not opened"
    reason = refusal(eqn, routing or Routing())
    if reason or routing is None:
        return reason or "nothing routes it to jaxgemm; jaxgemm.override would"
    return "it was traced outside of the function that is overridden"


def _operands(avals: Sequence[Any], out: Any) -> str:
    text = " x ".join(f"{x.dtype.name}[{','.join(map(str, x.shape))}]" for x in avals)
    return f"{text} -> {out.dtype.name}"
