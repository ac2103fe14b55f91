"""What a kernel is asked for that computes a grouped product."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxgemm.epilogue import Epilogue
from jaxgemm.problem import Groups, Matrix, Problem


def problem(
    lhs: Any,
    rhs: Any,
    sizes: Any,
    *,
    sums: bool,
    transposed: bool,
    held: int,
    out: Any,
    epilogue: Epilogue | None = None,
    gated: bool = False,
) -> Problem:
    """The problem of a grouped product.

    Args:
        lhs, rhs, sizes: anything with a shape and a dtype, as the primitive ``jaxgemm_grouped`` has them.
        sums, transposed, held: as :class:`jaxgemm.ragged.product.Form` has them.
        out: type of the result.
        epilogue: a bias and an activation.
        gated: whether it is a pair of products.
    """
    outer = next((x.shape[0] for x, rank in ((lhs, 2), (rhs, 2 if sums else 3), (sizes, 1)) if len(x.shape) > rank), 1)
    rows, k = lhs.shape[-2:]
    n = rhs.shape[-2 if transposed else -1]
    step = 0 if len(lhs.shape) == 2 else rows * k
    a = Matrix(sums, max(k, 1), (step, 0))
    if sums:
        b = Matrix(False, max(n, 1), (0 if len(rhs.shape) == 2 else rows * n, 0))
    else:
        each = k * n
        b = Matrix(transposed, max(k if transposed else n, 1), (0 if len(rhs.shape) == 3 else held * each, each))
    return Problem(
        m=k if sums else rows,
        n=n,
        k=rows if sums else k,
        batch=(outer, held),
        a=a,
        b=b,
        dtypes=(np.dtype(lhs.dtype).name, np.dtype(rhs.dtype).name, np.dtype(out).name),
        epilogue=epilogue or Epilogue(),
        gated=gated,
        groups=Groups(sums, sizes.shape[-1], len(sizes.shape) > 1),
    )
