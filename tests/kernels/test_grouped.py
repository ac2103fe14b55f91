"""Products of groups of rows against float64: sizes of every kind, all forms, offsets, batches, epilogues, gradients.

Kernels with a grouped form run on a GPU, and there "auto" with many shapes; on a CPU it runs with a few.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import group_cases
import guards
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from group_cases import FORMS, KINDS, Grouped, run

import jaxgemm

KERNELS = [row.name for row in jaxgemm.kernels() if row.grouped]
TYPES = [("bfloat16", "bfloat16"), ("float16", "float32"), ("bfloat16", "float32"), ("float16", "float16")]
#: m, k, n and how many groups.
FEW = ((48, 16, 24, 5), (37, 17, 23, 5))
ALIGNED = ((1536, 256, 512, 8), (512, 600, 696, 16), (256, 64, 128, 4), (48, 8, 16, 70), (1000, 128, 64, 3))
#: Of 12 rows a group, which no gated tile is made for.
TWELVE = ((96, 128, 256, 8),)
UNALIGNED = ((1499, 599, 699, 12), (300, 129, 65, 7), (200, 33, 400, 64), (37, 17, 23, 5), (1, 1, 1, 1), (9, 1, 3, 2))
EVERY = (*ALIGNED, *UNALIGNED)

ON_GPU = [pytest.param(name, True, marks=pytest.mark.gpu, id=name) for name in KERNELS]
ON_GPU += [pytest.param("auto", True, marks=pytest.mark.gpu, id="auto on a GPU")]
#: A kernel, and whether all shapes and types are for it.
each_kernel = pytest.mark.parametrize(("kernel", "every"), [pytest.param("auto", False, id="auto"), *ON_GPU])
each_form = pytest.mark.parametrize("form", FORMS)


def compiled(p, kernel, function=None, arrays=None):
    """The program, and whether a kernel of ours computes all of it."""
    function = (lambda a: p.call(a, kernel)) if function is None else function
    with guards.counted() as called:
        lowered = jax.jit(function).lower(group_cases.on_device(p.arrays if arrays is None else arrays))
    assert called == [kernel] if kernel != "auto" else len(called) < 2
    return lowered.compile(), bool(called) and group_cases.fused(p, lowered.as_text())


@each_form
@each_kernel
def test_sizes_of_every_kind(kernel, every, form, rng):
    """Rows of no group hold NaN throughout."""
    for types, (*shape, groups) in itertools.product(TYPES, EVERY) if every else zip(TYPES, FEW, strict=False):
        p = Grouped.random(rng, form, shape, np.zeros(groups, np.int32), types)
        program, exact = compiled(p, kernel)
        for kind in KINDS:
            q = replace(p, sizes=group_cases.sizes(rng, kind, groups, shape[0])).spoilt()
            q.check(run(program, q), exact=exact, kernel=kernel)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 16, 24), (5, 0, 24), (5, 16, 0), (0, 0, 0)])
@pytest.mark.parametrize("platform", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@each_form
def test_nothing_to_compute(platform, form, m, k, n, rng):
    for groups in (1, 3):
        p = Grouped.random(rng, form, (m, k, n), group_cases.sizes(rng, "above", groups, m), TYPES[0])
        with jax.default_device(jax.devices(platform)[0]):
            assert not np.asarray(jax.jit(lambda a, p=p: p.call(a, "auto"))(group_cases.on_device(p.arrays))).any()


@each_form
@each_kernel
def test_some_groups_alone(kernel, every, form, rng):
    for *shape, groups in (ALIGNED[2], (300, 128, 65, 7), *UNALIGNED[:3]) if every else FEW[1:]:
        held = groups // 2
        sizes = group_cases.sizes(rng, "cuts", groups, shape[0])
        p = Grouped.random(rng, form, shape, sizes, ("bfloat16", "bfloat16"), held=held, offset=0)
        # Derivatives, as which alone there are sums of some groups, leave the choice of kernel to auto.
        program, exact = compiled(p, "auto" if form == "sums" else kernel)
        for offset in (-1, 0, 2, groups - 1, groups, -(2**31), 2**31 - 1):
            q = replace(p, offset=offset).spoilt()
            q.check(run(program, q), exact=exact, kernel=kernel)


@each_form
@each_kernel
def test_batches(kernel, every, form, rng):
    batches = [("lhs", "sizes"), ("rhs",), ("lhs", "rhs", "sizes"), ("sizes",)]
    shapes = (*ALIGNED[2:4], *UNALIGNED[1:3]) if every else FEW[1:]
    for (*shape, groups), mapped in itertools.product(shapes, batches if every else batches[:2]):
        cuts = [group_cases.sizes(rng, kind, groups, shape[0]) for kind in ("below", "negative", "skewed")]
        first, *others = (Grouped.random(rng, form, shape, x, ("bfloat16", "bfloat16")) for x in cuts)
        products = [first, *(replace(first, **{name: getattr(p, name) for name in mapped}) for p in others)]
        batched, arrays = group_cases.together(products, mapped, kernel)
        program, exact = compiled(first, kernel, batched, arrays)
        for p, result in zip(products, run(program, first, arrays), strict=True):
            p.check(result, exact=exact, kernel=kernel)


@pytest.mark.parametrize(("bias", "activation"), [(True, None), (False, "relu"), (True, "gelu"), (True, "silu")])
@each_kernel
def test_epilogues(kernel, every, bias, activation, rng):
    for (*shape, groups), types in zip((EVERY * 2 if every else FEW[1:]), itertools.cycle(TYPES), strict=False):
        sizes = group_cases.sizes(rng, "below", groups, shape[0])
        p = Grouped.random(rng, "rows", shape, sizes, types, bias=bias, activation=activation).spoilt()
        program, exact = compiled(p, kernel)
        p.check(run(program, p), exact=exact, kernel=kernel)


@pytest.mark.parametrize("activation", [None, "silu", "gelu"])
@each_kernel
def test_gated_pairs(kernel, every, activation, rng):
    shapes = (EVERY + TWELVE) * 2 if every else FEW[1:]
    for (*shape, groups), types in zip(shapes, itertools.cycle(TYPES), strict=False):
        p = Grouped.random(rng, "rows", shape, np.zeros(groups, np.int32), types, gated=True, activation=activation)
        with guards.counted():  # two calls where no kernel has that form
            lowered = jax.jit(lambda a, p=p: p.call(a, kernel)).lower(group_cases.on_device(p.arrays))
        program, exact = lowered.compile(), group_cases.fused(p, lowered.as_text())
        for kind in ("below", "mostly empty", "one huge"):
            q = replace(p, sizes=group_cases.sizes(rng, kind, groups, shape[0])).spoilt()
            q.check(run(program, q), exact=exact, kernel=kernel)


@pytest.mark.parametrize("of", ["lhs", "rhs"])
@each_form
@each_kernel
def test_gradients(kernel, every, form, of, rng):
    """Derivatives are products of these forms again; they leave the choice of kernel to auto."""
    for *shape, groups in EVERY if every else FEW[1:]:
        sizes = group_cases.sizes(rng, "below", groups, shape[0])
        p = Grouped.random(rng, form, shape, sizes, ("bfloat16", "bfloat16"))
        ct = rng.standard_normal(p.shape).astype(p.lhs.dtype)
        wanted = derivative(p, of, ct)

        def pull(arrays, p=p, of=of):
            def product(x):
                return p.call({**arrays, of: x}, kernel)

            return jax.linear_transpose(product, arrays[of])(arrays["ct"])[0]

        program, exact = compiled(wanted, "auto", pull, {**p.arrays, "ct": ct})
        wanted.check(run(program, wanted, {**p.arrays, "ct": ct}), exact=exact)


def derivative(p, of, ct):
    """The grouped product that gives the cotangent of an operand."""
    if p.form == "sums":
        x, w = (p.rhs, ct) if of == "lhs" else (p.lhs, ct)
        return replace(p, form="transposed" if of == "lhs" else "rows", lhs=x, rhs=w)
    if of == "lhs":
        return replace(p, form="transposed" if p.form == "rows" else "rows", lhs=ct)
    x, y = (p.lhs, ct) if p.form == "rows" else (ct, p.lhs)
    return replace(p, form="sums", lhs=x, rhs=y)


@pytest.mark.parametrize("form", ["rows", "transposed"])
@each_kernel
def test_groups_are_isolated(kernel, every, form, rng):
    """NaN and infinity in a group's rows, and in another's weights, reach neither other groups' results nor their
    gradients.
    """
    for *shape, groups in (EVERY[:4] + UNALIGNED[:2]) if every else FEW[1:]:
        sizes = group_cases.sizes(rng, "below", groups, shape[0])
        clean = Grouped.random(rng, form, shape, sizes, ("bfloat16", "float32"))
        ct = rng.standard_normal(clean.shape).astype(np.float32)
        spoilt = replace(clean.spoilt(), rhs=clean.rhs.copy())
        rows = dict(clean.parts())
        spoilt.lhs[rows[1]], spoilt.rhs[2, 0, 0] = np.inf, np.nan

        @jax.jit
        def both(arrays, ct, p=clean):
            def product(x, w):
                return p.call({**arrays, "lhs": x, "rhs": w}, kernel)

            out, pull = jax.vjp(product, arrays["lhs"], arrays["rhs"])
            return out, *pull(ct)

        outs = [map(np.asarray, both(group_cases.on_device(p.arrays), array(ct))) for p in (clean, spoilt)]
        (out, dx, dw), (got, got_dx, got_dw) = outs
        for group in set(rows) - {1, 2}:
            for one, other in ((out, got), (dx, got_dx)):
                assert one[rows[group]].tobytes() == other[rows[group]].tobytes()
            assert dw[group].tobytes() == got_dw[group].tobytes()
        last = max(part.stop for part in rows.values())
        assert not got[last:].any()
        assert not got_dx[last:].any()
        sound = np.isfinite(got[rows[1]]).any() or np.isfinite(got[rows[2]][:, 0]).any()
        assert not sound, "what was spoilt has no effect"


@pytest.mark.gpu
@pytest.mark.parametrize("of", ["result", "lhs", "rhs"])
@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
def test_aligned_rows_take_no_temporaries(kernel, of):
    m, k, n, groups = 4096, 1024, 2048, 8
    x, w, ct = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((m, k), (groups, k, n), (m, n)))
    sizes = jax.ShapeDtypeStruct((groups,), jnp.int32)

    def product(x, w, sizes):
        return jaxgemm.ragged_dot(x, w, sizes, kernel=kernel)

    def to_lhs(ct, w, sizes):
        return jax.linear_transpose(lambda x: product(x, w, sizes), x)(ct)

    def to_rhs(ct, x, sizes):
        return jax.linear_transpose(lambda w: product(x, w, sizes), w)(ct)

    function, operands = {"result": (product, (x, w)), "lhs": (to_lhs, (ct, w)), "rhs": (to_rhs, (ct, x))}[of]
    with guards.counted() as called:
        lowered = jax.jit(function).lower(*operands, sizes)
    assert len(called) == 1, "XLA's products need more"
    assert lowered.compile().memory_analysis().temp_size_in_bytes <= 1 << 20


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_captured_graph_reads_sizes_anew(kernel, rng):
    """XLA captures a program of so many calls, and replays it."""
    products = [
        Grouped.random(rng, form, shape, np.zeros(groups, np.int32), TYPES[0])
        for *shape, groups in (ALIGNED[0], UNALIGNED[1], ALIGNED[3])
        for form in FORMS
    ]
    program = jax.jit(lambda all_arrays: [p.call(x, kernel) for p, x in zip(products, all_arrays, strict=True)])
    for kind in (*KINDS, *KINDS):
        given = [replace(p, sizes=group_cases.sizes(rng, kind, len(p.sizes), len(p.lhs))).spoilt() for p in products]
        results = program([group_cases.on_device(p.arrays) for p in given])
        for p, result in zip(given, results, strict=True):
            p.check(np.asarray(result), exact=True, kernel=kernel)


# --- The cases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_of_their_kind(kind, rng):
    for groups, m in ((1, 1), (5, 37), (8, 1024), (64, 200), (70, 48), (3, 0)):
        sizes = group_cases.sizes(rng, kind, groups, m)
        assert (sizes.shape, sizes.dtype) == ((groups,), np.int32)
        total = int(sizes.sum(dtype=np.int64))
        assert (sizes < 0).any() == (kind == "negative")
        if kind in ("cuts", "skewed", "mostly empty"):
            assert total == m
        elif kind == "above":
            assert total > m
        elif kind in ("below", "equal") or kind.startswith("multiples"):
            assert 0 <= total <= m
        elif kind == "none":
            assert total == 0
        if kind.startswith("multiples"):
            assert not (sizes % int(kind.split()[-1])).any()
        if kind == "mostly empty":
            assert np.count_nonzero(sizes) <= 1 + groups // 8
        if kind == "one huge":
            assert np.count_nonzero(sizes == 1) >= groups - 1


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_result_is_found(form, rng):
    p = Grouped.random(rng, form, (37, 17, 23), np.array([5, 0, 20], np.int32), ("float32", "float32"))
    p = replace(p, precision="highest").spoilt()
    sound = np.asarray(p.call(group_cases.on_device(p.arrays), "auto"))
    p.check(sound, exact=True)
    for at in ((2, 3, 4), (1, 0, 0)) if form == "sums" else ((7, 4), (30, 0)):  # of a group, and of none
        wrong = sound.copy()
        wrong[at] += 0.01
        with pytest.raises(AssertionError, match=r"off, first at|not zero"):
            p.check(wrong, exact=True)
