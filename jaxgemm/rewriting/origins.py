"""Where the values of a jaxpr come from: through calls, to the equation that makes them.

A value that a call's body makes can be read outside of the call as well: it is computed there once more, and XLA sees
that both computations are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun, jaxprs_in_params, primitives

from jaxgemm.products.kind import KINDS

#: Calls whose bodies are looked into, and the parameter that has the body.
BODY = {
    primitives.jit_p.name: "jaxpr",
    primitives.custom_jvp_call_p.name: "call_jaxpr",
    primitives.custom_vjp_call_p.name: "call_jaxpr",
}
#: Primitives without a body that take too long to compute twice, beside products of ours.
_HEAVY = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated", "ffi_call"})


@dataclass(frozen=True, eq=False)
class Scope:
    """A jaxpr; if it is the body of a call, also the call and the scope around it."""

    jaxpr: Jaxpr
    makers: dict[Any, Any]
    consts: Sequence[Any] = ()
    call: Any = None
    outer: Scope | None = None

    @staticmethod
    def of(jaxpr: Jaxpr, **around: Any) -> Scope:
        """The scope of a jaxpr."""
        return Scope(jaxpr, {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}, **around)

    def body(self, call: Any) -> Scope:
        """The scope of the body of a call in this scope."""
        closed = call.params[BODY[call.primitive.name]]
        return Scope.of(closed.jaxpr, consts=closed.consts, call=call, outer=self)


@dataclass(frozen=True, eq=False)
class Value:
    """A variable, or a number, of a scope."""

    scope: Scope
    var: Any

    @property
    def dtype(self) -> Any:
        """Its element type, which may be one that NumPy does not know."""
        return self.var.aval.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        shape: tuple[int, ...] = self.var.aval.shape
        return shape

    def outward(self) -> Value:
        """The same value outside of the calls that it is a parameter of."""
        scope, var = self.scope, self.var
        while scope.outer is not None and not isinstance(var, Literal) and var in scope.jaxpr.invars:
            scope, var = scope.outer, scope.call.invars[scope.jaxpr.invars.index(var)]
        return Value(scope, var)

    def origin(self, until: Any = None) -> tuple[Value, Any]:
        """The same value in the scope that makes it, and the equation that makes it; None if no equation does.

        ``until``: a variable of the outermost scope whose equation does not count.
        """
        value = self.outward()
        while not isinstance(value.var, Literal) and (eqn := value.scope.makers.get(value.var)) is not None:
            if value.var is until and value.scope.outer is None:
                break
            if not _is_transparent(eqn):
                return value, eqn
            body = value.scope.body(eqn)
            value = Value(body, body.jaxpr.outvars[eqn.outvars.index(value.var)]).outward()
        return value, None

    def program(self) -> tuple[ClosedJaxpr, list[Value]]:
        """A program that computes the value, which a call's body makes, and what it reads of the call's operands."""
        assert self.scope.outer is not None
        jaxpr, wanted, kept = self.scope.jaxpr, {self.var}, []
        for eqn in reversed(jaxpr.eqns):
            if wanted & {*eqn.outvars}:
                kept.append(eqn)
                wanted |= {v for v in eqn.invars if not isinstance(v, Literal)}
        read = [i for i, v in enumerate(jaxpr.invars) if v in wanted]
        operands = [Value(self.scope.outer, self.scope.call.invars[i]).outward() for i in read]
        invars = [jaxpr.invars[i] for i in read]
        program = jaxpr.replace(eqns=kept[::-1], invars=invars, outvars=[self.var])
        return ClosedJaxpr(program, self.scope.consts), operands

    def sources(self) -> list[Any]:
        """The variables of the outermost scope from which the value is computed, some perhaps more than once."""
        if isinstance(self.var, Literal):
            return []
        return [self.var] if self.scope.outer is None else [v for x in self.program()[1] for v in x.sources()]

    def read(self, known: dict[Any, jax.Array]) -> jax.Array:
        """The value, from the values of :meth:`sources`. What a call computed is computed once more, as XLA sees."""
        if isinstance(self.var, Literal):
            return jnp.asarray(self.var.val, self.dtype)
        if self.scope.outer is None:
            return known[self.var]
        program, operands = self.program()
        value: jax.Array
        (value,) = jaxpr_as_fun(program)(*(x.read(known) for x in operands))
        return value

    def is_cheap(self) -> bool:
        """Whether :meth:`read` computes nothing that takes long."""
        if isinstance(self.var, Literal) or self.scope.outer is None:
            return True
        program, operands = self.program()
        return _is_cheap(program.jaxpr) and all(x.is_cheap() for x in operands)


def _is_transparent(eqn: Any) -> bool:
    """Whether an equation is a call whose body can be looked into.

    A ``jit`` that says where its operands or results lie does more than its body.
    """
    if eqn.primitive.name not in BODY:
        return False
    placed = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return not any(isinstance(x, jax.sharding.Sharding) for x in placed)


def _is_cheap(jaxpr: Jaxpr) -> bool:
    """Whether a program has no effects, and no products or loops."""
    for eqn in jaxpr.eqns:
        bodies = [*jaxprs_in_params(eqn.params)]
        heavy = eqn.primitive in KINDS or eqn.primitive.name in _HEAVY or (bodies and eqn.primitive.name not in BODY)
        if eqn.effects or heavy or not all(map(_is_cheap, bodies)):
            return False
    return True
