"""Functions of arrays that have the derivatives of other functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import jaxpr_as_fun

from jaxgemm.sharding.partition import vary_alike


def with_tangent(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """(narrow, given, sources) -> ``narrow(*sources)``, with the derivative that ``function(*given)`` has.

    The result is computed outside of what has the derivative, where a policy of ``jax.checkpoint`` sees the product.
    """

    @jax.custom_jvp
    def product(*arrays: jax.Array) -> jax.Array:
        return arrays[-1]

    def rule(primals: Sequence[jax.Array], tangents: Sequence[Any]) -> tuple[jax.Array, Any]:
        out = product(*primals)
        moved = _moved(function, primals[:-1], tangents[:-1])
        return out, moved[1] if moved else jnp.zeros_like(out)

    product.defjvp(rule, symbolic_zeros=True)
    return lambda narrow, given, sources: product(*vary_alike(*given, narrow(*sources)))


def with_derivative(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The same, but that ``function`` computes the result, too, where it is differentiated.

    Its derivative needs values on the way that one launch does not keep, and would compute them again.
    """

    def product(narrow: Callable[..., jax.Array], given: Sequence[jax.Array], sources: Any) -> jax.Array:
        arrays = vary_alike(*given, *sources)
        count = len(given)
        program = jaxpr_as_fun(jax.make_jaxpr(narrow)(*arrays[count:]))

        @jax.custom_jvp
        def launched(*arrays: jax.Array) -> jax.Array:
            result: jax.Array = program(*arrays[count:])[0]
            return result

        def rule(primals: Sequence[jax.Array], tangents: Sequence[Any]) -> tuple[jax.Array, Any]:
            if moved := _moved(function, primals[:count], tangents[:count]):
                return moved
            out = launched(*primals)
            return out, jnp.zeros_like(out)

        launched.defjvp(rule, symbolic_zeros=True)
        return launched(*arrays)

    return product


def _moved(
    function: Callable[..., jax.Array], primals: Sequence[jax.Array], tangents: Sequence[Any]
) -> tuple[jax.Array, Any] | None:
    """The function's result and its tangent; None if no operand has a tangent."""
    moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]
    if not moving:
        return None

    def of_moving(*some: jax.Array) -> jax.Array:
        arrays = dict(enumerate(primals)) | dict(zip(moving, some, strict=True))
        return function(*arrays.values())

    return jax.jvp(of_moving, [primals[i] for i in moving], [tangents[i] for i in moving])
