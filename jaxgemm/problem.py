"""From a dot_general to the strided product that a kernel runs.

A kernel sees matrices with one leading dimension each and two batch levels with their own strides. Many
``dot_general``s are such products already, in the memory they lie in. :func:`plan` finds the view that moves
the least data: it merges neighbouring axes, counts leading free axes as batches where that helps (with a
stride of 0 for the other operand), and only then copies an operand into another axis order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

from jaxgemm.epilogue import Epilogue

Axes = tuple[int, ...]
DimensionNumbers = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]


@dataclass(frozen=True)
class Matrix:
    """An operand as stored, in elements: see ffi/problem.h."""

    transposed: bool
    ld: int
    batch_stride: tuple[int, int]


@dataclass(frozen=True)
class Groups:
    """The groups of a grouped product: see ffi/problem.h.

    Attributes:
        sums: whether rows are summed over, a result for each group; else each row is multiplied by its group's b.
        count: how many sizes there are.
        sizes_batched: whether each product of the outer batch has sizes of its own.
    """

    sums: bool
    count: int
    sizes_batched: bool = False


@dataclass(frozen=True)
class Problem:
    """The product a kernel is asked for.

    Attributes:
        m, n, k: extents of one product.
        batch: the two levels of the batch.
        a, b: how the operands lie in memory.
        dtypes: element types by name, of a, b and d, and of c and bias where these are not d's.
        epilogue: what follows the product.
        gated: whether the result is ``activation(a b) * (a b_up)``, with a ``b_up`` that lies as ``b`` does.
        groups: of a grouped product, whose inner batch is that of the groups which have a b or a result.
        arithmetic: how elements are multiplied, one of :data:`jaxgemm.precision.ARITHMETICS`.
        scales: of a and b, of 8 bits: 0 for none, 1 for one of all, 2 for one of each row or column; None: no scales.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, int]
    a: Matrix
    b: Matrix
    dtypes: tuple[str, ...]
    epilogue: Epilogue
    gated: bool = False
    groups: Groups | None = None
    arithmetic: str = "plain"
    scales: tuple[int, int] | None = None

    @property
    def flops(self) -> int:
        """Multiplications and additions: 2 m n k for each product of the batch, of which a gated one is two.

        Of a grouped product, those of all rows, as if each had a group.
        """
        batch = self.batch[0] if self.groups else prod(self.batch)
        return (4 if self.gated else 2) * self.m * self.n * self.k * batch

    @property
    def layout(self) -> str:
        """ "NN", "NT", "TN" or "TT": which operand is stored transposed."""
        return "".join("T" if x.transposed else "N" for x in (self.a, self.b))


@dataclass(frozen=True)
class Plan:
    """A view of a dot_general as one strided product.

    Attributes:
        m, n, k, batch, a, b: as in :class:`Problem`.
        lhs_axes, rhs_axes: the axis order that the operand is copied into first; None: it is read in place.
        d_shape: the axes in which the result comes out, sizes; row-major.
        d_axes: the transposition that turns it into dot_general's order; None: it has it already.
        single_column_axis: whether n is one axis of the rhs, so that a bias along it can be fused.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, int]
    a: Matrix
    b: Matrix
    lhs_axes: Axes | None
    rhs_axes: Axes | None
    d_shape: Axes
    d_axes: Axes | None
    single_column_axis: bool

    def problem(self, dtypes: tuple[str, ...], epilogue: Epilogue) -> Problem:
        """The product as a kernel is asked for it."""
        return Problem(self.m, self.n, self.k, self.batch, self.a, self.b, dtypes, epilogue)


def _strides(shape: Sequence[int]) -> list[int]:
    out, step = [0] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        out[i] = step
        step *= shape[i]
    return out


def _merge(axes: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """(size, stride) pairs, outermost first, as one pair; None if they are not evenly spaced."""
    size, stride = 1, 1
    for n, s in reversed(axes):
        if n == 1:
            continue
        if size == 1:
            size, stride = n, s
        elif s == stride * size:
            size *= n
        else:
            return None
    return size, stride


def _merge_levels(levels: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(size, lhs stride, rhs stride) levels, outermost first, with evenly spaced neighbours joined."""
    out: list[tuple[int, int, int]] = []
    for n, sl, sr in levels:
        if n == 1:
            continue
        if out and out[-1][1] == sl * n and out[-1][2] == sr * n:
            out[-1] = (out[-1][0] * n, sl, sr)
        else:
            out.append((n, sl, sr))
    return out


def _matrix(rows: tuple[int, int] | None, cols: tuple[int, int] | None, strides: tuple[int, int]) -> Matrix | None:
    """The matrix with these (size, stride) rows and columns, if one of them is contiguous."""
    if rows is None or cols is None:
        return None
    (nr, sr), (nc, sc) = rows, cols
    if nr == 0 or nc == 0:
        return Matrix(False, max(nc, 1), strides)
    # An extent of one has no stride of its own, so a vector may lie either way: as one contiguous line.
    if nr == 1 and (nc == 1 or sc == 1):
        return Matrix(False, nc, strides)
    if nc == 1 and sr == 1:
        return Matrix(True, nr, strides)
    # An array with no elements has strides of 0, which no line is as short as.
    if nc == 1 or sc == 1:
        return Matrix(False, max(sr, nc), strides)
    if nr == 1 or sr == 1:
        return Matrix(True, max(sc, nr), strides)
    return None


