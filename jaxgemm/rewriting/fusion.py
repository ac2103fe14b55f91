"""Which products of a jaxpr can take up what follows them: a bias along the last axis, and an activation.

XLA fuses bias and activation into the products that it computes itself. Behind a product of ours they would be a kernel
of their own. If two products of the same rows, one with an activation, are multiplied, ``gated_gemm`` computes both.
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
from jaxgemm._jax_private import explicit_axes, same_settings
from jaxgemm.epilogue import ACTIVATIONS, Epilogue
from jaxgemm.products.transposes import traced_order


@dataclass(frozen=True)
class Fusion:
    """A product and what it takes up.

    Attributes:
        eqns: indices of the equations that the fusion replaces: first the product, last the one that makes the result.
        bias: a vector of the jaxpr, or None.
        epilogue: what follows the product.
    """

    eqns: tuple[int, ...]
    bias: Any
    epilogue: Epilogue


@dataclass(frozen=True)
class Pair:
    """The products of a gated layer, ``activation(x w_gate) * (x w_up)``.

    Attributes:
        eqns: as for a Fusion; the first is the product with ``w_gate``.
        operands: x, w_gate and w_up.
        activation: a name.
    """

    eqns: tuple[int, ...]
    operands: tuple[Any, Any, Any]
    activation: str


def _may_fuse(product: Any) -> bool:
    lhs, out = product.invars[0].aval, product.outvars[0].aval
    types = lhs.dtype, dtypes.accumulator(np.dtype(lhs.dtype))
    # If shardings are part of types, the bias's sharding would have to fit the result's.
    return jnp.issubdtype(out.dtype, jnp.floating) and out.dtype in types and not explicit_axes(out.sharding.mesh)


class Values:
    """Which equations make and read each value of a jaxpr, and so what a product can take up.

    A value that a product takes up is not computed any more, so nothing else may read it.
    """

    def __init__(self, jaxpr: Jaxpr):
        self._eqns = jaxpr.eqns
        self._uses = _uses(jaxpr.eqns)
        self._uses.update(v for v in jaxpr.outvars if not isinstance(v, Literal))
        self._maker = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
        self._reader: dict[Any, int] = {}  # the first
        for i, eqn in enumerate(jaxpr.eqns):
            for v in _uses([eqn]):
                self._reader.setdefault(v, i)

    def pairs(self) -> Iterator[Pair]:
        """The gated pairs."""
        for i, eqn in enumerate(self._eqns):
            if _is_layer(eqn) and (pair := self._pair(i)):
                yield pair

    def fusions(self) -> Iterator[Fusion]:
        """The products that can take something up, each with all that it can take up."""
        for i, eqn in enumerate(self._eqns):
            if eqn.primitive is not lax.dot_general_p or not _may_fuse(eqn):
                continue
            added, bias = self.bias(i)
            if bias is not None and bias.aval.ndim != 1:
                added, bias = (), None
            applied, activation = self.activation((i, *added)[-1])
            taken = (i, *added, *applied)
            if len(taken) > 1 and same_settings([self._eqns[j] for j in taken]):
                yield Fusion(taken, bias, Epilogue(has_bias=bias is not None, activation=activation))

    def reader(self, value: Any) -> int | None:
        """The index of the equation that reads a value, if nothing else does."""
        return self._reader.get(value) if self._uses[value] == 1 else None

    def bias(self, last: int) -> tuple[tuple[int, ...], Any]:
        """The equation that adds a vector to every row of the result of one, and the vector; none if there is none.

        The vector has shape (n,), or (..., 1, n) if it was converted in that shape.
        """
        value: Any = self._eqns[last].outvars[0]
        at = self.reader(value)
        if at is None or self._eqns[at].primitive is not lax.add_p:
            return (), None
        eqn = self._eqns[at]
        other: Any = eqn.invars[1 if eqn.invars[0] is value else 0]
        # The bias may have been broadcast to more axes first. Those equations stay, and XLA drops what nobody reads.
        while other.aval.ndim > 1 and (made_at := self._place(other)) is not None:
            if not _repeats_rows(self._eqns[made_at]):
                break
            other = self._eqns[made_at].invars[0]
        wanted: Any = value.aval
        out: Any = eqn.outvars[0].aval
        fits = (
            not isinstance(other, Literal)
            and wanted.ndim > 0
            and (other.aval.shape[-1:], out.shape) == (wanted.shape[-1:], wanted.shape)
            and all(n == 1 for n in other.aval.shape[:-1])
            and other.aval.dtype == out.dtype == wanted.dtype
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

    def _pair(self, gate: int) -> Pair | None:
        """The gated pair in which a product is the one with the activation; None if there is none."""
        eqns, activation = self.activation(gate)
        applied = self._eqns[eqns[-1]].outvars[0] if eqns else None
        at = self._reader.get(applied)
        if activation is None or at is None or self._uses[applied] != 1 or self._eqns[at].primitive is not lax.mul_p:
            return None
        first, last = self._eqns[gate], self._eqns[at]
        up = last.invars[1 if last.invars[0] is applied else 0]
        up_at = self._place(up)
        if up_at is None or self._uses[up] != 1 or not _is_layer(self._eqns[up_at]):
            return None
        second = self._eqns[up_at]
        (x, w_gate), (same, w_up) = first.invars, second.invars
        places = self._place(w_gate), self._place(w_up)
        if any(traced_order(None if i is None else self._eqns[i]) for i in places):
            return None  # a gated launch takes weights as (k, n): transposed ones would have to be copied
        taken = (gate, *eqns, up_at, at)
        fits = (
            self._is_one(x, same)
            and first.params == second.params
            and w_gate.aval == w_up.aval
            and same_settings([self._eqns[i] for i in taken])
        )
        return Pair(taken, (x, w_gate, w_up), activation) if fits else None

    def _is_one(self, a: Any, b: Any) -> bool:
        """Whether two values are one value, or the same conversion of one value."""
        if a is b:
            return True
        places = self._place(a), self._place(b)
        if None in places:
            return False
        x, y = (self._eqns[i] for i in places if i is not None)
        converted = x.primitive is y.primitive is lax.convert_element_type_p
        return converted and x.invars[0] is y.invars[0] and x.params == y.params

    def _place(self, value: Any) -> int | None:
        """The index of the equation that makes a value, if one does."""
        return None if isinstance(value, Literal) else self._maker.get(value)

    def _is_alone(self, value: Any, eqns: Sequence[Any]) -> bool:
        """Whether equations, and nothing else, read ``value`` and their own results, but for the last result."""
        uses, made = _uses(eqns), {value, *(v for eqn in eqns[:-1] for v in eqn.outvars)}
        return set(uses) == made and all(self._uses[v] == count for v, count in uses.items())


def _is_layer(eqn: Any) -> bool:
    """Whether an equation multiplies rows by a matrix (k, n)."""
    if eqn.primitive is not lax.dot_general_p or not _may_fuse(eqn):
        return False
    x, w = (v.aval for v in eqn.invars)
    dims = (((x.ndim - 1,), (0,)), ((), ()))
    return bool(w.ndim == 2 and x.ndim > 0 and eqn.params["dimension_numbers"] == dims)


def _uses(eqns: Sequence[Any]) -> Counter[Any]:
    return Counter(v for eqn in eqns for v in eqn.invars if not isinstance(v, Literal))


def _repeats_rows(eqn: Any) -> bool:
    """Whether every row of an equation's result is a row of its operand, so that equal rows stay equal."""
    if eqn.primitive not in (lax.broadcast_in_dim_p, lax.reshape_p) or len(eqn.invars) != 1:
        return False
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    last = eqn.params.get("broadcast_dimensions", (len(after) - 1,))[-1:]
    return bool(before[-1:] == after[-1:] and last == (len(after) - 1,))


@dataclass(frozen=True)
class _Reference:
    """An activation as it is traced: its jaxpr, the text of the jaxpr, and the derivatives in it."""

    jaxpr: Jaxpr
    text: str
    rules: list[str]

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(name: str, shape: tuple[int, ...], dtype: np.dtype) -> _Reference:
        """The activation of this name, for an array of this shape and type."""
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
