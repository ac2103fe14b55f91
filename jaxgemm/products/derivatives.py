"""Derivatives of products, forward, backward and in Taylor mode, from what their kind says of them.

A derivative is made of products of the same kind and jnp code, so that derivatives of every order exist. The derivative
of a product with an activation needs the activation's argument, which a kernel does not keep. The argument is computed
again and kept in the result's type, as it would be without fusion. A wider type would take twice the memory, and make
the products of the backward pass wider as well.

In Taylor mode (``jax.experimental.jet``) a series is the primal value and, for each order, a coefficient without the
factorial. A product has the Cauchy product of its operands' series. An activation has the series that jet makes of
jnp's function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import numpy as np
from jax.experimental import jet
from jax.extend.core import Primitive
from jax.interpreters import ad

from jaxgemm.epilogue import ACTIVATIONS, Epilogue, apply
from jaxgemm.products.kind import Linear

Terms = Sequence[jax.Array]
Series = tuple[Any, Any]


def of_composition(narrow: Callable[..., Any], primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    """The derivative of a product, as that of the products and jnp code that it is composed of."""
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    function = of_some(partial(narrow, **params), primals, moving)
    return jax.jvp(function, [primals[i] for i in moving], [tangents[i] for i in moving])


def transpose_of_composition(narrow: Callable[..., Any], ct: Any, *operands: Any, **params: Any) -> list[Any]:
    """The cotangents of the operands that are not known, in which the composition must be linear."""
    unknown = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    cts: list[Any] = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands]
    if type(ct) is ad.Zero:
        return cts
    function = of_some(partial(narrow, **params), operands, unknown)
    for i, found in zip(unknown, jax.linear_transpose(function, *(operands[i].aval for i in unknown))(ct), strict=True):
        cts[i] = found
    return cts


def of_some(function: Callable[..., Any], operands: Sequence[Any], places: Sequence[int]) -> Callable[..., Any]:
    """The function of the operands at these places, with the others as they are."""

    def reduced(*given: jax.Array) -> Any:
        every = list(operands)
        for i, value in zip(places, given, strict=True):
            every[i] = value
        return function(*every)

    return reduced


def jvp(primitive: Primitive, of: Linear, primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    """A product and its tangent."""
    if found := of.activated(params):
        name, inner = found
        function = partial(_activate, name, np.dtype(params["preferred_element_type"]))
        z, dz = jvp(primitive, of, primals, tangents, **inner)
        if type(dz) is ad.Zero:
            out = function(z)
            return out, ad.Zero(jax.typeof(out).to_tangent_aval())
        return jax.jvp(function, (z,), (dz,))
    outs = _listed(primitive, primitive.bind(*primals, **params))
    given, moved, derived = of.pairs(primals), of.pairs(tangents), of.derived(params)
    terms: list[list[Any]] = [[] for _ in outs]
    for side in (0, 1):
        moving = [i for i, pair in enumerate(moved) if type(pair[side]) is not ad.Zero]
        mixed = [(moved[i][0], given[i][1]) if side == 0 else (given[i][0], moved[i][1]) for i in moving]
        for i, term in zip(moving, of.bind(mixed, primals, derived) if mixed else [], strict=True):
            terms[i].append(term)
    terms[-1:] = [[*own, *of.addends(tangents, out, params)] for own, out in zip(terms[-1:], outs[-1:], strict=True)]
    dots = [total(own, out) for own, out in zip(terms, outs, strict=True)]
    return (outs, dots) if primitive.multiple_results else (outs[0], dots[0])


def transpose(of: Linear, cts: Any, *operands: Any, **params: Any) -> list[Any]:
    """The cotangents of the operands that are not known, which are again products."""
    pairs = of.pairs(operands)
    unknown = [tuple(map(ad.is_undefined_primal, pair)) for pair in pairs]
    if (True, True) in unknown:
        raise NotImplementedError("jaxgemm: a product is linear in one operand at a time")
    cts = cts if isinstance(cts, (list, tuple)) else [cts]
    found: list[list[Any]] = [[None] * len(pairs), [None] * len(pairs)]
    for side in (0, 1):
        moving = []
        for i, sides in enumerate(unknown):
            if sides[side] and type(cts[i]) is ad.Zero:
                found[side][i] = ad.Zero(pairs[i][side].aval)
            elif sides[side]:
                moving.append(i)
        if moving:
            terms = [(cts[i], pairs[i][1 - side], pairs[i][side]) for i in moving]
            for i, result in zip(moving, of.cotangents(side, terms, operands, params), strict=True):
                found[side][i] = result
    return [*found[0], *found[1], *[None] * (len(operands) - 2 * len(pairs))]


def taylor(primitive: Primitive, of: Linear, primals: Sequence[Any], series: Sequence[Terms], **params: Any) -> Series:
    """A product and its coefficients."""
    if found := of.activated(params):
        name, inner = found
        out = np.dtype(params["preferred_element_type"])
        return activated(name, out, taylor(primitive, of, primals, series, **inner))
    outs = _listed(primitive, primitive.bind(*primals, **params))
    orders = [primals, *zip(*series, strict=True)]
    pairs, derived = [of.pairs(operands) for operands in orders], of.derived(params)
    coefficients = []
    for order in range(1, len(orders)):
        mixed = [[(x, y) for (x, _), (_, y) in zip(pairs[i], pairs[order - i], strict=True)] for i in range(order + 1)]
        each = [list(terms) for terms in zip(*(of.bind(m, primals, derived) for m in mixed), strict=True)]
        each[-1] += of.addends(orders[order], outs[-1], params)
        coefficients.append([reduce(ad.add_tangents, terms) for terms in each])
    if primitive.multiple_results:
        return outs, list(zip(*coefficients, strict=True))
    return outs[0], [terms for (terms,) in coefficients]


def series_of(function: Callable[..., jax.Array], *operands: Series) -> Series:
    """The series of a function of arrays with these series."""
    primals, terms = zip(*operands, strict=True)
    out: Series = jet.jet(function, primals, terms, factorial_scaled=False)
    return out


def activated(name: str | None, dtype: np.dtype, z: Series) -> Series:
    """The series of an activation of ``z``; without an activation, ``z``."""
    if name is None:
        return z
    function = ACTIVATIONS[name].plain or ACTIVATIONS[name]
    return series_of(lambda x: function(x).astype(dtype), z)


def _activate(name: str, out_dtype: np.dtype, z: jax.Array) -> jax.Array:
    return apply(Epilogue(activation=name), z, None, None, out_dtype)


def _listed(primitive: Primitive, results: Any) -> list[jax.Array]:
    return list(results) if primitive.multiple_results else [results]


def total(terms: Sequence[Any], out: jax.Array) -> Any:
    """The tangent of ``out``: the sum of the terms, and zero if there are none."""
    return reduce(ad.add_tangents, terms) if terms else ad.Zero(jax.typeof(out).to_tangent_aval())
