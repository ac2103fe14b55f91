"""Every configuration of grouped tiles against float64; elsewhere a model chooses which of them runs."""

from __future__ import annotations

from dataclasses import replace

import group_cases
import jax
import numpy as np
import pytest
from group_cases import KINDS, Grouped, run

import jaxgemm
from jaxgemm.choice.grouped import choose
from jaxgemm.kernels import H200, device_for

#: What is computed, and how many tiles and configurations there are for it.
VARIANTS = {
    "rows": ("rows", {}, (7, 14)),
    "transposed": ("transposed", {}, (7, 14)),
    "sums": ("sums", {}, (3, 9)),
    "bias": ("rows", {"bias": True}, (7, 14)),
    "activation": ("rows", {"activation": "gelu"}, (7, 14)),
    "bias and activation": ("rows", {"bias": True, "activation": "silu"}, (7, 14)),
    "some groups": ("rows", {"held": 3, "offset": 1}, (7, 14)),
    "some transposed": ("transposed", {"held": 3, "offset": 1}, (7, 14)),
    "some sums": ("sums", {"held": 3, "offset": 1}, (3, 9)),
    "gated": ("rows", {"gated": True, "activation": "silu"}, (4, 8)),
    "gated, some groups": ("rows", {"gated": True, "activation": None, "held": 3, "offset": 1}, (4, 8)),
}
TYPES = [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float16", "float16"), ("float16", "float32")]
#: Half of the types are for all variants.
CASES = [
    (variant, types)
    for variant in VARIANTS
    for types in (TYPES if variant in ("rows", "transposed", "sums", "gated") else TYPES[::3])
]
#: m, k, n and how many groups: rows that begin at multiples of 16 bytes and rows that do not, with clusters of tiles,
#: and more groups than a warp has lanes, most of them of a row or two.
SHAPES = ((600, 264, 520, 6), (333, 137, 261, 5), (120, 72, 96, 70))
KERNELS = [pytest.param(row.name, marks=pytest.mark.gpu) for row in jaxgemm.kernels() if row.grouped]


def programs(p, kernel, rng):
    """The compiled programs of all configurations, by their options but for how tiles are walked: that is drawn."""
    found = {}
    for options in group_cases.configurations(kernel, p.problem):
        options |= {"walk_height": int(rng.integers(1, 17))}
        launched = jax.jit(lambda arrays, options=options: p.launched(arrays, kernel, options))
        found[tuple(options.items())] = launched.lower(group_cases.on_device(p.arrays)).compile()
    return found


def tile(options):
    return tuple(value for name, value in options if name in ("tile_m", "tile_n", "swap"))


def cluster(options):
    return tuple(value for name, value in options if name.startswith("cluster"))


@pytest.mark.parametrize(("variant", "types"), CASES, ids=[f"{name} {'-'.join(types)}" for name, types in CASES])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_configuration(kernel, variant, types, rng):
    """Rows of no group hold NaN throughout. Bits that are right by one configuration are so by another."""
    form, keywords, counts = VARIANTS[variant]
    seen = set()
    for *shape, groups in SHAPES:
        p = Grouped.random(rng, form, shape, np.zeros(groups, np.int32), types, **keywords)
        cases = [group_cases.sizes(rng, kind, groups, shape[0]) for kind in rng.choice(KINDS, 4, replace=False)]
        given = [replace(p, sizes=sizes).spoilt() for sizes in (*cases, group_cases.sizes(rng, "cuts", groups, 100))]
        right = [set() for _ in given]
        for options, program in programs(p, kernel, rng).items():
            seen.add((*tile(options), *cluster(options)))
            for q, known in zip(given, right, strict=True):
                result = run(program, q)
                if result.tobytes() not in known:
                    try:
                        q.check(result, exact=True, kernel=kernel)
                    except AssertionError as error:
                        raise AssertionError(f"{shape}, {q.sizes.tolist()}, {dict(options)}: {error}") from error
                    known.add(result.tobytes())
    assert (len({x[:3] for x in seen}), len(seen)) == counts


@pytest.mark.parametrize("form", ["rows", "transposed"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_many_tiles_of_weights_that_come_from_memory(kernel, form, rng):
    """Stages arrive slowly, and some warpgroups have no row of a tile: warps that do not wait for each other there lose
    count of the stages, now and then.
    """
    p = Grouped.random(rng, form, (1024, 4096, 4096), group_cases.sizes(rng, "cuts", 16, 1024), TYPES[0])
    arrays = group_cases.on_device(p.arrays)
    for options, program in programs(p, kernel, rng).items():
        first = program(arrays)
        for _ in range(30):
            assert (program(arrays) == first).all(), dict(options)
    p.check(np.asarray(first), exact=True, kernel=kernel)


@pytest.mark.parametrize("form", ["rows", "transposed"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_rows_bits_depend_on_nothing_but_its_group(kernel, form, rng):
    """Not on the configuration, nor on the other rows, nor on where it lies."""
    for *shape, groups in SHAPES[:2]:
        whole = Grouped.random(rng, form, shape, group_cases.sizes(rng, "cuts", groups, shape[0]), TYPES[0])
        rows = dict(whole.parts())
        group = max(rows, key=lambda g: rows[g].stop - rows[g].start)
        part = slice(rows[group].start + 1, rows[group].stop)  # which lie elsewhere in a tile
        sizes = np.zeros(groups, np.int32)
        sizes[group] = part.stop - part.start
        alone = replace(whole, lhs=whole.lhs[part], sizes=sizes)
        of_all = {run(program, whole)[part].tobytes() for program in programs(whole, kernel, rng).values()}
        of_part = {run(program, alone).tobytes() for program in programs(alone, kernel, rng).values()}
        assert len(of_all) == 1
        assert of_all == of_part


@pytest.mark.parametrize("kernel", KERNELS)
def test_batch_invariant_products_are_a_kernels(kernel, rng):
    """Also those that take less time by XLA's dense products."""
    p = Grouped.random(rng, "rows", (4096, 512, 512), np.zeros(1, np.int32), TYPES[0])
    for name in ("auto", kernel):
        choice = choose(p.problem, device_for("cuda"), precision=None, kernel=name, batch_invariant=True)
        assert choice.kernel.name == kernel
    with pytest.raises(jaxgemm.UnsupportedError, match="do not promise it"):
        choose(p.problem, device_for("cuda"), precision=None, kernel="xla", batch_invariant=True)


def test_a_kernel_that_is_not_there_computes_nothing(rng):
    """On a machine without a GPU, or with a library without kernels, there is nothing to launch."""
    p = Grouped.random(rng, "rows", (32, 8, 16), np.zeros(2, np.int32), ("int8", "int32"))
    assert group_cases.configurations("sm90", p.problem) == []
    with pytest.raises(jaxgemm.UnsupportedError, match="kernel 'sm90'"):
        p.launched(p.arrays, "sm90", {})
    with pytest.raises(jaxgemm.UnsupportedError, match="batch_invariant"):
        choose(p.problem, H200, precision=None, kernel="auto", batch_invariant=True)
