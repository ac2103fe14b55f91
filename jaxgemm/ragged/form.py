"""What a product of groups computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Form:
    """What a grouped product computes; hashable, so that it can be a parameter of the primitive.

    Attributes:
        sums: whether it is of the form "sums".
        transposed: of the form "rows", whether k is the last axis of rhs.
        held: how many groups' weights there are: of rhs, or of the result.
    """

    sums: bool
    transposed: bool
    held: int

    @property
    def ranks(self) -> list[int]:
        """The ranks of the operands without a batch."""
        return [2, 2 if self.sums else 3, 1, 1]

    def batch(self, operands: Sequence[Any]) -> tuple[int, ...]:
        """The extent of the batch of operands with such shapes, as a shape: empty where there is none."""
        found = {x.shape[0] for x, rank in zip(operands, self.ranks, strict=True) if len(x.shape) > rank}
        assert len(found) < 2, found
        return tuple(found)

    def shape(self, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result without a batch."""
        if self.sums:
            return (self.held, lhs[-1], rhs[-1])
        return (lhs[-2], rhs[-2 if self.transposed else -1])
