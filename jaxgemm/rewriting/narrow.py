"""Products of numbers that are 8-bit values, or were just before, and scales that go with them.

A program that dequantises first, ``dot(values.astype(wide) * scale, ...)``, has a product of 16 or 32 bits, and XLA
computes it so unless XLA finds the pattern by itself. If neither operand's scale varies along a contracted axis, scales
can multiply the result instead, and the product can be one of the 8-bit values. Scales of rows and columns, be they the
operands' or what the program multiplies the result by, are then applied by the launch that multiplies
(jaxgemm/products/scaled.py), and so are a bias and an activation after them. jnp applies other scales.

The result is not bit for bit the program's, but as near to what the program means. Values of 8 bits are exact in every
wider type, so only two roundings differ: what a scale multiplies is not rounded to 16 bits, and sums are rounded
otherwise. Both are far smaller than the rounding to 8 bits before. Scales multiply in float32, one after the other, and
float32 must hold a sum times a scale. The precisions "high" and "highest" say how values are multiplied, which is exact
here, and how sums are kept. An algorithm names the types to multiply in, so a product that asks for one stays.

Derivatives are those of the program as it stands, by its own rules: of the dequantised operands, which are computed if
a derivative needs them. If ``override`` is around ``grad``, products in derivatives are found in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun, primitives

from jaxgemm import dtypes
from jaxgemm import precision as prec
from jaxgemm._jax_private import explicit_axes, same_settings
from jaxgemm.epilogue import Epilogue
from jaxgemm.problem import DimensionNumbers
from jaxgemm.products.arguments import weakly_typed
from jaxgemm.products.dense import bind, gemm_p
from jaxgemm.products.kind import KINDS
from jaxgemm.products.scaled import bind_scaled, scaled_p
from jaxgemm.products.scales import most_terms, scaled
from jaxgemm.rewriting.dequantised import FLOATS, WIDE, Operand, Scale, is_integer, operand, scales_since
from jaxgemm.rewriting.differentiated import with_derivative, with_tangent
from jaxgemm.rewriting.fusion import Values
from jaxgemm.rewriting.origins import BODY, Scope, Value
from jaxgemm.rewriting.ragged import as_call

_F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Narrow:
    """A product whose operands are or were values of 8 bits.

    Attributes:
        scope: the jaxpr that the product is in.
        eqns: indices of the equations that it replaces: first the one that has the product, a ``dot_general`` or a call
            of a function with a rule that is one; last the one that makes the result.
        dot: the ``dot_general``.
        operands: its operands, in order.
        after: the scales by which its result is multiplied.
        bias: what is added then, of shape (..., 1, n), as a variable of the jaxpr; or None.
        activation: the name of what is applied then; or None.
    """

    scope: Scope
    eqns: tuple[int, ...]
    dot: Any
    operands: tuple[Operand, Operand]
    after: tuple[Scale, ...] = ()
    bias: Any = None
    activation: str | None = None

    @property
    def is_direct(self) -> bool:
        """Whether the program multiplies in 8 bits itself."""
        return all(dtypes.is_8bit(v.aval.dtype) for v in self.dot.invars)

    @property
    def forms(self) -> Iterator[Narrow]:
        """The product with what follows it, and without, as far as there is anything to change."""
        if len(self.eqns) > 1:
            yield self
        if not self.is_direct:
            yield self.alone

    @property
    def alone(self) -> Narrow:
        """The product without what follows."""
        return replace(self, eqns=self.eqns[:1], after=(), bias=None, activation=None)

    @property
    def types(self) -> list[jax.ShapeDtypeStruct]:
        """The types that are multiplied, with the shapes of the product's operands."""
        return [
            jax.ShapeDtypeStruct(v.aval.shape, x.values.dtype)
            for v, x in zip(self.dot.invars, self.operands, strict=True)
        ]

    @property
    def sums(self) -> np.dtype:
        """The type of the sums; the result's, if nothing but a rounding follows."""
        kept, out = dtypes.accumulator(self.operands[0].values.dtype), np.dtype(self.dot.outvars[0].aval.dtype)
        return kept if self.places or jnp.issubdtype(kept, jnp.integer) else out

    @property
    def transposed(self) -> tuple[bool, bool] | None:
        """Which of a (..., m, k) and b (k, n) lies transposed; None if the operands are not rows and one matrix."""
        (contract_a, contract_b), batches = self.dot.params["dimension_numbers"]
        a, b = (len(x.shape) for x in self.types)
        if any(batches) or len(contract_a) != 1 or b != 2:
            return None
        over = contract_a[0] != a - 1, contract_b[0] == 1
        turned = [of.is_transposed for of in self.operands]
        return None if over[0] and a != 2 else (over[0] != turned[0], over[1] != turned[1])

    @property
    def sums_fit(self) -> bool:
        """Whether no sum of integers passes what int32 holds; of floats there is none."""
        if not is_integer(self.operands[0].values):
            return True
        terms = prod(self.types[0].shape[axis] for axis in self.dot.params["dimension_numbers"][0][0])
        return bool(terms <= most_terms([x.dtype for x in self.types]))

    @property
    def places(self) -> list[str | None]:
        """What each scale is to the launch, ``a_scale`` or ``b_scale``; None if jnp multiplies by it."""
        dims: DimensionNumbers = self.dot.params["dimension_numbers"]
        ranks = [len(x.shape) for x in self.types]
        last = len(self.dot.outvars[0].aval.shape) - 1
        varying = [
            frozenset(_result_axis(axis, side, dims, ranks) for axis in axes)
            for side, operand in enumerate(self.operands)
            for axes in operand.varying
        ]
        varying += [scale.varying for scale in self.after]
        if self.transposed is None:
            return [None] * len(varying)
        wanted = ["b_scale" if axes == {last} else "" if not axes else "a_scale" for axes in varying]
        places: list[str | None] = [None] * len(varying)
        # A scale of everything takes the place that is left.
        for i, (place, axes) in enumerate(zip(wanted, varying, strict=True)):
            if axes and place not in places and (place == "b_scale" or last not in axes):
                places[i] = place
        for i in (i for i, axes in enumerate(varying) if not axes):
            places[i] = next((place for place in ("a_scale", "b_scale") if place not in places), None)
        return places

    @property
    def read_from(self) -> list[Value]:
        """All that the result is computed from."""
        found = [value for operand in self.operands for value in operand.read_from]
        found += [scale.value for scale in self.after]
        return found if self.bias is None else [*found, Value(self.scope, self.bias)]

    def refusal(self, precision: prec.Precision) -> str:
        """Why a product that asks for this canonical precision stays as it is; empty if it does not."""
        if prec.is_algorithm(precision):
            return "an algorithm, which the product asks for, names the types that are multiplied"
        highest = isinstance(precision, tuple) and lax.Precision.HIGHEST in precision
        if highest and self.is_direct and not is_integer(self.operands[0].values):
            # Composed, it would be written in 32 bits, and not in the type that the program has.
            return "XLA computes products of 8-bit floats at 'highest'"
        return ""

    def replaced(self, params: dict[str, Any], instead: Sequence[Any]) -> Any:
        """A call that multiplies in 8 bits.

        Args:
            params: the primitive's parameters for the product as it was.
            instead: equations of the same operands and results as ``eqns``, for derivatives.
        """
        if len(self.eqns) == 1:
            return self._call(params, instead, with_tangent)
        rest, first = instead[1:], instead[:1]
        first = first if self.is_direct else [self.alone.replaced(params, first)]
        return self._call(params, [*first, *rest], with_derivative)

    def _call(self, params: dict[str, Any], instead: Sequence[Any], differentiated: Any) -> Any:
        made = {v for eqn in instead for v in eqn.outvars}
        read = (v for eqn in instead for v in eqn.invars if not isinstance(v, Literal))
        given = [v for v in dict.fromkeys(read) if v not in made]
        sources = [*dict.fromkeys(v for value in self.read_from for v in value.sources())]
        outvars = instead[-1].outvars
        program = self.scope.jaxpr.replace(constvars=[], invars=given, outvars=outvars, eqns=[*instead])
        result = partial(self._result, params, np.dtype(outvars[0].aval.dtype))

        def of_arrays(*arrays: jax.Array) -> jax.Array:
            return result(dict(zip(sources, arrays, strict=True)))

        # The program, not this object, which holds the jaxpr by which what is made here is kept.
        product = differentiated(lambda *arrays: jaxpr_as_fun(ClosedJaxpr(program, ()))(*arrays)[0])

        def narrow(*arrays: jax.Array) -> jax.Array:
            out = product(of_arrays, arrays[: len(given)], map(lax.stop_gradient, arrays[len(given) :]))
            return weakly_typed(out) if outvars[0].aval.weak_type else out

        return as_call(instead[-1].replace(invars=[*given, *sources]), narrow)

    def _result(self, params: dict[str, Any], out: np.dtype, known: dict[Any, jax.Array]) -> jax.Array:
        dims: DimensionNumbers = params["dimension_numbers"]
        (a, a_scales), (b, b_scales) = (operand.read(known) for operand in self.operands)
        scales = [_of_result(x, side, dims, (a, b)) for side, of in enumerate((a_scales, b_scales)) for x in of]
        scales += [scale.read(known) for scale in self.after]
        places, transposed = self.places, self.transposed
        placed = {place: x for place, x in zip(places, scales, strict=True) if place}
        by_jnp = [x for place, x in zip(places, scales, strict=True) if not place]
        if transposed is None or not placed:
            x = bind(a, b, (), dims, params["precision"], self.sums, Epilogue(), params["kernel"])
            return lax.convert_element_type(scaled(x, by_jnp, _F32) if by_jnp else x, out)
        bias = None if self.bias is None else lax.reshape(known[self.bias], self.bias.aval.shape[-1:])
        epilogue = Epilogue(has_bias=bias is not None, activation=self.activation)
        # A launch takes a matrix as it lies before it is transposed.
        a, b = (of.values.read(known) if of.is_transposed else x for of, x in zip(self.operands, (a, b), strict=True))
        a = a if a.ndim > 1 else a[None]
        x = bind_scaled(
            a,
            b,
            {name: lax.expand_dims(x, range(a.ndim - x.ndim)) if x.ndim else x for name, x in placed.items()},
            bias,
            transposed,
            _F32 if by_jnp else out,
            epilogue,
            precision=params["precision"],
            kernel=params["kernel"],
            options=(),
            batch_invariant=False,
        )
        x = jnp.reshape(x, self.dot.outvars[0].aval.shape)
        return scaled(x, by_jnp, _F32).astype(out) if by_jnp else x


