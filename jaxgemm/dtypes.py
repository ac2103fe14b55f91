"""Which element types there are, and what each product accumulates and returns in.

None of this depends on the promotion that a program allows itself (``jax.numpy_dtype_promotion``): that is for what a
caller mixes, not for what a product does inside.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

#: Element types that some kernel takes as an operand or writes as a result.
KERNEL_DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32")

_KINDS = (jnp.integer, jnp.floating, jnp.complexfloating)


@cache  # asked for at every product that is traced
def accumulator(dtype: np.dtype) -> np.dtype:
    """The type in which products of ``dtype`` are summed: at least 32 bits."""
    if dtype.itemsize >= 4 or not jnp.issubdtype(dtype, jnp.number):
        return dtype
    return np.dtype(np.int32 if jnp.issubdtype(dtype, jnp.integer) else np.float32)


@cache
def default_result(dtype: np.dtype) -> np.dtype:
    """What ``gemm`` returns when ``out_dtype`` is not given: 8- and 16-bit integers widen to int32."""
    return accumulator(dtype) if jnp.issubdtype(dtype, jnp.integer) else dtype


@cache
def product(lhs: np.dtype, rhs: np.dtype) -> np.dtype:
    """What ``lax.dot_general`` of these types returns unless told otherwise; TypeError where it takes no such pair."""
    if lhs == rhs:
        return lhs
    scalars = jax.ShapeDtypeStruct((), lhs), jax.ShapeDtypeStruct((), rhs)
    out = jax.eval_shape(lambda x, y: lax.dot_general(x, y, (((), ()), ((), ()))), *scalars)
    dtype: np.dtype = out.dtype
    return dtype


@cache
def summed(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> np.dtype:
    """The type that a product is kept in until it is rounded to ``out``, once.

    It is the accumulator's, unless that cannot hold what ``out`` can: then it is ``out``, as in ``lax.dot_general``.
    """
    kept = accumulator(product(lhs, rhs))
    same_kind = all(jnp.issubdtype(kept, kind) == jnp.issubdtype(out, kind) for kind in _KINDS)
    return kept if same_kind and out.itemsize <= kept.itemsize else out


@cache
def common(a: np.dtype, b: np.dtype) -> np.dtype | None:
    """The type that jnp promotes both to by default; None where it promotes them to none, as 8-bit floats."""
    if a == b:
        return a
    with jax.numpy_dtype_promotion("standard"):
        try:
            return np.dtype(jnp.promote_types(a, b))
        except ValueError:
            return None
