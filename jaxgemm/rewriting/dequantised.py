"""Products of numbers that were 8-bit values just before, and scales that go with them: multiplied in 8 bits.

A program that dequantises first, ``dot(values.astype(wide) * scale, ...)``, has a product of 16 or 32 bits, and XLA
computes it so unless XLA finds the pattern by itself. If neither operand's scale varies along a contracted axis, scales
can multiply the result instead, and the product can be one of the 8-bit values.

The result is not bit for bit the program's, but as near to what the program means. Values of 8 bits are exact in every
wider type, so only two roundings differ: value times scale is not rounded to 16 bits, and sums are rounded otherwise.
Both are far smaller than the rounding to 8 bits before. Scales multiply in float32, one after the other, and float32
must hold a sum times a scale. The precisions "high" and "highest" say how values are multiplied, which is exact here,
and how sums are kept. An algorithm names the types to multiply in, so a product that asks for an algorithm stays.

Between values and product these are looked through: conversions, multiplications and divisions by a scale,
transpositions, axes of extent 1, and calls (jit, custom_jvp, custom_vjp), since flax has a dequantisation in one call,
and the product, alone, in another. Anything else, such as a zero point, leaves a product as it is.

Derivatives are those of the program as it stands, by its own rules: of the dequantised operands, which are computed if
a derivative needs them. If ``override`` is around ``grad``, products in derivatives are found in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun, primitives

from jaxgemm import dtypes
from jaxgemm._jax_private import explicit_axes
from jaxgemm.epilogue import Epilogue
from jaxgemm.problem import DimensionNumbers
from jaxgemm.products.dense import bind
from jaxgemm.products.scales import most_terms, scaled
from jaxgemm.rewriting.origins import BODY, Scope, Value
from jaxgemm.rewriting.ragged import as_call
from jaxgemm.sharding.partition import vary_alike

#: The types in which scales may multiply values, and in which the product's result may be.
_FLOATS = {dtypes.named(name) for name in ("bfloat16", "float16", "float32")}
#: The types that values of 8 bits may be converted to on the way.
_WIDE = _FLOATS | {np.dtype(np.int16), np.dtype(np.int32)}
#: Operations, element by element, that may compute a scale: the result varies along the axes that an operand does.
_ELEMENTWISE = frozenset(
    {
        *("add", "sub", "mul", "div", "neg", "max", "min", "integer_pow", "sqrt", "rsqrt", "exp", "exp2", "select_n"),
        *("convert_element_type", "stop_gradient", "copy", "pvary"),
    }
)
_COPIES = frozenset({"copy", "stop_gradient", "pvary"})
#: How many operations a dequantisation has, at most.
_LONGEST = 12


# --- Operands -------------------------------------------------------------------------------------------------

#: For each axis of a result, the operand's axis that it is; None for an axis of extent 1 that the operand lacks.
_Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class _Scale:
    """A value that multiplies or divides an array, and the axes of the array along which the value may vary."""

    value: Value
    divides: bool
    varying: frozenset[int]


@dataclass(frozen=True)
class _Operand:
    """Values of 8 bits and what is done to them: they are scaled, or moved to other axes.

    Attributes:
        values: the values of 8 bits.
        steps: what is done to them, in order.
        varying: the axes along which some scale may vary in the end.
    """

    values: Value
    steps: tuple[_Scale | _Axes, ...] = ()
    varying: frozenset[int] = frozenset()

    @property
    def scales(self) -> list[_Scale]:
        return [step for step in self.steps if isinstance(step, _Scale)]

    @property
    def read_from(self) -> list[Value]:
        """The values of 8 bits, and the scales."""
        return [self.values, *(scale.value for scale in self.scales)]

    def read(self, known: dict[Any, jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        """The values and the scales in float32, of the rank of the product's operand, or scalars."""
        x, scales = self.values.read(known), []
        for step in self.steps:
            if isinstance(step, _Scale):
                scales.append(_narrow(step, step.value.read(known)))
            else:
                x, scales = _moved(x, step), [_moved(s, step) if s.ndim else s for s in scales]
        return x, scales


def _narrow(scale: _Scale, x: jax.Array) -> jax.Array:
    for axis, extent in enumerate(x.shape):
        if extent > 1 and axis not in scale.varying:
            x = lax.slice_in_dim(x, 0, 1, axis=axis)
    x = lax.convert_element_type(x, np.float32)
    return lax.div(jnp.ones_like(x), x) if scale.divides else x


