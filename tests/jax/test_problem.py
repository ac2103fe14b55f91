"""The view that plan() takes of a dot_general: right, inside of the operands, and without copies where it can be."""

import cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from jaxgemm.problem import plan


def required(x, rows, cols, batch):
    """Elements that the operand must hold: as required_elements in ffi/check.cc."""
    if 0 in (rows, cols, *batch):
        return 0
    lines, line = (cols, rows) if x.transposed else (rows, cols)
    return sum((n - 1) * s for n, s in zip(batch, x.batch_stride, strict=True)) + (lines - 1) * x.ld + line


def matrices(memory, x, rows, cols, batch):
    """The batch of matrices that ffi/problem.h reads out of memory."""
    assert x.ld >= max(rows if x.transposed else cols, 1)
    assert min(x.batch_stride) >= 0
    assert required(x, rows, cols, batch) <= memory.size, "the view leaves the operand"
    if 0 in (rows, cols, *batch):
        return np.zeros((*batch, rows, cols))
    inner = (1, x.ld) if x.transposed else (x.ld, 1)
    strides = tuple(8 * s for s in (*x.batch_stride, *inner))
    return as_strided(memory, (*batch, rows, cols), strides)


def run(view, lhs, rhs):
    """What the lowering and a kernel make of the view."""
    left = lhs if view.lhs_axes is None else lhs.transpose(view.lhs_axes)
    right = rhs if view.rhs_axes is None else rhs.transpose(view.rhs_axes)
    a = matrices(np.ascontiguousarray(left).ravel(), view.a, view.m, view.k, view.batch)
    b = matrices(np.ascontiguousarray(right).ravel(), view.b, view.k, view.n, view.batch)
    d = np.matmul(a, b).reshape(view.d_shape)
    return d if view.d_axes is None else d.transpose(view.d_axes)


def expected(lhs, rhs, dims):
    (lc, rc), (lb, rb) = dims
    left, right = list(range(lhs.ndim)), [100 + i for i in range(rhs.ndim)]
    for i, j in zip((*lc, *lb), (*rc, *rb), strict=True):
        right[j] = left[i]
    free_l = [x for i, x in enumerate(left) if i not in (*lc, *lb)]
    free_r = [x for j, x in enumerate(right) if j not in (*rc, *rb)]
    letters = {x: chr(97 + i) for i, x in enumerate(dict.fromkeys(left + right))}
    text = ["".join(letters[x] for x in part) for part in (left, right, [left[i] for i in lb] + free_l + free_r)]
    return np.einsum(f"{text[0]},{text[1]}->{text[2]}", lhs, rhs)


def integers(shape, seed):
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.float64)


def check(lhs_shape, rhs_shape, dims):
    lhs, rhs = integers(lhs_shape, 1), integers(rhs_shape, 2)
    view = plan(lhs_shape, rhs_shape, dims)
    np.testing.assert_array_equal(run(view, lhs, rhs), expected(lhs, rhs, dims))
    return view


@st.composite
def products(draw, extents):
    """(lhs shape, rhs shape, dimension numbers) of any dot_general with a few axes."""
    counts = [draw(st.integers(0, n)) for n in (2, 2, 3, 3)]
    batch, contract, free_l, free_r = ([draw(extents) for _ in range(n)] for n in counts)
    sides = []
    for free in (free_l, free_r):
        tagged = [("b", i, n) for i, n in enumerate(batch)] + [("c", i, n) for i, n in enumerate(contract)]
        tagged += [("f", i, n) for i, n in enumerate(free)]
        sides.append(draw(st.permutations(tagged)))
    shapes = [tuple(n for _, _, n in side) for side in sides]

    def axes(kind, count):
        order = draw(st.permutations(range(count)))
        found = [{tag[:2]: axis for axis, tag in enumerate(side)} for side in sides]
        return tuple(tuple(where[kind, i] for i in order) for where in found)

    return (*shapes, (axes("c", len(contract)), axes("b", len(batch))))


@settings(max_examples=600)
@given(products(st.integers(1, 4) | st.sampled_from((0, 1, 5))))
def test_any_dot_general(product):
    check(*product)


@settings(max_examples=200)
@given(products(st.just(1) | st.integers(2, 3)))
def test_axes_of_one_element(product):
    check(*product)


def matmul_dims(layout, batch=0):
    lc, rc = (0 if layout[0] == "T" else 1), (1 if layout[1] == "T" else 0)
    shared = tuple(range(batch))
    return ((batch + lc,), (batch + rc,)), (shared, shared)


