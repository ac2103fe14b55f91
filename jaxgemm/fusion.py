"""Which products of a jaxpr can take up what follows them: a bias along the last axis, and an activation.

XLA fuses these into the products that it computes itself. Behind one of ours they would be a kernel of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, Literal, primitives

from jaxgemm import dtypes
from jaxgemm._jax_private import explicit_axes, same_settings, varying_axes
from jaxgemm.epilogue import ACTIVATIONS, Epilogue


@dataclass(frozen=True)
class Fusion:
    """A product and what it takes up.

    Attributes:
        eqns: indices of the equations that it stands for: the product first, and last the one whose result it gives.
        bias: a vector of the jaxpr, or None.
        epilogue: what follows the product.
    """

    eqns: tuple[int, ...]
    bias: Any
    epilogue: Epilogue


def fusions(jaxpr: Jaxpr) -> Iterator[Fusion]:
    """The products after which something can be taken up, each with all that can be.

    A value that anything else reads is not taken up, and so stays as it is.
    """
    values = _Values(jaxpr)
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive is not lax.dot_general_p or not _may_fuse(eqn):
            continue
        added, bias = values.bias(i)
        applied, activation = values.activation(added[-1] if added else i)
        taken = [jaxpr.eqns[j] for j in (i, *added, *applied)]
        if len(taken) > 1 and same_settings(taken):
            yield Fusion((i, *added, *applied), bias, Epilogue(has_bias=bias is not None, activation=activation))


def _may_fuse(product: Any) -> bool:
    lhs, out = product.invars[0].aval, product.outvars[0].aval
    types = lhs.dtype, dtypes.accumulator(np.dtype(lhs.dtype))
    # Where shardings are types, a bias has one that has to fit.
    return jnp.issubdtype(out.dtype, jnp.floating) and out.dtype in types and not explicit_axes(out.sharding.mesh)


class _Values:
    """Who makes and who reads the values of a jaxpr."""

    def __init__(self, jaxpr: Jaxpr):
        self._eqns = jaxpr.eqns
        self._uses = _uses(jaxpr.eqns)
        self._uses.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
        self._maker = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        self._reader: dict[Any, int] = {}  # the first
        for i, eqn in enumerate(jaxpr.eqns):
            for v in _uses([eqn]):
                self._reader.setdefault(v, i)

    def bias(self, product: int) -> tuple[tuple[int, ...], Any]:
        """The equation that adds a vector to every row of a product, and the vector; none if there is none."""
        value: Any = self._eqns[product].outvars[0]
        at = self._reader.get(value)
        if at is None or self._uses[value] != 1 or self._eqns[at].primitive is not lax.add_p:
            return (), None
        eqn = self._eqns[at]
        other: Any = eqn.invars[1 if eqn.invars[0] is value else 0]
        # What makes it a matrix is left behind, and unread if nothing else reads it.
        while not isinstance(other, Literal) and other.aval.ndim > 1 and other in self._maker:
            maker = self._maker[other]
            if not _repeats_a_row(maker):
                return (), None
            other = maker.invars[0]
        wanted: Any = value.aval
        out: Any = eqn.outvars[0].aval
        fits = (
            not isinstance(other, Literal)
            and wanted.ndim > 0
            and (other.aval.shape, out.shape) == (wanted.shape[-1:], wanted.shape)
            and other.aval.dtype == out.dtype == wanted.dtype
            and varying_axes(other.aval) == varying_axes(out) == varying_axes(wanted)
        )
        return ((at,), other) if fits else ((), None)

    def activation(self, last: int) -> tuple[tuple[int, ...], str | None]:
        """The equations that apply an activation to the result of one, and its name; none if there is none."""
        value: Any = self._eqns[last].outvars[0]
        start = self._reader.get(value)
        if start is None:
            return (), None
        for name in ACTIVATIONS:
            reference = _Reference.of(name, value.aval.shape, value.aval.dtype)
            end = start + len(reference.jaxpr.eqns)
            eqns = self._eqns[start:end]
            if self._is_alone(value, eqns) and reference.matches(value, eqns):
                return tuple(range(start, end)), name
        return (), None

    def _is_alone(self, value: Any, eqns: Sequence[Any]) -> bool:
        """Whether equations read ``value`` and what they make, and nothing else reads it, but for the last result."""
        uses, made = _uses(eqns), {value, *(v for eqn in eqns[:-1] for v in eqn.outvars)}
        return set(uses) == made and all(self._uses[v] == count for v, count in uses.items())


def _uses(eqns: Sequence[Any]) -> Counter[Any]:
    return Counter(v for eqn in eqns for v in eqn.invars if not isinstance(v, Literal))


def _repeats_a_row(eqn: Any) -> bool:
    """Whether an equation gives an array of any number of rows that are alike, from one that has one of them."""
    if eqn.primitive not in (lax.broadcast_in_dim_p, lax.reshape_p) or len(eqn.invars) != 1:
        return False
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    last = eqn.params.get("broadcast_dimensions", (len(after) - 1,))[-1:]
    return before[-1:] == after[-1:] and last == (len(after) - 1,) and all(n == 1 for n in before[:-1])


@dataclass(frozen=True)
class _Reference:
    """An activation as it is traced: its jaxpr, that printed, and the rules in it."""

    jaxpr: Jaxpr
    text: str
    rules: list[str]

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(name: str, shape: tuple[int, ...], dtype: np.dtype) -> _Reference:
        """By its name, of an array."""
        jaxpr = jax.make_jaxpr(ACTIVATIONS[name])(jax.ShapeDtypeStruct(shape, dtype)).jaxpr
        return _Reference(jaxpr, str(jaxpr), [*map(_rule, jaxpr.eqns)])

    def matches(self, value: Any, eqns: Sequence[Any]) -> bool:
        """Whether equations compute the same of ``value``, with the same derivative."""
        if [eqn.primitive for eqn in eqns] != [eqn.primitive for eqn in self.jaxpr.eqns]:
            return False
        program = self.jaxpr.replace(invars=[value], outvars=eqns[-1].outvars, eqns=list(eqns))
        return str(program) == self.text and [*map(_rule, eqns)] == self.rules


def _rule(eqn: Any) -> str:
    """The derivative that a function came with."""
    if eqn.primitive is not primitives.custom_jvp_call_p:
        return ""
    return str(eqn.params["jvp_jaxpr_fun"].call_wrapped(*[False] * len(eqn.invars))[0])