def _moved(x: jax.Array, axes: _Axes) -> jax.Array:
    kept = [axis for axis in axes if axis is not None]
    x = lax.squeeze(x, [i for i in range(x.ndim) if i not in kept])
    x = lax.transpose(x, [sorted(kept).index(axis) for axis in kept])
    return lax.expand_dims(x, [i for i, axis in enumerate(axes) if axis is None])


def _operand(value: Value, depth: int = 0) -> _Operand | None:
    """The values of 8 bits that an array was made of, and how; None if it was not."""
    value, eqn = value.origin()
    if eqn is None or depth == _LONGEST or value.dtype not in _WIDE:
        return None
    inputs = [Value(value.scope, v).outward() for v in eqn.invars]
    if eqn.primitive is lax.convert_element_type_p:
        if _is_integer(value) and not _is_integer(inputs[0]):
            return None  # fractions are cut off
        return _Operand(inputs[0]) if dtypes.is_8bit(inputs[0].dtype) else _operand(inputs[0], depth + 1)
    if eqn.primitive in (lax.mul_p, lax.div_p):
        divides = eqn.primitive is lax.div_p
        for this, scale in [inputs] if divides else [inputs, inputs[::-1]]:
            if this.shape == value.shape and (found := _operand(this, depth + 1)):
                return _scaled(found, _Scale(scale, divides, _varying(scale)), value)
        return None
    axes = _axes(eqn)
    if axes is None or (found := _operand(inputs[0], depth + 1)) is None:
        return None
    return replace(found, steps=(*found.steps, axes), varying=_carried(found.varying, axes))


def _scaled(operand: _Operand, scale: _Scale, out: Value) -> _Operand | None:
    # Integers times scales would have to wrap as in the program.
    if out.dtype not in _FLOATS or len(scale.value.shape) not in (0, len(out.shape)):
        return None
    return replace(operand, steps=(*operand.steps, scale), varying=operand.varying | scale.varying)


def _is_integer(value: Value) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.integer))


def _varying(value: Value, depth: int = 0) -> frozenset[int]:
    """The axes along which elements of an array may differ."""
    long = frozenset(i for i, n in enumerate(value.shape) if n != 1)
    value, eqn = value.origin()
    if eqn is None or depth == _LONGEST:
        return long
    inputs = [Value(value.scope, v) for v in eqn.invars]
    if (axes := _axes(eqn)) is not None:
        return _carried(_varying(inputs[0], depth + 1), axes)
    if eqn.primitive is lax.broadcast_in_dim_p:
        to = eqn.params["broadcast_dimensions"]
        return frozenset(to[i] for i in _varying(inputs[0], depth + 1))
    if eqn.primitive.name not in _ELEMENTWISE:
        return long
    return frozenset().union(*(_varying(x, depth + 1) for x in inputs))


def _axes(eqn: Any) -> _Axes | None:
    """The axes of its operand that the axes of an equation's result are; None if it does more than move axes."""
    if eqn.primitive is lax.transpose_p:
        return tuple(eqn.params["permutation"])
    if eqn.primitive.name in _COPIES:
        return tuple(range(len(eqn.outvars[0].aval.shape)))
    # Other primitives may add and drop axes of extent 1.
    transposes = eqn.primitive is lax.reshape_p and eqn.params["dimensions"] is not None
    symbolic = len(eqn.invars) != 1  # operands include a symbolic shape
    if transposes or symbolic or eqn.primitive not in (lax.reshape_p, lax.squeeze_p, lax.broadcast_in_dim_p):
        return None
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    long = [i for i, n in enumerate(before) if n != 1]
    if [before[i] for i in long] != [n for n in after if n != 1]:
        return None
    rest = iter(long)
    return tuple(next(rest) if n != 1 else None for n in after)


def _carried(varying: frozenset[int], axes: _Axes) -> frozenset[int]:
    return frozenset(i for i, axis in enumerate(axes) if axis in varying)