def _result_axis(axis: int, side: int, dims: DimensionNumbers, ranks: Sequence[int]) -> int:
    """The axis of the result that an axis of an operand is, which is not contracted."""
    contract, batch = dims[0][side], dims[1][side]
    if axis in batch:
        return batch.index(axis)
    free = [i for i in range(ranks[side]) if i not in (*contract, *batch)]
    others = ranks[0] - len(dims[0][0]) - len(batch)
    return len(batch) + (others if side else 0) + free.index(axis)


def _of_result(scale: jax.Array, side: int, dims: DimensionNumbers, operands: Sequence[jax.Array]) -> jax.Array:
    """A scale of an operand, which does not vary along its contracted axes, as one of the result."""
    if scale.ndim == 0:
        return scale
    contract, batch = dims[0][side], dims[1][side]
    free = [i for i in range(scale.ndim) if i not in (*contract, *batch)]
    scale = lax.squeeze(lax.transpose(scale, (*batch, *free, *contract)), range(scale.ndim - len(contract), scale.ndim))
    others = operands[1 - side].ndim - len(contract) - len(batch)
    first = len(batch) if side else scale.ndim
    return lax.expand_dims(scale, range(first, first + others))


# --- Finding them ---------------------------------------------------------------------------------------------


def narrow_products(jaxpr: Jaxpr, values: Values) -> Iterator[Narrow]:
    """The products of a jaxpr that can be multiplied in 8 bits, each with what can be a part of it."""
    scope: Scope | None = None
    for i, eqn in enumerate(jaxpr.eqns):
        dot = _only_dot(eqn)
        if dot is None or not _may_be_narrow(dot):
            continue
        scope = scope or Scope.of(jaxpr)
        around = scope if dot is eqn else scope.body(eqn)
        found = [operand(Value(around, v)) for v in dot.invars]
        if found[0] is not None and found[1] is not None:
            product = Narrow(scope, (i,), dot, (found[0], found[1]))
            if _is_narrow_product(product):
                yield _followed(product, values)


