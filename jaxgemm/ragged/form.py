"""What a product of groups computes, and the problem that a kernel is asked to compute for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxgemm.epilogue import Epilogue
from jaxgemm.problem import Groups, Matrix, Problem


@dataclass(frozen=True)
class Form:
    """What a grouped product computes; hashable, so that it can be a parameter of the primitive.

    Attributes:
        sums: whether the form is "sums"; else it is "rows".
        transposed: in the form "rows", whether k is the last axis of rhs.
        held: of how many groups rhs has weights, or the result has sums.
    """

    sums: bool
    transposed: bool
    held: int

    @property
    def ranks(self) -> list[int]:
        """The ranks of the operands without a batch."""
        return [2, 2 if self.sums else 3, 1, 1]

    def batch(self, operands: Sequence[Any]) -> tuple[int, ...]:
        """The batch of operands with these shapes, as a shape: (extent,), or () without a batch."""
        found = {x.shape[0] for x, rank in zip(operands, self.ranks, strict=True) if len(x.shape) > rank}
        assert len(found) < 2, found
        return tuple(found)

    def shape(self, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result without a batch."""
        if self.sums:
            return (self.held, lhs[-1], rhs[-1])
        return (lhs[-2], rhs[-2 if self.transposed else -1])


def problem(
    form: Form, lhs: Any, rhs: Any, sizes: Any, out: Any, epilogue: Epilogue | None = None, gated: bool = False
) -> Problem:
    """The problem of a grouped product, or of a gated pair, for operands with these shapes and types."""
    sums, transposed, held = form.sums, form.transposed, form.held
    given = zip((lhs, rhs, sizes), form.ranks, strict=False)
    outer = next((x.shape[0] for x, rank in given if len(x.shape) > rank), 1)
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
