"""Products in Taylor mode, ``jax.experimental.jet``, to any order.

A series is the primal value and, for each order, a coefficient without the factorial. A product's is the Cauchy product
of its operands'; ``c`` and the bias are added to it term by term, and an activation's is what jet makes of jnp's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import jet
from jax.interpreters import ad

from jaxgemm._jax_private import define_taylor_rule
from jaxgemm.epilogue import ACTIVATIONS, Epilogue
from jaxgemm.gated import gated_p, product
from jaxgemm.grouped import by_xla, fused, groups
from jaxgemm.grouped.composed import of_rows
from jaxgemm.grouped.primitive import DERIVED, grouped_p
from jaxgemm.many import halves, many_p
from jaxgemm.primitive import addends, gemm_p

Terms = Sequence[jax.Array]
Series = tuple[jax.Array, Terms]


def _gemm_rule(primals: Sequence[jax.Array], series: Sequence[Terms], **params: Any) -> Series:
    epilogue: Epilogue = params["epilogue"]
    if epilogue.activation is not None:
        # As for derivatives: the activation's argument is kept, in the result's type.
        z = _gemm_rule(primals, series, **dict(params, epilogue=epilogue.linear()))
        return _activated(epilogue.activation, np.dtype(params["preferred_element_type"]), z)
    out = gemm_p.bind(*primals, **params)
    bilinear = partial(gemm_p.bind, **dict(params, epilogue=epilogue.scaling(), strict=False))
    coefficients = []
    for order, terms in enumerate(_cauchy(bilinear, primals[:2], series[:2]), 1):
        terms += addends(epilogue, [extra[order - 1] for extra in series[2:]], out)
        coefficients.append(reduce(ad.add_tangents, terms))
    return out, coefficients


def _gated_rule(primals: Sequence[jax.Array], series: Sequence[Terms], **params: Any) -> Series:
    out = np.dtype(params["preferred_element_type"])
    dot = partial(product, dtype=out, params=params)
    (x, gate, up), (dx, dgate, dup) = primals, series
    activated = _taylor(dot, (x, dx), (gate, dgate))
    if params["activation"] is not None:
        activated = _activated(params["activation"], out, activated)
    return _taylor(jnp.multiply, activated, _taylor(dot, (x, dx), (up, dup)))


def _many_rule(
    primals: Sequence[jax.Array], series: Sequence[Terms], **params: Any
) -> tuple[list[jax.Array], list[Terms]]:
    orders = [tuple(primals), *zip(*series, strict=True)]
    out, coefficients = many_p.bind(*primals, **params), []
    for order in range(1, len(orders)):
        pairs = [(halves(orders[i])[0], halves(orders[order - i])[1]) for i in range(order + 1)]
        terms = [many_p.bind(*lhs, *rhs, **dict(params, strict=False)) for lhs, rhs in pairs]
        coefficients.append([reduce(ad.add_tangents, of_one) for of_one in zip(*terms, strict=True)])
    return out, list(zip(*coefficients, strict=True))


def _grouped_rule(primals: Sequence[jax.Array], series: Sequence[Terms], **params: Any) -> Series:
    def bilinear(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        product: jax.Array = grouped_p.bind(lhs, rhs, *primals[2:], **dict(params, **DERIVED))
        return product

    terms = _cauchy(bilinear, primals[:2], series[:2])
    return grouped_p.bind(*primals, **params), [reduce(ad.add_tangents, each) for each in terms]


def _grouped_fused_rule(primals: Sequence[jax.Array], series: Sequence[Terms], **params: Any) -> Series:
    found, moved = fused.split(primals, params), fused.split(series, params)
    given = fused.alone(found, params, narrow=True)
    held, out = found.held, np.dtype(params["preferred_element_type"])

    def product(w: jax.Array, terms: Terms) -> Series:
        return _grouped_rule((found.lhs, w, *found.where), (moved.lhs, terms, *moved.where), **given)

    def of_each_row(function: Callable[..., jax.Array], *operands: jax.Array) -> jax.Array:
        ranks = [1, 1, *[2] * len(operands)]
        return by_xla.over_batch(function, [*found.where, *operands], ranks)

    def bias(value: jax.Array) -> jax.Array:
        rows = (found.lhs.shape[-2], None)
        return of_each_row(lambda sizes, offset, b: of_rows(b, sizes, offset, rows), value.astype(z[0].dtype))

    def masked(value: jax.Array) -> jax.Array:
        has = of_each_row(lambda sizes, offset: groups.owner(sizes, offset, found.lhs.shape[-2], held) < held)
        return jnp.where(has[..., None], value.astype(out), 0)

    z, *up = (product(w, terms) for w, terms in zip(found.weights, moved.weights, strict=True))
    if found.bias is not None:
        z = z[0] + bias(found.bias), [term + bias(b) for term, b in zip(z[1], moved.bias, strict=True)]
    if params["activation"] is not None:
        z = _activated(params["activation"], z[0].dtype if up else out, z)
    if up:
        z = _taylor(jnp.multiply, z, up[0])
    return masked(z[0]), [masked(term) for term in z[1]]


def _cauchy(
    bilinear: Callable[[jax.Array, jax.Array], jax.Array], primals: Sequence[jax.Array], series: Sequence[Terms]
) -> list[list[jax.Array]]:
    """What adds up to the coefficient of each order from 1 on."""
    lhs, rhs = ([primal, *terms] for primal, terms in zip(primals, series, strict=True))
    return [[bilinear(lhs[i], rhs[order - i]) for i in range(order + 1)] for order in range(1, len(lhs))]


def _activated(name: str, dtype: np.dtype, z: Series) -> Series:
    function = ACTIVATIONS[name].plain or ACTIVATIONS[name]
    return _taylor(lambda x: function(x).astype(dtype), z)


def _taylor(function: Callable[..., jax.Array], *operands: Series) -> Series:
    primals, terms = zip(*operands, strict=True)
    out: Series = jet.jet(function, primals, terms, factorial_scaled=False)
    return out


define_taylor_rule(gemm_p, _gemm_rule)
define_taylor_rule(gated_p, _gated_rule)
define_taylor_rule(many_p, _many_rule)
define_taylor_rule(grouped_p, _grouped_rule)
define_taylor_rule(fused.grouped_fused_p, _grouped_fused_rule)
