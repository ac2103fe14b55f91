"""float32 products of groups of rows by `sm90`, in planes of bfloat16: errors within their bounds."""

import group_cases
import grouped
import jax
import numpy as np
import pytest

import jaxgemm

PRECISIONS = ("BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9", "highest")
#: m, k, n and how many groups.
SHAPES = ((300, 200, 130, 5), (1000, 64, 256, 3), (64, 515, 77, 70), (257, 129, 1, 7), (2000, 96, 400, 1))
#: What bfloat16 loses of the smallest numbers, where it has few parts of them.
SMALLEST = {"BF16_BF16_F32": 2.0**-131, "BF16_BF16_F32_X3": 2.0**-140}
LARGEST = float(np.finfo(np.float32).max)

pytestmark = [pytest.mark.gpu]


def operands(rng, form, m, k, n, groups):
    lhs = rng.standard_normal((m, k)).astype(np.float32)
    shape = {"rows": (groups, k, n), "transposed": (groups, n, k), "sums": (m, n)}[form]
    return lhs, rng.standard_normal(shape).astype(np.float32)


def product(form, lhs, rhs, sizes, precision, **keywords):
    keywords = {"precision": precision, "kernel": "sm90", **keywords}
    if form == "rows":
        return jaxgemm.ragged_dot(lhs, rhs, sizes, **keywords)
    return jaxgemm.ragged_dot_general(lhs, rhs, sizes, group_cases.NUMBERS[form], **keywords)


def exact(form, lhs, rhs, sizes):
    """In float64, group by group."""
    groups = enumerate(grouped.bounds(sizes, lhs.shape[0]))
    if form == "sums":
        return np.stack([lhs[i:j].astype(np.float64).T @ rhs[i:j].astype(np.float64) for _, (i, j) in groups])
    weights = rhs if form == "rows" else np.swapaxes(rhs, 1, 2)
    result = np.zeros((lhs.shape[0], weights.shape[2]))
    for group, (i, j) in groups:
        if i < j:
            result[i:j] = lhs[i:j].astype(np.float64) @ weights[group].astype(np.float64)
    return result


def check(got, form, lhs, rhs, sizes, precision):
    """Each element within its bound, which tokens of no group do not count in."""
    used = np.arange(lhs.shape[0])[:, None] < grouped.bounds(sizes, lhs.shape[0])[-1][1]
    x, y = np.where(used, lhs, 0), np.where(used, rhs, 0) if form == "sums" else rhs
    ones = abs(x), abs(y)
    k = lhs.shape[0 if form == "sums" else 1]
    bound = jaxgemm.error_bound(precision, k) * exact(form, *ones, sizes) + k * 2.0**-145
    bound += SMALLEST.get(precision, 2.0**-147) * (abs(x).sum() + abs(y).sum())
    error = abs(np.asarray(got, np.float64) - exact(form, x, y, sizes))
    worst = np.max(error / bound, initial=0.0)
    assert worst <= 1, f"{form} {lhs.shape} x {rhs.shape}, {precision}: {worst:.3g} times the bound"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", group_cases.FORMS)
def test_sizes_of_every_kind(form, precision, rng):
    """Rows of no group hold NaN."""
    for m, k, n, groups in SHAPES:
        lhs, rhs = operands(rng, form, m, k, n, groups)
        run = jax.jit(lambda *args, form=form: product(form, *args, precision))
        for kind in group_cases.KINDS:
            sizes = group_cases.sizes(rng, kind, groups, m)
            end = grouped.bounds(sizes, m)[-1][1]
            spoilt = np.where(np.arange(m)[:, None] < end, lhs, np.nan)
            check(run(spoilt, rhs, sizes), form, lhs, rhs, sizes, precision)


@pytest.mark.parametrize("form", group_cases.FORMS)
def test_results_wider_than_a_slab_of_weights(form, rng):
    """Weights whose planes pass the limit of the workspace are split and multiplied by columns."""
    m, k, n, groups = (8192, 64, 20500, 3) if form == "sums" else (96, 4096, 2501, 20)
    lhs, rhs = operands(rng, form, m, k, n, groups)
    sizes = group_cases.sizes(rng, "cuts", groups, m)
    check(jax.jit(lambda *args: product(form, *args, "highest"))(lhs, rhs, sizes), form, lhs, rhs, sizes, "highest")


