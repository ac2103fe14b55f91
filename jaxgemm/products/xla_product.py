"""XLA's own product: what every product that XLA computes here is lowered to.

On CUDA, XLA multiplies 8-bit integers by cuBLAS or by kernels that it generates, whichever is the faster when it
compiles. cuBLAS returns wrong sums, with no error, if they are no multiple of 4 long (seen with JAX 0.11.2 on an H100:
all of 16x16x7). So a contracted axis is then padded with zeros, which changes no sum.

XLA does not compile a product of float64 into a float16 result (seen with JAX 0.11.2 on an H200: "GEMM is not supported
by cublasLt"). So sums of float64 are rounded to a narrower type by an operation of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm.problem import DimensionNumbers

#: Platforms on which sums of 8-bit and narrower integers must be a multiple of _WHOLE long.
PADDED = frozenset({"cuda"})
_WHOLE = 4


def narrow_integers(lhs: Any, rhs: Any) -> bool:
    """Whether XLA may multiply the operands as 8-bit integers; it widens integers of 4 and 2 bits to these."""
    dtypes = np.dtype(lhs.dtype), np.dtype(rhs.dtype)
    return all(jnp.issubdtype(t, jnp.integer) and t.itemsize == 1 for t in dtypes)


def padding(platform: str, lhs: Any, rhs: Any, dims: DimensionNumbers, parts: int = 1) -> tuple[int, Any] | None:
    """The contracting axis to pad, as an index of ``dims``' lists, and by how much; None if no axis needs it.

    A product without contracting axes counts as one over an axis of extent 1. Extents may be symbolic. ``parts``: XLA
    may afterwards divide a contracted axis over so many devices, or over a divisor of that number.
    """
    if platform not in PADDED or not narrow_integers(lhs, rhs):
        return None
    extents = [lhs.shape[axis] for axis in dims[0][0]] or [1]
    if parts > 1 or not all(isinstance(n, int) for n in extents):
        return _one_whole(extents, _WHOLE * parts)
    length = prod(extents)
    if length % _WHOLE == 0:
        return None
    amounts = [-n % (_WHOLE // gcd(length // n, _WHOLE)) for n in extents]
    best = min(range(len(extents)), key=lambda i: amounts[i] / extents[i])
    return best, amounts[best]


def _one_whole(extents: Sequence[Any], step: int) -> tuple[int, Any] | None:
    """As :func:`padding`, so that one axis is a multiple of ``step`` by itself."""
    # The remainder of a symbolic extent is the number 0 if it is 0 for all values, and else an expression.
    amounts = [-n % step for n in extents]
    if any(isinstance(amount, int) and amount == 0 for amount in amounts):
        return None
    known = [i for i, amount in enumerate(amounts) if isinstance(amount, int)]
    best = min(known, key=lambda i: amounts[i] / extents[i]) if known else len(extents) - 1
    return best, amounts[best]


def why_padded(platform: str, lhs: Any, rhs: Any, dims: DimensionNumbers) -> str:
    """What ``explain`` says of the padding of a product on one device; empty if there is none."""
    found = padding(platform, lhs, rhs, dims)
    if found is None:
        return ""
    contract = dims[0][0]
    extent = lhs.shape[contract[found[0]]] if contract else 1
    axis = "k" if len(contract) < 2 else f"contracting axis {found[0]}"
    return (
        f"{axis} with zeros from {extent} to {extent + found[1]}: XLA may use cuBLAS, whose sums of 8-bit integers are "
        f"wrong where they are no multiple of {_WHOLE} long"
    )


def xla_product(
    platform: str,
    lhs: jax.Array,
    rhs: jax.Array,
    dims: DimensionNumbers,
    *,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    parts: int = 1,
) -> jax.Array:
    """``lax.dot_general``, of operands padded as :func:`padding` says, without which it might be wrong."""
    if (found := padding(platform, lhs, rhs, dims, parts)) is not None:
        if not dims[0][0]:
            dims = (((lhs.ndim,), (rhs.ndim,)), dims[1])
            lhs, rhs = lax.expand_dims(lhs, [lhs.ndim]), lax.expand_dims(rhs, [rhs.ndim])
        lhs, rhs = pad(lhs, rhs, dims, found)
    kept = _kept(lhs, rhs, preferred_element_type)
    out: jax.Array = lax.dot_general(
        lhs, rhs, dims, precision=precision, preferred_element_type=kept, out_sharding=out_sharding
    )
    return out if kept == preferred_element_type else lax.convert_element_type(out, preferred_element_type)


def _kept(lhs: Any, rhs: Any, preferred: Any) -> Any:
    """The type that XLA is asked for: for float64 operands float64, not a narrower type."""
    wide = lhs.dtype == rhs.dtype == np.float64
    return np.dtype(np.float64) if wide and preferred is not None else preferred


def pad(lhs: jax.Array, rhs: jax.Array, dims: DimensionNumbers, found: tuple[int, Any]) -> tuple[jax.Array, jax.Array]:
    """The operands of a product padded as :func:`padding` found."""
    index, amount = found

    def padded(x: jax.Array, axis: int) -> jax.Array:
        return lax.pad(x, jnp.zeros((), x.dtype), [(0, amount if i == axis else 0, 0) for i in range(x.ndim)])

    return padded(lhs, dims[0][0][index]), padded(rhs, dims[0][1][index])