def _followed(product: Narrow, values: Values) -> Narrow:
    """The product with all that one launch can do after it."""
    if not product.sums_fit:
        return product
    while (at := values.reader(product.scope.jaxpr.eqns[product.eqns[-1]].outvars[0])) is not None:
        longer = _scaled_by(product, at)
        if longer is None or None in longer.places:
            break
        product = longer
    if not product.places or None in product.places:
        return product.alone
    eqns, bias = values.bias(product.eqns[-1])
    applied, activation = values.activation((*product.eqns, *eqns)[-1])
    longer = replace(product, eqns=(*product.eqns, *eqns, *applied), bias=bias, activation=activation)
    return longer if same_settings([product.scope.jaxpr.eqns[i] for i in longer.eqns]) else product


def _scaled_by(product: Narrow, at: int) -> Narrow | None:
    """The product with the equation that reads its result, if that only scales it or rounds it."""
    before, eqn = product.scope.jaxpr.eqns[product.eqns[-1]], product.scope.jaxpr.eqns[at]
    if len(eqn.outvars) != 1 or eqn.effects or not same_settings([before, eqn]):
        return None
    scales = scales_since(Value(product.scope, before.outvars[0]), Value(product.scope, eqn.outvars[0]))
    made = {v for i in product.eqns for v in product.scope.jaxpr.eqns[i].outvars}
    if scales is None or not all(x.value.is_cheap() and made.isdisjoint(x.value.sources()) for x in scales):
        return None
    return replace(product, eqns=(*product.eqns, at), after=(*product.after, *scales))