def assert_in_place(view):
    assert view.lhs_axes is None
    assert view.rhs_axes is None
    assert view.d_axes is None


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (2, 1, 3)], ids=str)
def test_layouts_need_no_copies(layout, batch):
    m, n, k = 5, 6, 7
    lhs = (*batch, *((k, m) if layout[0] == "T" else (m, k)))
    rhs = (*batch, *((n, k) if layout[1] == "T" else (k, n)))
    view = check(lhs, rhs, matmul_dims(layout, len(batch)))
    assert_in_place(view)
    assert (view.m, view.n, view.k) == (m, n, k)
    assert (view.a.transposed, view.b.transposed) == (layout[0] == "T", layout[1] == "T")
    assert view.batch[0] * view.batch[1] == np.prod(batch, dtype=int)
    assert view.single_column_axis


IN_PLACE = {
    # Attention where (batch, sequence, head, feature) lies in memory.
    "bshd,bthd->bhst": ((2, 5, 3, 4), (2, 6, 3, 4), (((3,), (3,)), ((0, 2), (0, 2)))),
    "bhst,bthd->bhsd": ((2, 3, 5, 6), (2, 6, 3, 4), (((3,), (1,)), ((0, 1), (0, 2)))),
    "bhtd,bhsd->bhts": ((2, 3, 5, 4), (2, 3, 6, 4), (((3,), (3,)), ((0, 1), (0, 1)))),
    # Dense layers on activations with several axes, forward and backward.
    "bsi,io->bso": ((2, 5, 4), (4, 6), (((2,), (0,)), ((), ()))),
    "bso,io->bsi": ((2, 5, 6), (4, 6), (((2,), (1,)), ((), ()))),
    "bsi,bso->io": ((2, 5, 4), (2, 5, 6), (((0, 1), (0, 1)), ((), ()))),
    # Projections into and out of heads: several free or contracting axes at once.
    "bsi,ihd->bshd": ((2, 5, 4), (4, 3, 6), (((2,), (0,)), ((), ()))),
    "bshd,hdo->bso": ((2, 5, 3, 4), (3, 4, 6), (((2, 3), (0, 1)), ((), ()))),
    "bshd,hdo->bso, contracted in another order": ((2, 5, 3, 4), (3, 4, 6), (((3, 2), (1, 0)), ((), ()))),
    # A batch that is not outermost: its stride is smaller than a row's.
    "mbk,nbk->bmn": ((5, 3, 4), (6, 3, 4), (((2,), (2,)), ((1,), (1,)))),
    "mbk,kbn->bmn": ((5, 3, 4), (4, 3, 6), (((2,), (0,)), ((1,), (1,)))),
    # vmap over the left operand is more rows; over both, a batch.
    "vmap of x": ((7, 5, 4), (4, 6), (((2,), (0,)), ((), ()))),
    "vmap of x at its end": ((5, 4, 7), (6, 4), (((1,), (1,)), ((), ()))),
    "experts": ((3, 5, 4), (3, 4, 6), (((2,), (1,)), ((0,), (0,)))),
    # Vectors, and products that only scale.
    "k,kn->n": ((4,), (4, 6), (((0,), (0,)), ((), ()))),
    "mk,k->m": ((5, 4), (4,), (((1,), (0,)), ((), ()))),
    "k,k->": ((4,), (4,), (((0,), (0,)), ((), ()))),
    "m,n->mn": ((5,), (6,), (((), ()), ((), ()))),
    "b,b->b": ((5,), (5,), (((), ()), ((0,), (0,)))),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_these_need_no_copies(name):
    assert_in_place(check(*IN_PLACE[name]))


def test_mapped_weights_are_read_in_place():
    """vmap over the weights alone: one product each, all of one x; only the result may be rearranged."""
    view = check((5, 40), (7, 40, 30), (((1,), (1,)), ((), ())))
    assert view.lhs_axes is None
    assert view.rhs_axes is None
    assert 0 in (view.a.batch_stride[0], view.a.batch_stride[1])
    assert sorted(view.batch) == [1, 7]


def test_only_the_operand_that_needs_it_is_copied():
    """The left operand's sum runs around its rows, so there is no one stride to walk it with."""
    view = check((4, 5, 7), (4, 7, 6), (((0, 2), (0, 1)), ((), ())))
    assert view.lhs_axes is not None
    assert view.rhs_axes is None
    assert view.d_axes is None


def test_a_bias_can_be_fused_only_along_one_axis():
    assert plan((2, 5, 4), (4, 6), (((2,), (0,)), ((), ()))).single_column_axis
    assert not plan((2, 5, 4), (4, 3, 6), (((2,), (0,)), ((), ()))).single_column_axis


def test_plans_of_large_extents():
    """Extents past 2^31 elements: only arithmetic, no memory."""
    view = plan((1 << 20, 1 << 16), (1 << 16, 1 << 20), (((1,), (0,)), ((), ())))
    assert (view.m, view.n, view.k) == (1 << 20, 1 << 20, 1 << 16)
    view = plan((8, 1 << 20, 1 << 12), (8, 1 << 12, 3), (((2,), (1,)), ((0,), (0,))))
    assert 1 << 32 in view.a.batch_stride