@pytest.mark.parametrize("form", group_cases.FORMS)
def test_batches(form, rng):
    m, k, n, groups = 90, 70, 150, 4
    pairs = [operands(rng, form, m, k, n, groups) for _ in range(3)]
    sizes = [group_cases.sizes(rng, kind, groups, m) for kind in ("cuts", "below", "mostly empty")]
    lhs, rhs, cuts = (np.stack(x) for x in (*zip(*pairs, strict=True), sizes))
    for axes in ((0, 0, 0), (0, None, 0), (None, 0, None)):
        given = [x if axis == 0 else x[0] for x, axis in zip((lhs, rhs, cuts), axes, strict=True)]
        got = jax.jit(jax.vmap(lambda *args: product(form, *args, "highest"), axes))(*given)
        for i in range(3):
            args = [x[i] if axis == 0 else x for x, axis in zip(given, axes, strict=True)]
            check(got[i], form, *args, "highest")


@pytest.mark.parametrize("precision", ["BF16_BF16_F32_X3", "highest", None])
@pytest.mark.parametrize("form", group_cases.FORMS)
def test_special_values(form, precision, rng):
    """Infinity and NaN where exact arithmetic has them; results near the largest number stay finite."""
    m, k, n, groups = 200, 80, 90, 4
    lhs, rhs = operands(rng, form, m, k, n, groups)
    sizes = np.array([60, 0, 70, 70], np.int32)
    run = jax.jit(lambda *args: product(form, *args, precision))
    for value in (np.inf, -np.inf, np.nan):
        for operand in (0, 1):
            spoilt = [lhs.copy(), rhs.copy()]
            spoilt[operand][(3, 7) if spoilt[operand].ndim == 2 else (2, 3, 7)] = value
            got = np.asarray(run(*spoilt, sizes))
            wanted = exact(form, *spoilt, sizes)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
            np.testing.assert_array_equal(got[np.isinf(wanted)], wanted[np.isinf(wanted)])
    x, y = np.zeros_like(lhs), np.zeros_like(rhs)
    x[:, 0] = 0.998 * LARGEST
    y[..., 0, :] = y[..., 0] = 1.0
    if form == "sums":  # one row of each group
        x, y = np.zeros_like(lhs), np.zeros_like(rhs)
        x[[0, 60, 130]], y[[0, 60, 130]] = 0.998 * LARGEST, 1.0
    got = np.asarray(run(x, y, sizes))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, exact(form, x, y, sizes), rtol=2.0**-15)


@pytest.mark.parametrize("precision", ["BF16_BF16_F32_X3", "highest"])
def test_gradients(precision, rng):
    m, k, n, groups = 300, 100, 140, 5
    lhs, rhs = operands(rng, "rows", m, k, n, groups)
    ct, sizes = rng.standard_normal((m, n)).astype(np.float32), group_cases.sizes(rng, "below", groups, m)
    pull = jax.jit(lambda x, w: jax.vjp(lambda x, w: product("rows", x, w, sizes, precision), x, w)[1](ct))
    of_lhs, of_rhs = pull(lhs, rhs)
    check(of_lhs, "transposed", ct, rhs, sizes, precision)
    check(of_rhs, "sums", lhs, ct, sizes, precision)


def test_the_same_bits_again(rng):
    for form in group_cases.FORMS:
        lhs, rhs = operands(rng, form, 700, 300, 260, 6)
        sizes = group_cases.sizes(rng, "cuts", 6, 700)
        run = jax.jit(lambda *args, form=form: product(form, *args, "highest"))
        first = np.asarray(run(lhs, rhs, sizes))
        for _ in range(20):
            np.testing.assert_array_equal(np.asarray(run(lhs, rhs, sizes)), first)
