"""What kernels are asked for in place of a dense product: the whole, or what jnp makes the result of.

A kernel that cannot apply the epilogue or write the result's type is asked for ``alpha * product`` in the accumulator's
type, and jnp does the rest. If the accumulator's type cannot hold the result, the kernel must write the result itself.
But int32 sums of 8-bit integers that cannot wrap become any wider number: then jnp converts them, and does all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgemm import dtypes
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import UnsupportedError
from jaxgemm.problem import Plan
from jaxgemm.products.kind import Params
from jaxgemm.products.scales import most_terms

Form = tuple[Epilogue, np.dtype]


def of(lhs: Any, rhs: Any, extra: Sequence[Any], params: Params, view: Plan) -> tuple[list[Form], bool]:
    """The epilogues and types of results to ask a kernel for, the first that it can run; for operands of these types.

    And whether ``auto`` takes a kernel for a result that jnp converts. It does for integers of 8 bits, unless the
    result has 8 bits too. Otherwise it takes none: then only the epilogue may be jnp's.
    """
    types, epilogue, out = _types(lhs, rhs), params["epilogue"], np.dtype(params["preferred_element_type"])
    kept = dtypes.summed(*types, out)
    alone, converted = (epilogue.scaling(), kept), out == kept
    if _may_convert(types, out):
        sums, converted = dtypes.accumulator(types[0]), True
        if kept != sums and _terms(lhs, params) <= most_terms(types):
            alone = Epilogue(), sums
    whole = (epilogue, out)
    return [whole, alone] if _fuses(epilogue, view, extra, out) and whole != alone else [alone], converted


def _types(lhs: Any, rhs: Any) -> tuple[np.dtype, np.dtype]:
    return np.dtype(lhs.dtype), np.dtype(rhs.dtype)


def _terms(lhs: Any, params: Params) -> int:
    """How many products an element of the result is the sum of."""
    return prod(lhs.shape[axis] for axis in params["dimension_numbers"][0][0])


def _may_convert(types: Sequence[np.dtype], out: np.dtype) -> bool:
    """Whether the operands are integers of 8 bits, and the result's type is a wider one of real numbers."""
    real = jnp.issubdtype(out, jnp.integer) or jnp.issubdtype(out, jnp.floating)
    integers = all(dtypes.is_8bit(x) and jnp.issubdtype(x, jnp.integer) for x in types)
    return integers and real and out.itemsize > 1


def _fuses(epilogue: Epilogue, view: Plan, extra: Sequence[Any], out: np.dtype) -> bool:
    """Whether kernels can apply the epilogue: c and bias have the result's type, and bias runs along n."""
    if any(np.dtype(x.dtype) != out for x in extra):
        return False
    return view.single_column_axis or not epilogue.has_bias


def refused(refusal: UnsupportedError, lhs: Any, rhs: Any, params: Params) -> UnsupportedError:
    """The refusal; if the kernel's sums could not become the result either, it says so, and why."""
    types, out = _types(lhs, rhs), np.dtype(params["preferred_element_type"])
    sums = dtypes.accumulator(dtypes.product(*types))
    if dtypes.summed(*types, out) == sums:
        return refusal
    why = f"cannot hold every {out.name}"
    if _may_convert(types, out):
        terms, most = _terms(lhs, params), most_terms(types)
        if terms <= most:
            return refusal
        why = f"holds {most} products of {types[0].name} and {types[1].name}, not {terms}"
    return UnsupportedError(f"{refusal}; kernels sum this product in {sums.name}, which {why}")