@dataclass(frozen=True)
class _Side:
    """One operand's axes, split into batch, free and contracting, with the strides of its memory."""

    shape: Axes
    batch: Axes
    free: Axes
    contract: Axes

    def layout(self, copied: bool) -> tuple[Axes | None, list[int]]:
        """The axis order to copy into, and the strides by original axis."""
        if not copied:
            return None, _strides(self.shape)
        order = (*self.batch, *self.free, *self.contract)
        packed = _strides([self.shape[i] for i in order])
        strides = [0] * len(self.shape)
        for i, axis in enumerate(order):
            strides[axis] = packed[i]
        return order, strides

    def pairs(self, axes: Axes, strides: list[int]) -> list[tuple[int, int]]:
        return [(self.shape[i], strides[i]) for i in axes]


def _contract_orders(lhs: Axes, rhs: Axes) -> Iterator[tuple[Axes, Axes]]:
    """Contracting axes may be walked in any order that is the same for both operands."""
    pairs = list(zip(lhs, rhs, strict=True))
    seen = []
    for order in (sorted(pairs), sorted(pairs, key=lambda p: p[1])):
        if order not in seen:
            seen.append(order)
            yield tuple(p[0] for p in order), tuple(p[1] for p in order)


def _candidates(lhs: _Side, rhs: _Side) -> Iterator[tuple[int, Plan]]:
    """Every view of the product, with the number of elements that its copies read and write."""
    orders = list(_contract_orders(lhs.contract, rhs.contract))
    hoists = product(range(max(len(lhs.free), 1)), range(max(len(rhs.free), 1)))
    for hoist_l, hoist_r in sorted(hoists, key=sum):
        for (lc, rc), copy_l, copy_r in product(orders, (False, True), (False, True)):
            left, right = (
                _Side(lhs.shape, lhs.batch, lhs.free, lc),
                _Side(rhs.shape, rhs.batch, rhs.free, rc),
            )
            lhs_axes, ls = left.layout(copy_l)
            rhs_axes, rs = right.layout(copy_r)
            levels = [(lhs.shape[i], ls[i], rs[j]) for i, j in zip(lhs.batch, rhs.batch, strict=True)]
            levels += [(lhs.shape[i], ls[i], 0) for i in lhs.free[:hoist_l]]
            levels += [(rhs.shape[i], 0, rs[i]) for i in rhs.free[:hoist_r]]
            levels = _merge_levels(levels)
            if len(levels) > 2:
                continue
            outer, inner = [(1, 0, 0)] * (2 - len(levels)) + levels
            rows = _merge(left.pairs(lhs.free[hoist_l:], ls))
            cols = _merge(right.pairs(rhs.free[hoist_r:], rs))
            a = _matrix(rows, _merge(left.pairs(lc, ls)), (outer[1], inner[1]))
            b = _matrix(_merge(right.pairs(rc, rs)), cols, (outer[2], inner[2]))
            if a is None or b is None or rows is None or cols is None:
                continue
            batch_shape = tuple(lhs.shape[i] for i in lhs.batch)
            moved_l = tuple(lhs.shape[i] for i in lhs.free[:hoist_l])
            moved_r = tuple(rhs.shape[i] for i in rhs.free[:hoist_r])
            kept_l = tuple(lhs.shape[i] for i in lhs.free[hoist_l:])
            kept_r = tuple(rhs.shape[i] for i in rhs.free[hoist_r:])
            # The kernel writes (batch, hoisted lhs, hoisted rhs, rows, columns).
            d_axes = None
            if prod(moved_r) > 1 and prod(kept_l) > 1:
                start = len(batch_shape) + len(moved_l)
                r = tuple(range(start, start + len(moved_r)))
                kept = tuple(range(start + len(moved_r), start + len(moved_r) + len(kept_l)))
                last = tuple(range(kept[-1] + 1, kept[-1] + 1 + len(kept_r)))
                d_axes = (*range(start), *kept, *r, *last)
            d_shape = (*batch_shape, *moved_l, *moved_r, *kept_l, *kept_r)
            if d_axes is None:
                d_shape = (*batch_shape, *moved_l, *kept_l, *moved_r, *kept_r)
            cost = copy_l * 2 * prod(lhs.shape) + copy_r * 2 * prod(rhs.shape)
            cost += 0 if d_axes is None else 2 * prod(d_shape)
            yield (
                cost,
                Plan(
                    m=rows[0],
                    n=cols[0],
                    k=prod(lhs.shape[i] for i in lc),
                    batch=(outer[0], inner[0]),
                    a=a,
                    b=b,
                    lhs_axes=lhs_axes,
                    rhs_axes=rhs_axes,
                    d_shape=d_shape,
                    d_axes=d_axes,
                    single_column_axis=bool(kept_r) and prod(kept_r) == kept_r[-1],
                ),
            )


@cache
def plan(lhs_shape: Axes, rhs_shape: Axes, dimension_numbers: DimensionNumbers) -> Plan:
    """The view of a dot_general that moves the least data, of operands that are row-major in memory."""
    (lc, rc), (lb, rb) = dimension_numbers
    lhs_free = tuple(i for i in range(len(lhs_shape)) if i not in (*lc, *lb))
    rhs_free = tuple(i for i in range(len(rhs_shape)) if i not in (*rc, *rb))
    lhs = _Side(lhs_shape, tuple(lb), lhs_free, tuple(lc))
    rhs = _Side(rhs_shape, tuple(rb), rhs_free, tuple(rc))
    best: tuple[int, Plan] | None = None
    for cost, candidate in _candidates(lhs, rhs):
        if cost == 0:
            return candidate
        if best is None or cost < best[0]:
            best = (cost, candidate)
    assert best is not None, "copying both operands always gives a view"
    return best[1]