# --- Products -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Narrow:
    """A product whose operands were values of 8 bits.

    Attributes:
        jaxpr: the jaxpr that the product is in.
        eqn: the equation that has the product: a ``dot_general``, or a call of a function with a rule that is one.
        dot: the ``dot_general``.
        operands: its operands, in order.
    """

    jaxpr: Jaxpr
    eqn: Any
    dot: Any
    operands: tuple[_Operand, _Operand]

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
        scales = any(x.scales for x in self.operands)
        return kept if scales or jnp.issubdtype(kept, jnp.integer) else out

    def replaced(self, params: dict[str, Any], instead: Any) -> Any:
        """The equation as a call that multiplies in 8 bits.

        Args:
            params: the primitive's parameters for the product as it was.
            instead: an equation of the same operands and results as ``eqn``, for derivatives.
        """
        given = [*dict.fromkeys(v for v in instead.invars if not isinstance(v, Literal))]
        read = [value for operand in self.operands for value in operand.read_from]
        sources = [*dict.fromkeys(v for value in read for v in value.sources())]
        program = self.jaxpr.replace(constvars=[], invars=given, outvars=instead.outvars, eqns=[instead])
        product = _with_derivative(lambda *arrays: jaxpr_as_fun(ClosedJaxpr(program, ()))(*arrays)[0])

        def narrow(*arrays: jax.Array) -> jax.Array:
            values = map(lax.stop_gradient, arrays[len(given) :])
            found = self._multiplied(dict(zip(sources, values, strict=True)), params)
            return product(*vary_alike(*arrays[: len(given)], found))

        return as_call(self.eqn.replace(invars=[*given, *sources]), narrow)

    def _multiplied(self, known: dict[Any, jax.Array], params: dict[str, Any]) -> jax.Array:
        dims: DimensionNumbers = params["dimension_numbers"]
        (a, a_scales), (b, b_scales) = (operand.read(known) for operand in self.operands)
        product = bind(a, b, (), dims, params["precision"], self.sums, Epilogue(), params["kernel"])
        if scales := [_of_result(x, side, dims, (a, b)) for side, of in enumerate((a_scales, b_scales)) for x in of]:
            product = scaled(product, scales, np.dtype(np.float32))
        return lax.convert_element_type(product, params["preferred_element_type"])


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


def _with_derivative(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function that returns the last of its arrays, with the derivative that ``function`` of the others has.

    The last array is the product. It is computed outside, where a policy of ``jax.checkpoint`` sees it.
    """

    @jax.custom_jvp
    def product(*arrays: jax.Array) -> jax.Array:
        return arrays[-1]

    def rule(primals: Sequence[jax.Array], tangents: Sequence[Any]) -> tuple[jax.Array, Any]:
        out = product(*primals)
        moving = [i for i, tangent in enumerate(tangents[:-1]) if not isinstance(tangent, SymbolicZero)]
        if not moving:
            return out, jnp.zeros_like(out)

        def moved(*some: jax.Array) -> jax.Array:
            arrays = dict(enumerate(primals[:-1])) | dict(zip(moving, some, strict=True))
            return function(*arrays.values())

        return out, jax.jvp(moved, [primals[i] for i in moving], [tangents[i] for i in moving])[1]

    product.defjvp(rule, symbolic_zeros=True)
    return product


def narrow_products(jaxpr: Jaxpr) -> Iterator[tuple[int, Narrow]]:
    """The products of a jaxpr that can be multiplied in 8 bits, with the places of their equations."""
    scope: Scope | None = None
    for i, eqn in enumerate(jaxpr.eqns):
        dot = _only_dot(eqn)
        if dot is None or not _may_be_narrow(dot):
            continue
        scope = scope or Scope.of(jaxpr)
        around = scope if dot is eqn else scope.body(eqn)
        found = [_operand(Value(around, v)) for v in dot.invars]
        if found[0] is not None and found[1] is not None and _is_narrow_product(dot, (found[0], found[1])):
            yield i, Narrow(jaxpr, eqn, dot, (found[0], found[1]))


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
        all(aval.dtype in _WIDE and not aval.weak_type for aval in avals)
        and all(isinstance(n, int) and n > 0 for n in extents)
        # If shardings are part of types, the shardings of scales would have to fit the result's.
        and not explicit_axes(avals[-1].sharding.mesh)
    )


def _is_narrow_product(dot: Any, operands: tuple[_Operand, _Operand]) -> bool:
    contract = dot.params["dimension_numbers"][0]
    types = [x.values.dtype for x in operands]
    integers = [_is_integer(x.values) for x in operands]
    if integers[0] != integers[1] or any(x.varying & {*axes} for x, axes in zip(operands, contract, strict=True)):
        return False
    if not all(value.is_cheap() for operand in operands for value in operand.read_from):
        return False
    out = dot.outvars[0].aval.dtype
    if out not in _FLOATS:  # sums in int32 wrap as they did
        return all(integers) and bool(out == np.int32)
    return not all(integers) or prod(dot.invars[0].aval.shape[axis] for axis in contract[0]) <= most_terms(types)
