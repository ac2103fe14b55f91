"""``ragged_dot`` and ``ragged_dot_general``: lax's products of groups of rows, with each group kept to itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import api
from jaxgemm import precision as prec
from jaxgemm._jax_private import explicit_axes
from jaxgemm.arguments import (
    as_array,
    as_bias,
    canonical_dtype,
    check_activation,
    promoted_pair,
    weakly_typed,
)
from jaxgemm.epilogue import Epilogue, apply, composed_type
from jaxgemm.grouped import groups, layout
from jaxgemm.grouped.primitive import Form, grouped_p
from jaxgemm.kernels import find_kernel
from jaxgemm.partition import vary_alike


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
) -> jax.Array:
    """Rows of ``lhs``, in groups that lie one after the other, each times the weights of its group.

    As ``lax.ragged_dot``, but for what lax leaves open: what is in one group's rows or weights reaches no other group's
    result, NaN and infinity neither; sizes below 0 count as 0; and there is ``group_offset``.

    Args:
        lhs: shape (m, k).
        rhs: shape (held, k, n), the weights of ``held`` groups.
        group_sizes: shape (groups,), of any integer type: how many rows each group has. Their values may be known at
            run time only. Rows beyond their sum belong to no group and have zeros in the result; what they sum to
            beyond m is cut off.
        precision: as ``lax.ragged_dot`` takes it.
        preferred_element_type: type of the result; by default that of the promoted operands.
        group_offset: shape (1,), an integer that may be traced: the group of the first weight. Rows of groups whose
            weights ``rhs`` does not hold have zeros. Without it there must be as many weights as groups.
        out_sharding: as ``lax.ragged_dot`` takes it. On a mesh of explicit axes it may be left out, unless k or the
            groups of ``rhs`` are sharded.
        bias: shape (held, n), added to the rows of each group.
        activation: as for :func:`jaxgemm.gemm`. It is applied to rows that have a group.
        kernel: "auto" or "xla": XLA computes a dense product for each group. A kernel by name is refused, as none has a
            grouped form.

    Returns:
        Shape (m, n).

    Raises:
        TypeError: an argument has the wrong type, as sizes that are no integers.
        ValueError: a shape or a name is wrong.
        UnsupportedError: a kernel was asked for by name. Raised while the program is lowered.
    """
    x, w, weak = promoted_pair(lhs, rhs)
    if x.ndim != 2 or w.ndim != 3:
        raise ValueError(f"ragged_dot: expected lhs (m, k) and rhs (groups, k, n), got shapes {x.shape} and {w.shape}")
    if x.shape[1] != w.shape[1]:
        raise ValueError(
            f"ragged_dot: inner dimensions differ: lhs of shape {x.shape} has k = {x.shape[1]}, "
            f"rhs of shape {w.shape} has k = {w.shape[1]}"
        )
    out = x.dtype if preferred_element_type is None else canonical_dtype(preferred_element_type)
    sizes, offset = _sizes(group_sizes, group_offset, x.shape[0], w.shape[0])
    held = w.shape[0]
    extra = None if bias is None else as_bias("ragged_dot", bias, (held, w.shape[2]), "a row for each group", out)
    check_activation("ragged_dot", activation)
    _check_kernel(kernel)
    epilogue = Epilogue(has_bias=extra is not None, activation=activation)
    between = out
    if not epilogue.is_scaling:
        between = composed_type(epilogue, (x, w, *([] if extra is None else [extra])), out, by_xla=True)
    target = _target(out_sharding)
    params = {"precision": precision, "kernel": kernel, "out_sharding": target}
    z = _bind(Form(False, False, held), x, w, sizes, offset, out=between, **params)
    if not epilogue.is_scaling:
        mine = groups.owner(sizes, offset, x.shape[0], held)
        rows = None if extra is None else extra.at[mine].get(mode="fill", fill_value=0)
        z = jnp.where((mine < held)[:, None], apply(epilogue, z, None, rows, out), jnp.zeros((), out))
    if out_sharding is not None and target is None:
        z = jax.sharding.reshard(z, out_sharding)
    return weakly_typed(z) if weak and preferred_element_type is None and extra is None else z


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
    """``lax.ragged_dot_general``, with each group kept to itself as :func:`ragged_dot` keeps it.

    The ragged axis of ``lhs`` may be a free one (each row has its group's weights), a contracted one (each group has a
    sum of its own, as the gradient of weights is) or a batch (which is ``lax.dot_general``).

    Args:
        lhs, rhs: of the ranks that the dimension numbers say.
        group_sizes: shape (groups,); or (..., groups), with the axes of ``lhs`` that stand before the ragged one:
            batches and those of its kind.
        ragged_dot_dimension_numbers: a ``jax.lax.RaggedDotDimensionNumbers``.
        precision, preferred_element_type, group_offset, out_sharding, kernel: as for :func:`ragged_dot`.

    Returns:
        As ``lax.dot_general``; where the ragged axis is contracted, with the groups as a first axis.

    Raises:
        TypeError, ValueError: as for :func:`ragged_dot`, and as ``lax.ragged_dot_general`` for the dimension numbers.
    """
    x, w, weak = promoted_pair(lhs, rhs)
    out = x.dtype if preferred_element_type is None else canonical_dtype(preferred_element_type)
    sizes = _integers("group_sizes", group_sizes)
    numbers = ragged_dot_dimension_numbers
    _check_numbers(x, w, sizes, numbers, group_offset is not None)
    _check_kernel(kernel)
    offset = _offset(group_offset)
    (contract, _), (batch, _) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    if ragged in batch:
        dims = numbers.dot_dimension_numbers
        return api.dot_general(
            x, w, dims, precision=precision, preferred_element_type=out, out_sharding=out_sharding, kernel=kernel
        )

    # A result with more axes, which are merged before, cannot be asked for so, and is resharded afterwards.
    target = _target(out_sharding) if x.ndim == 2 and w.ndim == (2 if ragged in contract else 3) else None

    def bind(form: Form, x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        return _bind(form, x, w, sizes, offset, out=out, precision=precision, kernel=kernel, out_sharding=target)

    z = (layout.sums if ragged in contract else layout.rows)(bind, x, w, sizes, numbers)
    if out_sharding is not None:
        z = jax.sharding.reshard(z, out_sharding)
    return weakly_typed(z) if weak and preferred_element_type is None else z


def _target(out_sharding: Any) -> NamedSharding | None:
    """``out_sharding`` as the primitive takes it: None where shardings are no types."""
    if out_sharding is None:
        return None
    if isinstance(out_sharding, NamedSharding):
        mesh, spec = out_sharding.mesh.abstract_mesh, out_sharding.spec  # a type's sharding is of an abstract mesh
    else:
        mesh, spec = jax.sharding.get_abstract_mesh(), out_sharding
    return NamedSharding(mesh, spec) if explicit_axes(mesh) else None


def _bind(
    form: Form,
    *operands: jax.Array,
    out: np.dtype,
    precision: prec.Precision,
    kernel: str,
    out_sharding: NamedSharding | None,
) -> jax.Array:
    x, w, *where = operands
    result: jax.Array = grouped_p.bind(
        *vary_alike(x, w, *where),
        form=form,
        precision=prec.canonical(precision),
        preferred_element_type=np.dtype(out),
        out_sharding=out_sharding,
        kernel=kernel,
        strict=True,
    )
    return result


# --- Arguments ------------------------------------------------------------------------------------------------


def _sizes(given: ArrayLike, offset: ArrayLike | None, rows: int, held: int) -> tuple[jax.Array, jax.Array]:
    sizes = _integers("group_sizes", given)
    if sizes.ndim != 1:
        raise ValueError(f"ragged_dot: group_sizes must have shape (groups,), got {sizes.shape}")
    if offset is None and sizes.shape[0] != held:
        raise ValueError(
            f"ragged_dot: {sizes.shape[0]} group sizes for the weights of {held} groups; with fewer weights than "
            "groups say by group_offset which these are"
        )
    return groups.clamp(sizes, rows), _offset(offset)


def _offset(given: ArrayLike | None) -> jax.Array:
    if given is None:
        return jnp.zeros((1,), groups.SIZES)
    offset = _integers("group_offset", given)
    if offset.shape not in ((), (1,)):
        raise ValueError(f"group_offset: expected one integer, of shape (1,), got shape {offset.shape}")
    return groups.narrow(offset.reshape(1))


def _integers(name: str, given: ArrayLike) -> jax.Array:
    array = as_array(name, given)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name}: expected integers, got {array.dtype}")
    return array


def _check_kernel(kernel: str) -> None:
    if kernel not in ("auto", "xla"):
        find_kernel(kernel)


def _check_numbers(x: jax.Array, w: jax.Array, sizes: jax.Array, numbers: Any, has_offset: bool) -> None:
    """lax's own errors, for what does not fit together."""
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
