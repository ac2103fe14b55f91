"""jaxgemm/measure/data.py: what operands of each kind of data hold, and how a case has them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgemm.measure import case
from jaxgemm.measure.case import Case
from jaxgemm.measure.data import KINDS

#: Numbers smaller than this beside their row's largest, or their column's, are lost by two scaled parts in float16.
LOST = 2.0**-38


def operands(one, seed=0):
    """op(A) and op(B), in float64."""
    a, b = (np.asarray(x, np.float64) for x in case.make_inputs(one, 1, seed)[0][:2])
    return [np.swapaxes(x, -1, -2) if side == "T" else x for x, side in zip((a, b), one.layout, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("layout", case.LAYOUTS)
def test_a_case_has_the_data_that_it_names(kind, batch, layout):
    one = Case(7, 5, 6, layout=layout, batch=batch, data=kind, bias=True)
    rng = np.random.default_rng([4, 0])
    pairs = [KINDS[kind](rng, 7, 5, 6) for _ in range(batch or 1)]
    for got, drawn in zip(operands(one, 4), zip(*pairs, strict=True), strict=True):
        expected = np.asarray(drawn).astype(np.float32)
        np.testing.assert_array_equal(got, expected if batch else expected[0])
    first, second = case.make_inputs(one, 2, seed=4)
    assert [x.shape for x in first] == [x.shape for x in one.operands]
    assert not np.array_equal(first[0], second[0])
    np.testing.assert_array_equal(case.make_inputs(one, 1, seed=4)[0][0], first[0])


def test_data_have_the_operands_type():
    a, b = case.make_inputs(Case(7, 5, 6, "bfloat16", data="uniform"), 1, seed=0)[0]
    assert a.dtype == b.dtype == "bfloat16"
    with pytest.raises(ValueError, match="data 'uniform' has fractions, which int8 has not"):
        case.make_inputs(Case(7, 5, 6, "int8", data="uniform"), 1, seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_which_data_scaled_parts_would_lose(kind):
    """So that what raises the guard is timed apart from what does not."""
    a, b = operands(Case(300, 200, 400, data=kind))
    lost = [
        bool((x[x > 0] < LOST * np.broadcast_to(x.max(axis, keepdims=True), x.shape)[x > 0]).any())
        for x, axis in ((abs(a), 1), (abs(b), 0))
    ]
    expected = {"one tiny value": [True, False], "softmax": [True, False], "wide exponents": [True, True]}
    assert lost == expected.get(kind, [False, False])
    if kind == "one tiny value":
        assert (abs(a) < 1e-20).sum() == 1


def test_small_numbers_drawn_in_float64_have_all_their_bits():
    """Those of float32 are made of 23 random bits, so that there are few small ones, each many times."""
    extent = 4096
    drawn, _ = operands(Case(extent, 8, extent, data="normal"))
    bits = np.asarray(jax.random.normal(jax.random.key(0), (extent, extent), jnp.float32))
    assert np.std(drawn) == pytest.approx(np.std(bits), rel=0.01)
    small, few = (np.sort(abs(x[abs(x) < 2.0**-16])) for x in (drawn, bits))
    assert 100 < len(small) == len(np.unique(small))
    assert len(np.unique(few)) < 0.9 * len(few)
