"""Which element types there are, and what each product accumulates and returns in."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np

#: Element types that some kernel takes as an operand or writes as a result.
KERNEL_DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32")


@cache  # asked for at every product that is traced
def accumulator(dtype: np.dtype) -> np.dtype:
    """The type in which products of ``dtype`` are summed: at least 32 bits."""
    if dtype in (np.dtype(jnp.float16), np.dtype(jnp.bfloat16)):
        return np.dtype(np.float32)
    if jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize < 4:
        return np.dtype(np.int32)
    return dtype


@cache
def default_result(dtype: np.dtype) -> np.dtype:
    """What ``gemm`` returns when ``out_dtype`` is not given: 8- and 16-bit integers widen to int32."""
    return accumulator(dtype) if jnp.issubdtype(dtype, jnp.integer) else dtype