def _only_dot(eqn: Any) -> Any:
    """The ``dot_general`` that an equation is, or that a function with a rule of its own consists of; else None."""
    if eqn.primitive is lax.dot_general_p:
        return eqn
    if eqn.primitive not in (primitives.custom_jvp_call_p, primitives.custom_vjp_call_p):
        return None
    body = eqn.params[BODY[eqn.primitive.name]].jaxpr
    if len(body.eqns) != 1 or body.eqns[0].primitive is not lax.dot_general_p:
        return None
    return body.eqns[0] if [*body.outvars] == [*body.eqns[0].outvars] else None


def _may_be_narrow(dot: Any) -> bool:
    """Whether a product may be multiplied in 8 bits, but for where its operands come from."""
    avals = [v.aval for v in (*dot.invars, *dot.outvars)]
    extents = [n for aval in avals for n in aval.shape]
    return (
        all((aval.dtype in WIDE or dtypes.is_8bit(aval.dtype)) and not aval.weak_type for aval in avals)
        and all(isinstance(n, int) and n > 0 for n in extents)
        # If shardings are part of types, the shardings of scales would have to fit the result's.
        and not explicit_axes(avals[-1].sharding.mesh)
    )


def _is_narrow_product(product: Narrow) -> bool:
    contract, operands = product.dot.params["dimension_numbers"][0], product.operands
    along = [axes & {*summed} for x, summed in zip(operands, contract, strict=True) for axes in x.varying]
    integers = [is_integer(x.values) for x in operands]
    if integers[0] != integers[1] or any(along):
        return False
    if not all(value.is_cheap() for value in product.read_from):
        return False
    out = product.dot.outvars[0].aval.dtype
    if out not in FLOATS:  # sums in int32 wrap as they did
        return all(integers) and bool(out == np.int32)
    return product.sums_fit


# --- What is left ---------------------------------------------------------------------------------------------


def why_by_jnp(jaxpr: Jaxpr, eqn: Any) -> str:
    """Why jnp applies scales to what a product of jaxgemm's makes of 8 bits; empty if it applies none right after."""
    narrow = eqn.primitive in (gemm_p, scaled_p) and all(dtypes.is_8bit(v.aval.dtype) for v in eqn.invars[:2])
    if not narrow or not eqn.params["epilogue"].is_scaling:
        return ""
    scope = Scope.of(jaxpr)
    a, b, out = (Value(scope, v) for v in (*eqn.invars[:2], eqn.outvars[0]))
    scales, alone = _scales_next(out, Values(jaxpr))
    if not scales:
        return ""
    if eqn.primitive is scaled_p:
        rows, columns = (not given for given in eqn.params["scales"])  # places that are left
        last, varying = len(out.shape) - 1, [x.varying for x in scales]
        fit = (columns and x == {last} if last in x else rows or (columns and not x) for x in varying)
        return _TAKEN if all(fit) else _PLACES
    product = Narrow(scope, (), eqn, (Operand(a), Operand(b)), scales)
    if why := product.refusal(eqn.params["precision"]):
        return why
    if product.transposed is None:
        return "launches that scale multiply rows by one matrix, along one axis"
    if not product.sums_fit:
        return "sums may pass what int32 holds"
    if None in product.places:
        return _PLACES
    return _TAKEN if alone else "the product is read without its scales, too"


_PLACES = "a launch takes one scale of rows, one of columns, and one of all in place of either"
_TAKEN = (
    "a launch takes them as jaxgemm.gemm's a_scale and b_scale, without a c, with a number as alpha and with one "
    "b_scale for all rows; so does jaxgemm.override where shardings are not part of types"
)


def _scales_next(start: Value, values: Values) -> tuple[tuple[Scale, ...], bool]:
    """The scales by which a value is multiplied next, if it is, and whether nothing else reads it."""
    readers = [eqn for eqn in start.scope.jaxpr.eqns if start.var in eqn.invars and len(eqn.outvars) == 1]
    for eqn in readers:
        found = scales_since(start, Value(start.scope, eqn.outvars[0]))
        alone = values.reader(start.var) is not None
        if found == ():
            found, later = _scales_next(Value(start.scope, eqn.outvars[0]), values)
            alone = alone and later
        if found and not any(start.var in x.value.sources() or _of_product(x.value, start) for x in found):
            return found, alone
    return (), True


def _of_product(value: Value, start: Value) -> bool:
    """Whether a factor of ``start`` is another product, or made of one by elements, as in a gated pair: no scale."""
    made = [v for v in value.sources() if v.aval.shape == start.shape]
    for eqn in filter(None, map(start.scope.makers.get, made)):
        if eqn.primitive in KINDS or eqn.primitive is lax.dot_general_p:
            return True
        made += [v for v in eqn.invars if v.aval.shape == start.shape and not isinstance(v, Literal) and v not in made]
    return False
