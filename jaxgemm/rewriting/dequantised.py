"""Where values of 8 bits come from, and what multiplies them: the operands of products, and the scales of results.

Between values and product these are looked through: conversions, multiplications and divisions by a scale,
transpositions, reshapes, and calls (jit, custom_jvp, custom_vjp), since flax has a dequantisation in one call, and the
product, alone, in another. Anything else, such as a zero point, leaves a product as it is. Between a product
and what it is scaled to only conversions, scales and calls are looked through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from jaxgemm import dtypes
from jaxgemm.rewriting.origins import Value

#: The types in which scales may multiply values, and in which the product's result may be.
FLOATS = {dtypes.named(name) for name in ("bfloat16", "float16", "float32")}
#: The types that values of 8 bits may be converted to on the way.
WIDE = FLOATS | {np.dtype(np.int16), np.dtype(np.int32)}
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

#: For each axis of a result, the operand's axis that it is; None for an axis of extent 1 that the operand lacks.
_Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class _Reshape:
    """A reshape that merges or splits axes.

    Attributes:
        before, after: the shapes.
        groups: neighbouring axes of one shape that become neighbouring axes of the other, in order.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    groups: tuple[tuple[range, range], ...]

    @staticmethod
    def of(before: tuple[int, ...], after: tuple[int, ...]) -> _Reshape | None:
        """The reshape, with groups as small as they can be; None of arrays that are empty or scalars."""
        if not before or not after or 0 in before:
            return None
        groups, i, j = [], 0, 0
        while i < len(before) and j < len(after):
            first, m, n = (i, j), before[i], after[j]
            i, j = i + 1, j + 1
            while m != n:
                i, j, m, n = (i + 1, j, m * before[i], n) if m < n else (i, j + 1, m, n * after[j])
            groups.append((range(first[0], i), range(first[1], j)))
        last = groups[-1]  # axes of extent 1 are left in one of the shapes
        groups[-1] = range(last[0].start, len(before)), range(last[1].start, len(after))
        return _Reshape(before, after, tuple(groups))

    def carried(self, varying: frozenset[int]) -> frozenset[int]:
        """The axes along which elements may differ then."""
        found = [i for old, new in self.groups if varying & {*old} for i in new]
        return frozenset(i for i in found if self.after[i] != 1)

    def moved(self, x: jax.Array) -> jax.Array:
        """The array, reshaped. Where it has extents of 1 for all axes of a group, it keeps them."""
        long = [(old, new, any(x.shape[i] != 1 for i in old)) for old, new in self.groups]
        whole = [self.before[i] if is_long else 1 for old, _, is_long in long for i in old]
        return lax.reshape(jnp.broadcast_to(x, whole), [self.after[i] if y else 1 for _, new, y in long for i in new])


@dataclass(frozen=True)
class Scale:
    """A value that multiplies or divides an array, and the axes of the array along which the value may vary."""

    value: Value
    divides: bool
    varying: frozenset[int]

    @staticmethod
    def of(value: Value, divides: bool, out: Value) -> Scale | None:
        """The scale whose multiplication, or division, made ``out``; None if it cannot be applied elsewhere."""
        # Integers times scales would have to wrap as in the program.
        fits = out.dtype in FLOATS and len(value.shape) in (0, len(out.shape))
        return Scale(value, divides, _varying(value)) if fits else None

    def factors(self, out: Value, depth: int = 0) -> list[Scale]:
        """The scale, or those whose product it is, if it varies along the last axis and others."""
        value, eqn = self.value.origin()
        crossing = len(out.shape) - 1 in self.varying and len(self.varying) > 1
        if not crossing or eqn is None or depth == _LONGEST or value.dtype not in FLOATS:
            return [self]
        if eqn.primitive not in (lax.mul_p, lax.div_p, lax.convert_element_type_p):
            return [self]
        divide = self.divides, self.divides != (eqn.primitive is lax.div_p)
        inputs = [Value(value.scope, v).outward() for v in eqn.invars]
        found = [Scale.of(x, divides, out) for x, divides in zip(inputs, divide, strict=False)]
        factors = [y for x in found if x is not None for y in x.factors(out, depth + 1)]
        return [self] if None in found else factors

    def read(self, known: dict[Any, jax.Array]) -> jax.Array:
        """What to multiply by, in float32: a scalar, or of the array's rank, and 1 long where it does not vary."""
        x = self.value.read(known)
        for axis, extent in enumerate(x.shape):
            if extent > 1 and axis not in self.varying:
                x = lax.slice_in_dim(x, 0, 1, axis=axis)
        x = lax.convert_element_type(x, np.float32)
        return lax.div(jnp.ones_like(x), x) if self.divides else x


