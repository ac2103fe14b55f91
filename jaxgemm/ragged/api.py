"""``ragged_dot`` and ``ragged_dot_general``, as lax has them, and ``ragged_gated``; each group is kept to itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import api
from jaxgemm import precision as prec
from jaxgemm._jax_private import explicit_axes
from jaxgemm.products.arguments import (
    as_bias,
    asked_dtype,
    check_activation,
    check_activation_of,
    float_operands,
    float_result,
    no_epilogue_of_booleans,
    promoted_pair,
    weakly_typed,
)
from jaxgemm.ragged import arguments, layout
from jaxgemm.ragged.form import Form
from jaxgemm.ragged.fused import grouped_fused_p
from jaxgemm.ragged.product import grouped_p
from jaxgemm.sharding.partition import vary_alike


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
    *,
    bias: ArrayLike | None = None,
    activation: str | None = None,
    kernel: str = "auto",
    batch_invariant: bool = False,
) -> jax.Array:
    """Rows of ``lhs``, in groups that lie one after the other, each times the weights of its group.

    As ``lax.ragged_dot``, with a meaning for what lax leaves open. Values in one group's rows or weights, NaN and
    infinity among them, reach no other group's result. Sizes below 0 count as 0. ``group_offset`` is supported.

    Args:
        lhs: shape (m, k).
        rhs: shape (held, k, n), the weights of ``held`` groups.
        group_sizes: shape (groups,), of any integer type: how many rows each group has. The values may be known at run
            time only. Rows beyond the sum of the sizes belong to no group and have zeros in the result. If the sizes
            sum to more than m, groups end at row m.
        precision: as ``lax.ragged_dot`` takes it. On a Hopper GPU a kernel may compute a product of float32 as three of
            bfloat16, which keep 16 bits of each number (XLA's TF32 keeps 11), unless "highest" is asked for.
        preferred_element_type: type of the result; by default that of the promoted operands.
        group_offset: shape (1,), an integer that may be traced: the group of the first weight. Rows of groups whose
            weights ``rhs`` does not hold have zeros. Without it there must be as many weights as groups.
        out_sharding: as ``lax.ragged_dot`` takes it. On a mesh of explicit axes it may be left out, unless k or the
            groups of ``rhs`` are sharded.
        bias: shape (held, n), added to the rows of each group.
        activation: as for :func:`jaxgemm.gemm`. It is applied to rows that have a group.
        kernel: "auto", "xla" (XLA computes a dense product for each group), or the name of a kernel with a grouped form
            out of :func:`jaxgemm.kernels`.
        batch_invariant: whether the bits of a row of the result must depend neither on m, nor on other rows, nor on the
            sizes of the groups. Neither XLA's products nor derivatives promise it.

    Returns:
        Shape (m, n).

    Raises:
        TypeError: an argument has the wrong type, as sizes that are no integers.
        ValueError: a shape or a name is wrong, or XLA's product is asked to be batch-invariant.
        UnsupportedError: the kernel asked for by name cannot compute the product, or no batch-invariant kernel can; or
            XLA divides the program over several devices by itself. Raised while the program is lowered.
    """
    x, w, weak = promoted_pair(lhs, rhs)
    if x.ndim != 2 or w.ndim != 3:
        raise ValueError(
            f"ragged_dot: expected lhs (m, k) and rhs (groups, k, n), got shapes {x.shape} and {w.shape}; {_MATRICES}"
        )
    _check_inner("ragged_dot", x, w, f"rhs of shape {w.shape} has")
    out = asked_dtype(preferred_element_type, x.dtype)
    held = w.shape[0]
    where = arguments.where("ragged_dot", group_sizes, group_offset, held)
    extra = None if bias is None else as_bias("ragged_dot", bias, (held, w.shape[2]), "a row for each group", out)
    if out == np.bool_:
        no_epilogue_of_booleans("ragged_dot", bias is not None, activation is not None)
    check_activation_of("ragged_dot", activation, out)
    target = arguments.target(out_sharding)
    params = arguments.parameters(
        precision=precision, out=out, kernel=kernel, out_sharding=target, batch_invariant=batch_invariant
    )
    operands = vary_alike(x, w, *where, *([] if extra is None else [extra]))
    if extra is None and activation is None:
        z = grouped_p.bind(*operands, form=Form(False, False, held), **params)
    else:
        z = grouped_fused_p.bind(*operands, activation=activation, gated=False, has_bias=extra is not None, **params)
    return _finished(
        z, None if target else out_sharding, weak=weak and preferred_element_type is None and extra is None
    )


def ragged_gated(
    lhs: ArrayLike,
    w_gate: ArrayLike,
    w_up: ArrayLike,
    group_sizes: ArrayLike,
    *,
    activation: str | None = "silu",
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
    kernel: str = "auto",
    batch_invariant: bool = False,
) -> jax.Array:
    """``activation(x @ w_gate[g]) * (x @ w_up[g])`` for each row x of ``lhs``, with g its group.

    This is for a mixture of layers what :func:`jaxgemm.gated_gemm` is for one. Groups are as for
    :func:`jaxgemm.ragged_dot`: values in one group's rows or weights reach no other group's result.

    Args:
        lhs: shape (m, k), floating-point, as the weights.
        w_gate, w_up: shape (held, k, n), the weights of ``held`` groups.
        group_sizes: shape (groups,), as for :func:`jaxgemm.ragged_dot`.
        activation: as for :func:`jaxgemm.gemm`; "silu" makes it SwiGLU, "gelu" GEGLU, "sigmoid" GLU.
        precision: as for :func:`jaxgemm.ragged_dot`.
        preferred_element_type: floating-point type of the result; by default that of the promoted operands. If one
            launch computes both products, the result is rounded once. Products that XLA computes are rounded to this
            type before the activation, as in jnp.
        group_offset, out_sharding, batch_invariant: as for :func:`jaxgemm.ragged_dot`.
        kernel: as for :func:`jaxgemm.ragged_dot`. If a kernel asked for by name cannot compute both products in one
            launch, it computes each of them, and jnp does the rest.

    Returns:
        Shape (m, n). Rows without a group, or with a group whose weights are not held, have zeros.

    Raises:
        TypeError, ValueError, UnsupportedError: as for :func:`jaxgemm.ragged_dot`; TypeError for operands or a result
            that are not floating-point.
    """
    (x, gate, up), weak = float_operands("ragged_gated", lhs=lhs, w_gate=w_gate, w_up=w_up)
    if gate.ndim != 3 or gate.shape != up.shape:
        raise ValueError(f"ragged_gated: w_gate and w_up must be (groups, k, n) alike, got {gate.shape} and {up.shape}")
    if x.ndim != 2:
        raise ValueError(f"ragged_gated: expected lhs (m, k), got shape {x.shape}; {_MATRICES}")
    _check_inner("ragged_gated", x, gate, f"weights of shape {gate.shape} have")
    out = float_result("ragged_gated: preferred_element_type", preferred_element_type, x.dtype)
    where = arguments.where("ragged_gated", group_sizes, group_offset, gate.shape[0])
    check_activation("ragged_gated", activation)
    target = arguments.target(out_sharding)
    params = arguments.parameters(
        precision=precision, out=out, kernel=kernel, out_sharding=target, batch_invariant=batch_invariant
    )
    operands = vary_alike(x, gate, up, *where)
    z = grouped_fused_p.bind(*operands, activation=activation, gated=True, has_bias=False, **params)
    return _finished(z, None if target else out_sharding, weak=weak and preferred_element_type is None)


def ragged_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    ragged_dot_dimension_numbers: Any,
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
    *,
    kernel: str = "auto",
) -> jax.Array:
    """``lax.ragged_dot_general``; as in :func:`ragged_dot`, values of one group reach no other group's result.

    The ragged axis of ``lhs`` may be a free one (each row has its group's weights), a contracted one (each group has a
    sum of its own, as the gradient of weights is) or a batch (which is ``lax.dot_general``).

    Args:
        lhs, rhs: of the ranks that the dimension numbers say.
        group_sizes: shape (groups,); or (..., groups), whose first axes are the batches of ``lhs`` and the axes of the
            same kind as the ragged one that stand before it.
        ragged_dot_dimension_numbers: a ``jax.lax.RaggedDotDimensionNumbers``.
        precision, preferred_element_type, group_offset, out_sharding, kernel: as for :func:`ragged_dot`.

    Returns:
        As ``lax.dot_general``; if the ragged axis is contracted, the groups are a first axis.

    Raises:
        TypeError, ValueError, UnsupportedError: as for :func:`ragged_dot`, and as ``lax.ragged_dot_general`` for the
            dimension numbers.
    """
    x, w, weak = promoted_pair(lhs, rhs)
    out = asked_dtype(preferred_element_type, x.dtype)
    sizes = arguments.integers("group_sizes", group_sizes)
    numbers = ragged_dot_dimension_numbers
    _check_numbers(x, w, sizes, numbers, group_offset is not None)
    offset = arguments.first_group(group_offset)
    (contract, _), (batch, _) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    if ragged in batch:
        if group_offset is not None:
            raise ValueError("ragged_dot_general: group_offset has no meaning where the ragged axis is a batch")
        dims = numbers.dot_dimension_numbers
        return api.dot_general(
            x, w, dims, precision=precision, preferred_element_type=out, out_sharding=out_sharding, kernel=kernel
        )

    # A result with merged axes cannot have ``out_sharding`` yet, so it is resharded afterwards.
    target = arguments.target(out_sharding)
    plain = x.ndim == 2 and w.ndim == (2 if ragged in contract else 3) and len(contract) == 1 and not batch
    if target is not None and not plain:
        target = NamedSharding(target.mesh, PartitionSpec()) if _over_groups(w, numbers) else None
    params = arguments.parameters(precision=precision, out=out, kernel=kernel, out_sharding=target)

    def bind(form: Form, x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        result: jax.Array = grouped_p.bind(*vary_alike(x, w, sizes, offset), form=form, **params)
        return result

    z = (layout.sums if ragged in contract else layout.rows)(bind, x, w, sizes, numbers)
    return _finished(z, out_sharding, weak=weak and preferred_element_type is None)


#: What errors advise for operands that are no matrices.
_MATRICES = "merge axes of rows into one, or map over others by jax.vmap"


def _check_inner(function: str, x: jax.Array, w: jax.Array, weights: str) -> None:
    if x.shape[1] != w.shape[1]:
        raise ValueError(
            f"{function}: inner dimensions differ: lhs of shape {x.shape} has k = {x.shape[1]}, "
            f"{weights} k = {w.shape[1]}"
        )


def _finished(z: jax.Array, out_sharding: Any, *, weak: bool) -> jax.Array:
    """The result, resharded if ``out_sharding`` is given, and weakly typed if ``weak``."""
    if out_sharding is not None:
        z = jax.sharding.reshard(z, out_sharding)
    return weakly_typed(z) if weak else z


def _over_groups(w: jax.Array, numbers: Any) -> bool:
    """Whether weights are sharded over their groups, so that rows are sums over devices."""
    spec = jax.typeof(w).sharding.spec
    return any(spec[axis] is not None for axis in numbers.rhs_group_dimensions)


def _check_numbers(x: jax.Array, w: jax.Array, sizes: jax.Array, numbers: Any, has_offset: bool) -> None:
    """lax's own errors, for operands and dimension numbers that do not fit together."""
    if not isinstance(numbers, lax.RaggedDotDimensionNumbers):
        raise TypeError(
            "ragged_dot_general: expected jax.lax.RaggedDotDimensionNumbers as dimension numbers, got "
            f"{type(numbers).__name__}"
        )
    shape = sizes.shape
    if has_offset and sizes.ndim and len(numbers.rhs_group_dimensions) == 1:
        (axis,) = numbers.rhs_group_dimensions
        shape = (*shape[:-1], w.shape[axis] if 0 <= axis < w.ndim else 0)
    stand_ins = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (x, w)]
    mesh = jax.sharding.get_abstract_mesh()
    target = NamedSharding(mesh, PartitionSpec()) if explicit_axes(mesh) else None  # which lax cannot infer
    jax.eval_shape(
        partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=numbers, out_sharding=target),
        *stand_ins,
        jax.ShapeDtypeStruct(shape, sizes.dtype),
    )
