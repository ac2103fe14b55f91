"""The ragged products of a program that ``override`` goes through: exchanged for grouped ones, or left and padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxgemm import precision as prec
from jaxgemm.products.xla_product import pad, padding
from jaxgemm.ragged.api import ragged_dot_general


def as_grouped(eqn: Any, *, kernel: str, precision: prec.Precision) -> Any:
    """A ragged product of a jaxpr as a call of a function that computes it by ``jaxgemm.ragged_dot_general``.

    If the ragged axis is a batch, the function computes a dense product. There must be no ``group_offset``.
    ``precision`` is for a product that asks for none itself.
    """
    given = eqn.params["precision"]

    def ragged_dot(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
        return ragged_dot_general(
            lhs,
            rhs,
            group_sizes,
            eqn.params["ragged_dot_dimension_numbers"],
            precision=precision if given is None else given,
            preferred_element_type=eqn.outvars[0].aval.dtype,
            out_sharding=eqn.params["out_sharding"],
            kernel=kernel,
        )

    return as_call(eqn, ragged_dot)


def with_whole_sums(eqn: Any) -> Any:
    """A ragged product of a jaxpr that stays XLA's, with sums as long as XLA needs them."""
    lhs, rhs, *_ = (v.aval for v in eqn.invars)
    dims = eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    # A jaxpr does not say its platform, nor over how many devices XLA will divide it.
    found = padding("cuda", lhs, rhs, dims, parts=jax.device_count())
    if found is None:
        return eqn

    def ragged_dot(lhs: jax.Array, rhs: jax.Array, *sizes: jax.Array) -> jax.Array:
        out: jax.Array = eqn.primitive.bind(*pad(lhs, rhs, dims, found), *sizes, **eqn.params)
        return out

    return as_call(eqn, ragged_dot)


def as_call(eqn: Any, function: Callable[..., Any]) -> Any:
    """An equation of a jaxpr as a call of a function of the same operands."""
    avals = [v.aval for v in eqn.invars]
    # Inside of a shard_map the mesh is another one. Under jax.disable_jit there would be no call.
    with jax.sharding.use_abstract_mesh(avals[0].sharding.mesh), jax.disable_jit(False):
        (call,) = jax.make_jaxpr(jax.jit(function))(*avals).jaxpr.eqns
    return eqn.replace(primitive=call.primitive, params=call.params)