@dataclass(frozen=True)
class Operand:
    """Values of 8 bits and what is done to them, if anything: they are scaled, or moved to other axes.

    Attributes:
        values: the values of 8 bits.
        steps: what is done to them, in order.
    """

    values: Value
    steps: tuple[Scale | _Axes | _Reshape, ...] = ()

    @property
    def varying(self) -> list[frozenset[int]]:
        """The axes along which each scale may vary in the end."""
        found: list[frozenset[int]] = []
        for step in self.steps:
            found = [*found, step.varying] if isinstance(step, Scale) else [_carried(axes, step) for axes in found]
        return found

    @property
    def is_transposed(self) -> bool:
        """Whether the values are the transpose of a matrix."""
        axes: _Axes = tuple(range(len(self.values.shape)))
        for step in self.steps:
            if isinstance(step, _Reshape):
                return False
            axes = axes if isinstance(step, Scale) else tuple(None if i is None else axes[i] for i in step)
        return axes == (1, 0) and len(self.values.shape) == 2

    @property
    def read_from(self) -> list[Value]:
        """The values of 8 bits, and the scales."""
        return [self.values, *(step.value for step in self.steps if isinstance(step, Scale))]

    def read(self, known: dict[Any, jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        """The values and the scales in float32, of the rank of the product's operand, or scalars."""
        x, scales = self.values.read(known), []
        for step in self.steps:
            if isinstance(step, Scale):
                scales.append(step.read(known))
            else:
                x, scales = _moved(x, step), [_moved(s, step) if s.ndim else s for s in scales]
        return x, scales


def _moved(x: jax.Array, axes: _Axes | _Reshape) -> jax.Array:
    if isinstance(axes, _Reshape):
        return axes.moved(x)
    kept = [axis for axis in axes if axis is not None]
    x = lax.squeeze(x, [i for i in range(x.ndim) if i not in kept])
    x = lax.transpose(x, [sorted(kept).index(axis) for axis in kept])
    return lax.expand_dims(x, [i for i, axis in enumerate(axes) if axis is None])


def operand(value: Value, depth: int = 0) -> Operand | None:
    """The values of 8 bits that an array is or was made of, and how; None if it was not."""
    if dtypes.is_8bit(value.dtype):
        return _untransposed(value.outward())
    value, eqn = value.origin()
    if eqn is None or depth == _LONGEST or value.dtype not in WIDE:
        return None
    inputs = [Value(value.scope, v).outward() for v in eqn.invars]
    if eqn.primitive is lax.convert_element_type_p:
        cut_off = is_integer(value) and not is_integer(inputs[0])  # fractions
        return None if cut_off else operand(inputs[0], depth + 1)
    if eqn.primitive in (lax.mul_p, lax.div_p):
        for this, by in _scalings(eqn, inputs):
            if this.shape == value.shape and (found := operand(this, depth + 1)):
                scale = Scale.of(by, eqn.primitive is lax.div_p, value)
                return replace(found, steps=(*found.steps, scale)) if scale else None
        return None
    axes = _axes(eqn)
    if axes is None or (found := operand(inputs[0], depth + 1)) is None:
        return None
    return replace(found, steps=(*found.steps, axes))


def _untransposed(value: Value) -> Operand:
    """Values of 8 bits, which a product may read as they lie before a transposition."""
    eqn = None if isinstance(value.var, Literal) else value.scope.makers.get(value.var)
    if eqn is None or eqn.primitive is not lax.transpose_p:
        return Operand(value)
    return Operand(Value(value.scope, eqn.invars[0]).outward(), (tuple(eqn.params["permutation"]),))


def scales_since(start: Value, value: Value, depth: int = 0) -> tuple[Scale, ...] | None:
    """The scales by which a value is another, of the outermost scope, multiplied; None if it is not only scaled."""
    value, eqn = value.origin(start.var)
    if value.scope is start.scope and value.var is start.var:
        return ()
    if eqn is None or depth == _LONGEST or value.dtype not in FLOATS or value.shape != start.shape:
        return None
    inputs = [Value(value.scope, v).outward() for v in eqn.invars]
    if eqn.primitive is lax.convert_element_type_p or eqn.primitive.name in _COPIES:
        return scales_since(start, inputs[0], depth + 1)
    for this, by in _scalings(eqn, inputs):
        if (found := scales_since(start, this, depth + 1)) is not None:
            scale = Scale.of(by, eqn.primitive is lax.div_p, value)
            return (*found, *scale.factors(value)) if scale else None
    return None


def _scalings(eqn: Any, inputs: list[Value]) -> list[list[Value]]:
    """(what is scaled, scale) as which an equation may be read."""
    if eqn.primitive is lax.div_p:
        return [inputs]
    return [inputs, inputs[::-1]] if eqn.primitive is lax.mul_p else []


def is_integer(value: Value) -> bool:
    """Whether elements are integers."""
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


def _axes(eqn: Any) -> _Axes | _Reshape | None:
    """The axes of its operand that the axes of an equation's result are; None if it does more than move axes."""
    if eqn.primitive is lax.transpose_p:
        return tuple(eqn.params["permutation"])
    if eqn.primitive.name in _COPIES:
        return tuple(range(len(eqn.outvars[0].aval.shape)))
    transposes = eqn.primitive is lax.reshape_p and eqn.params["dimensions"] is not None
    symbolic = len(eqn.invars) != 1  # operands include a symbolic shape
    if transposes or symbolic or eqn.primitive not in (lax.reshape_p, lax.squeeze_p, lax.broadcast_in_dim_p):
        return None
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    long = [i for i, n in enumerate(before) if n != 1]
    if [before[i] for i in long] != [n for n in after if n != 1]:
        return _Reshape.of(before, after) if eqn.primitive is lax.reshape_p else None
    # It adds and drops axes of extent 1.
    rest = iter(long)
    return tuple(next(rest) if n != 1 else None for n in after)


def _carried(varying: frozenset[int], axes: _Axes | _Reshape) -> frozenset[int]:
    if isinstance(axes, _Reshape):
        return axes.carried(varying)
    return frozenset(i for i, axis in enumerate(axes) if axis in varying)
