"""The public products. Each checks its arguments while tracing and binds a dense product."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import dtypes
from jaxgemm import precision as prec
from jaxgemm.epilogue import Epilogue, apply
from jaxgemm.problem import DimensionNumbers
from jaxgemm.products.arguments import (
    as_array,
    as_bias,
    asked_dtype,
    broadcast,
    check_activation_of,
    dot_dtype,
    gives_way,
    no_epilogue_of_booleans,
    option_pairs,
    pair_for_type,
    promoted_pair,
    result_dtype,
    static_scaling,
    weakly_typed,
)
from jaxgemm.products.dense import bind
from jaxgemm.products.scaled import bind_scaled, is_matrix_product
from jaxgemm.products.scales import check_types, scaled, scaled_result, scales_of


def gemm(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: ArrayLike = 1.0,
    beta: ArrayLike | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    out_dtype: DTypeLike | None = None,
    precision: prec.Precision = None,
    kernel: str = "auto",
    batch_invariant: bool = False,
    **kernel_options: Any,
) -> jax.Array:
    """``activation(alpha * op(a) @ op(b) + beta * c + bias)``, op transposing the last two axes or not.

    Args:
        a: shape (..., m, k), or (..., k, m) with ``transpose_a``. Leading axes are batches, which broadcast as in
            ``jnp.matmul``, without being materialised.
        b: shape (..., k, n), or (..., n, k) with ``transpose_b``.
        c: anything that broadcasts to the result's shape. With ``beta`` 0 it is not read, so NaN in it stays out.
        alpha: scales the product. A Python number is part of the program, an array is an operand. As in jnp,
            0 times NaN or infinity is NaN.
        beta: scales ``c``; by default 1 when ``c`` is given.
        bias: shape (n,), added to every row.
        activation: a name in :data:`jaxgemm.epilogue.ACTIVATIONS`, as "gelu" (tanh form, as ``jax.nn.gelu``).
        a_scale: float32 or a Python number, for two integers or two floats of 8 bits: an operand stands for its values
            times its scales. Shape (), or (..., 1, 1), one for each matrix, or (..., m, 1), one for each row of op(a).
            Scales multiply the product before alpha does. Sums of integers must fit into int32.
        b_scale: the same for b: shape (), (..., 1, 1), or (..., 1, n), one for each column of op(b).
        out_dtype: type of the result. By default the type that jnp promotes the operands to; int32 for 8- and 16-bit
            integers; float32 for 8-bit floats and if there are scales. Two 8-bit types, of integers or of floats, are
            multiplied without promotion. A product of booleans is a boolean (whether any pair is true), and has no
            epilogue.
            Sums are kept in fp32 for 16-bit floats and int32 for 8-bit integers. A kernel of ours rounds once, after
            the epilogue. XLA rounds before the epilogue as well, as jnp does, unless it fuses the epilogue. Only XLA
            computes a result wider than the type of the sums, but for 8-bit integers whose sums int32 holds.
        precision: as ``jnp.dot`` takes it; see :mod:`jaxgemm.precision`.
        kernel: "auto" (ours if it is known to be faster, else XLA's), "xla", or a name out of
            :func:`jaxgemm.kernels`.
        batch_invariant: whether the bits of a row of the result must depend neither on m, nor on other rows, nor
            on its place among them. The kernel and its configuration then follow from n, k, the types and the
            layout of b alone, and K is not split. XLA's product is never taken. Derivatives do not promise it.
        **kernel_options: the named kernel's options, such as ``tile_m=128`` of "sm90".

    Returns:
        Shape (..., m, n).

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a shape, name or option is wrong.
        UnsupportedError: a kernel asked for by name cannot run this. Raised while the program is lowered.
    """
    operands = as_array("a", a), as_array("b", b)
    given = {"a_scale": a_scale, "b_scale": b_scale}
    first = next((name for name, scale in given.items() if scale is not None), "")
    if first and not any(x.weak_type for x in operands):  # before jnp's error where it promotes both to no type
        check_types(f"gemm: {first}", operands[0].dtype, operands[1].dtype)
    a, b, weak = promoted_pair(*operands, apart=True)
    shape_a, shape_b = a.shape, b.shape  # a tracer works its shape out each time, so once
    _check_matrices(shape_a, shape_b, transpose_a, transpose_b)
    weak = weak and out_dtype is None and all(map(gives_way, (c, alpha, beta, bias)))
    options = option_pairs(kernel, kernel_options)
    dtype = a.dtype
    out, sums, accumulator = _types(out_dtype, dtype, scaled=bool(first))
    batch, dims, order = _matmul_dims(shape_a[:-2], shape_b[:-2], bool(transpose_a), bool(transpose_b))
    shape = (*batch.shape, shape_a[-1 if transpose_a else -2], shape_b[-2 if transpose_b else -1])

    beta = (1.0 if c is not None else 0.0) if beta is None else beta
    types = [x.dtype if was.weak_type else was.dtype for x, was in zip((a, b), operands, strict=True)]
    scales = scales_of(given, types, shape_a[-2 if transpose_a else -1], shape)
    static_alpha = static_scaling("alpha", alpha, accumulator, out)
    static_beta = static_scaling("beta", beta, accumulator, out)
    if c is None and static_beta != 0.0:
        raise ValueError(f"gemm: beta is {beta}, but c is missing")
    if static_beta == 0.0:
        c = None
    if dtype == np.bool_:
        no_epilogue_of_booleans("gemm", static_alpha != 1.0, c is not None, bias is not None, activation is not None)
    c = None if c is None else broadcast(c, shape, out)
    bias = None if bias is None else as_bias("gemm", bias, shape[-1:], "one element a column", out)
    check_activation_of("gemm", activation, out)

    how = {"precision": precision, "kernel": kernel, "options": options, "batch_invariant": batch_invariant}
    transposed = transpose_a, transpose_b
    if scales and c is None and static_alpha is not None and is_matrix_product(a, b, scales.get("b_scale"), transposed):
        epilogue = Epilogue(static_alpha, 0.0, bias is not None, activation)
        product = bind_scaled(a, b, scales, bias, transposed, out, epilogue, **how)
        missing = len(shape) - product.ndim
        return lax.expand_dims(product, range(missing)) if missing else product
    a, b = batch.squeeze(a, b, shape_a, shape_b)
    multiply = partial(bind, a, b, dims=dims, **how)
    if scales or static_alpha is None or static_beta is None:
        # Scales that are arrays multiply outside of the kernel, where they can be traced and differentiated.
        product = _reshape(_transpose(multiply(extra=(), out=sums, epilogue=Epilogue()), order), shape)
        product = scaled(product, scales.values(), accumulator) * jnp.asarray(alpha).astype(accumulator)
        if c is not None:
            c = c.astype(accumulator) * jnp.asarray(beta).astype(accumulator)
        product = apply(Epilogue(1.0, float(c is not None), bias is not None, activation), product, c, bias, out)
    else:
        epilogue = Epilogue(static_alpha, static_beta, bias is not None, activation)
        if c is not None and order is not None:
            c = lax.transpose(c, tuple(int(i) for i in np.argsort(order)))
        product = multiply(extra=tuple(x for x in (c, bias) if x is not None), out=out, epilogue=epilogue)
        if not (order is None and batch.is_plain):  # if no axis broadcasts, the product has this shape already
            product = _reshape(_transpose(product, order), shape)
    return weakly_typed(product) if weak else product


def _types(given: DTypeLike | None, operand: np.dtype, *, scaled: bool) -> tuple[np.dtype, np.dtype, np.dtype]:
    """The types of the result, of the sums, and of what follows the sums before it is rounded."""
    if scaled:
        return scaled_result(given), dtypes.accumulator(operand), np.dtype(np.float32)
    out = result_dtype(given, operand)
    accumulator = dtypes.summed(operand, operand, out)
    return out, accumulator, accumulator


def _check_matrices(a: tuple[int, ...], b: tuple[int, ...], transpose_a: bool, transpose_b: bool) -> None:
    """Errors for operands of these shapes that cannot be multiplied."""
    for name, given, transposed in (("a", a, transpose_a), ("b", b, transpose_b)):
        if len(given) < 2:
            raise ValueError(f"gemm: {name} needs at least 2 axes, got shape {given}; see jaxgemm.matmul for vectors")
        if not isinstance(transposed, (bool, np.bool_)):
            raise TypeError(f"gemm: transpose_{name} must be a bool, got {type(transposed).__name__}")
    k_a, k_b = a[-2 if transpose_a else -1], b[-1 if transpose_b else -2]
    if k_a != k_b:
        raise ValueError(
            f"gemm: inner dimensions differ: op(a) of shape {_op(a, transpose_a)} has k = {k_a}, "
            f"op(b) of shape {_op(b, transpose_b)} has k = {k_b}"
        )


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    kernel: str = "auto",
    batch_invariant: bool = False,
) -> jax.Array:
    """The product of two arrays, as ``jnp.matmul``: vectors, matrices and broadcast batches of them.

    Args:
        a: shape (..., m, k) or (k,).
        b: shape (..., k, n) or (k,).
        precision: as ``jnp.matmul`` takes it.
        preferred_element_type: type of the result; by default that of the promoted operands. Only XLA
            computes a result wider than the type of the sums: see ``out_dtype`` of :func:`gemm`.
        kernel, batch_invariant: as for :func:`gemm`.

    Returns:
        Shape (..., m, n), without m if a is a vector, and without n if b is one.

    Raises:
        TypeError, ValueError, UnsupportedError: as for :func:`gemm`.
    """
    a, b, dtype, weak = pair_for_type(a, b)
    shape_a, shape_b = a.shape, b.shape
    if not shape_a or not shape_b:
        raise ValueError(f"matmul: operands need at least one axis, got shapes {shape_a} and {shape_b}")
    out = asked_dtype(preferred_element_type, dtype)
    k_a, k_b = shape_a[-1], shape_b[-2 if len(shape_b) > 1 else 0]
    if k_a != k_b:
        raise ValueError(f"matmul: inner dimensions differ: {shape_a} has k = {k_a}, {shape_b} has k = {k_b}")
    vector_a, vector_b = len(shape_a) == 1, len(shape_b) == 1
    if vector_a:
        a, shape_a = a[None], (1, *shape_a)
    if vector_b:
        b, shape_b = b[:, None], (*shape_b, 1)
    batch, dims, order = _matmul_dims(shape_a[:-2], shape_b[:-2], False, False)
    x, y = batch.squeeze(a, b, shape_a, shape_b)
    result = bind(x, y, (), dims, precision, out, Epilogue(), kernel, (), None, batch_invariant)
    if order is not None or not batch.is_plain:
        result = _reshape(_transpose(result, order), (*batch.shape, shape_a[-2], shape_b[-1]))
    if vector_b:
        result = result[..., 0]
    result = result[..., 0, :] if vector_a and not vector_b else result[..., 0] if vector_a else result
    return weakly_typed(result) if weak and preferred_element_type is None else result


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]],
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: Any = None,
    kernel: str = "auto",
    batch_invariant: bool = False,
) -> jax.Array:
    """General contraction with the contract of ``lax.dot_general``, which it can stand in for.

    Args:
        lhs, rhs: operands. Operands of different element types go to XLA as they are, as in ``lax.dot_general``. For a
            kernel by name they are converted to the type that jnp promotes them to. jnp promotes an 8-bit float or a
            4-bit integer with no other type, and the kernel refuses a pair of such a type and another. Two integers or
            two floats of 8 bits are a kernel's as they are.
        dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``, any number of each, in
            any order. Layouts that a kernel can read where they lie are not copied.
        precision: as ``lax.dot_general`` takes it.
        preferred_element_type: type of the result; by default that of the operands, or what ``lax.dot_general`` gives.
        out_sharding: as ``lax.dot_general`` takes it.
        kernel, batch_invariant: as for :func:`gemm`; the rows are those of ``lhs``.

    Returns:
        Axes (batch, lhs free, rhs free).

    Raises:
        TypeError, ValueError, UnsupportedError: as for :func:`gemm`; shape errors are ``lax.dot_general``'s own.
    """
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    (lc, rc), (lb, rb) = dimension_numbers

    def axes(given: Sequence[int], x: jax.Array) -> tuple[int, ...]:
        return tuple(int(i) + x.ndim if i < 0 else int(i) for i in given)

    dims = ((axes(lc, lhs), axes(rc, rhs)), (axes(lb, lhs), axes(rb, rhs)))
    out = dot_dtype(preferred_element_type, lhs.dtype, rhs.dtype)
    return bind(lhs, rhs, (), dims, precision, out, Epilogue(), kernel, (), out_sharding, batch_invariant)


class _Batch:
    """The batch axes of a matmul: the axes that both operands have, and those that only one has."""

    def __init__(self, a: tuple[int, ...], b: tuple[int, ...]):
        try:
            self.shape: tuple[int, ...] = lax.broadcast_shapes(a, b)
        except ValueError:
            raise ValueError(f"batch dimensions do not broadcast: a has {a}, b has {b}") from None
        rank = len(self.shape)
        self._a = (1,) * (rank - len(a)) + a
        self._b = (1,) * (rank - len(b)) + b
        # An axis of size 1 on one side belongs to the other side alone: it is a free axis there.
        self.shared = [i for i in range(rank) if self._a[i] == self._b[i]]
        self.only_a = [i for i in range(rank) if self._a[i] != 1 and self._b[i] == 1]
        self.only_b = [i for i in range(rank) if self._b[i] != 1 and self._a[i] == 1]
        self._kept = tuple(self._a[i] for i in self.axes(0)), tuple(self._b[i] for i in self.axes(1))
        #: Whether no axis is missing or broadcasts, so that dot_general takes the operands as they are.
        self.is_plain = self._kept == (a, b) == (self.shape, self.shape)

    def axes(self, side: int) -> list[int]:
        """The batch axes that operand 0 or 1 keeps, in order."""
        return sorted(self.shared + (self.only_b if side else self.only_a))

    def squeeze(
        self, a: jax.Array, b: jax.Array, shape_a: tuple[int, ...], shape_b: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """The operands, which have these shapes, without the axes that broadcast."""
        if self.is_plain:
            return a, b
        return _reshape(a, self._kept[0] + shape_a[-2:]), _reshape(b, self._kept[1] + shape_b[-2:])


@lru_cache(maxsize=1024)
def _matmul_dims(
    a_batch: tuple[int, ...], b_batch: tuple[int, ...], transpose_a: bool, transpose_b: bool
) -> tuple[_Batch, DimensionNumbers, tuple[int, ...] | None]:
    """Batches, dimension numbers for the squeezed operands, and the transposition of dot_general's result."""
    batch = _Batch(a_batch, b_batch)
    axes_a, axes_b = batch.axes(0), batch.axes(1)
    lhs_batch = tuple(axes_a.index(i) for i in batch.shared)
    rhs_batch = tuple(axes_b.index(i) for i in batch.shared)
    lhs_contract = (len(axes_a) + (0 if transpose_a else 1),)
    rhs_contract = (len(axes_b) + (1 if transpose_b else 0),)
    # dot_general gives (shared, only a, m, only b, n); the result wants the batch axes in their places.
    m, n = len(batch.shape), len(batch.shape) + 1
    given = [*batch.shared, *batch.only_a, m, *batch.only_b, n]
    order = tuple(int(i) for i in np.argsort(given))
    dims = ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))
    return batch, dims, None if order == tuple(range(len(order))) else order


def _transpose(x: jax.Array, order: tuple[int, ...] | None) -> jax.Array:
    return x if order is None else lax.transpose(x, order)


def _reshape(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    # Comparing shapes is much cheaper than tracing a reshape that changes nothing.
    return x if x.shape == shape else x.reshape(shape)


def _op(shape: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
