"""sm90's host side, part by part, without a GPU: the walk over tiles, the path of results, the parts of a cost."""

import ctypes
import itertools
import random
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxgemm
from jaxgemm.choice.resolve import candidates
from jaxgemm.epilogue import ACTIVATIONS
from jaxgemm.kernels import H200, find_kernel
from jaxgemm.measure.case import Case

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
ROW = find_kernel("sm90")
SOURCES = (
    "schedule.cu",
    "output.cc",
    "plan.cc",
    "choose.cc",
    "choose_grouped.cc",
    "cost.cc",
    "plan_many.cc",
    "planes/tail.cc",
    "store_path.cc",
)
TMA, TMA_FINISHED, BY_WARP, BY_WARP_FINISHED, FP32, ELEMENTS = range(6)
NONE, RELU, TANH = map((None, *ACTIVATIONS).index, (None, "relu", "tanh"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no compiler")
    library = tmp_path_factory.mktemp("engine") / "libhost.so"
    sources = [HERE / "host.cc", *(ROOT / "ffi/cuda/sm90" / name for name in SOURCES)]
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-I{ROOT}", "-include", HERE / "host.h", "-x", "c++"]
    done = subprocess.run([compiler, *flags, *sources, "-o", library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = ctypes.CDLL(str(library))
    found.walk.restype = found.many.restype = ctypes.c_char_p
    found.store_path.argtypes = [ctypes.POINTER(ctypes.c_int64), *[ctypes.c_int64] * 2, *[ctypes.c_int] * 3]
    found.store_path.argtypes += [ctypes.c_double, ctypes.c_int]
    return found


def numbers(*values):
    return (ctypes.c_int64 * len(values))(*values)


def walk(engine, shape, multiprocessors=132, **options):
    """(one_wave, narrow_stride, cluster, slices, partials) of a product's launch; None where nothing can run it."""
    facts = numbers(*[0] * 5)
    chosen = numbers(*(options.get(name, 0) for name in ROW.options))
    wrong = engine.walk(numbers(*shape), chosen, multiprocessors, facts).decode()
    if wrong == "no configuration":
        return None
    assert not wrong, (shape, options, multiprocessors)
    return tuple(facts)


FACTS = ("one_wave", "narrow_stride", "cluster", "slices", "partials")
NOTHING = dict(zip(FACTS, (0, 0, 1, 1, 1), strict=True))


def test_every_tile_gets_all_of_k_once(engine):
    """Whatever the shape, the configuration and the device, over all blocks of the grid."""
    draw, ran, seen = random.Random(1), 0, set()
    for _ in range(400):
        shape = [int(2 ** draw.uniform(0, 12)) for _ in range(2)] + [int(2 ** draw.uniform(0, 13))]
        shape += [draw.choice((1, 1, 1, 3)), draw.randint(0, 1), draw.randint(0, 1)]
        options = {"grid": draw.randint(0, 2), "swap": draw.randint(0, 2)}
        options["walk_height"] = draw.choice((0, 1, 2, 8, 2**31, 2**32))
        options |= {"cluster_m": draw.choice((0, 0, 1, 2, 4)), "cluster_n": draw.choice((0, 0, 1, 2, 4))}
        options |= {"split_k": draw.choice((0, 1, 2, 3, 4, 8)), "reduction": draw.randint(0, 2)}
        options |= {"every_eighth": draw.randint(0, 2), "unaligned": draw.randint(0, 2)}
        if facts := walk(engine, shape, draw.choice((132, 132, 114, 16)), **options):
            ran += 1
            seen |= {(name, x > NOTHING[name]) for name, x in zip(FACTS, facts, strict=True)}
    assert ran > 100
    assert seen == {(name, x) for name in FACTS for x in (False, True)}


def test_a_narrow_last_column_is_walked_last(engine):
    """Where it fills the last wave's gaps: 2048 x 4128 in tiles of 128 x 256 has 32 columns left over."""
    tile = {"tile_m": 128, "tile_n": 256, "swap": 1, "cluster_m": 1, "cluster_n": 1, "split_k": 1, "unaligned": 1}
    facts = walk(engine, (2048, 4128, 512, 1, 0, 0), **tile)
    assert facts[FACTS.index("narrow_stride")] > 0
    facts = walk(engine, (2048, 4096, 512, 1, 0, 0), **tile)
    assert facts[FACTS.index("narrow_stride")] == 0


@pytest.mark.parametrize(
    ("path", "n", "changes"),
    [
        (TMA, 64, {}),
        (BY_WARP, 63, {}),
        (BY_WARP, 64, {"d": 258}),
        (BY_WARP, 64, {"alpha": 0.5}),
        (TMA_FINISHED, 64, {"bias": 512}),
        (TMA_FINISHED, 64, {"has_c": 1}),
        (TMA_FINISHED, 64, {"activation": RELU}),
        (BY_WARP_FINISHED, 63, {"bias": 512}),
        (ELEMENTS, 64, {"bias": 514}),  # no pair of its elements is aligned
        (ELEMENTS, 63, {"has_c": 1}),
        (ELEMENTS, 64, {"activation": TANH}),
        (FP32, 64, {"f32": 1}),
        (FP32, 64, {"split_k": 2, "bias": 512, "activation": TANH}),  # partial results have no epilogue
        (ELEMENTS, 64, {"f32": 1, "alpha": 2.0}),
    ],
    ids=str,
)
def test_how_results_leave(engine, path, n, changes):
    given = {"d": 256, "bias": 0, "has_c": 0, "f32": 0, "activation": NONE, "alpha": 1.0, "split_k": 1, **changes}
    assert engine.store_path(numbers(300, n, 4096, 1, 0, 0), *given.values()) == path


def many(engine, shapes, layout=(0, 0), **options):
    """(tile, workspace, for each product its place in the launch and where its copies of a and b begin and end)."""
    tile, products = numbers(0, 0, 0), numbers(*[0] * 5 * len(shapes))
    chosen = numbers(*(options.get(name, 0) for name in ROW.options))
    flat = [x for shape in shapes for x in (*shape, 1, *layout)]
    wrong = engine.many(numbers(*flat), len(shapes), chosen, tile, products).decode()
    assert not wrong, wrong
    return tuple(tile[:2]), tile[2], [tuple(products[5 * i : 5 * i + 5]) for i in range(len(shapes))]


@pytest.mark.parametrize("layout", [(0, 0), (0, 1), (1, 0)])
def test_many_products_have_a_place_each(engine, layout):
    """In the order of launches, the longest sums first; and in the workspace, where unaligned operands are copied."""
    draw = random.Random(2)
    for count in (1, 2, 37, 300):
        shapes = [tuple(int(2 ** draw.uniform(0, 9)) for _ in range(3)) for _ in range(count)]
        _, workspace, products = many(engine, shapes, layout)
        order = sorted(range(count), key=lambda i: products[i][0])
        assert [products[i][0] for i in order] == [*range(count)]
        assert order == sorted(range(count), key=lambda i: -shapes[i][2])
        copies = []
        for (m, n, k), (_, *of_a, begin, end) in zip(shapes, products, strict=True):
            for matrix, transposed, at in (((m, k), layout[0], of_a), ((k, n), layout[1], [begin, end])):
                lines, pitch = matrix[::-1] if transposed else matrix
                assert (at[0] >= 0) == (lines > 1 and pitch % 8 > 0)
                if at[0] >= 0:
                    assert at[1] - at[0] >= 2 * lines * pitch
                    copies.append(at)
        copies.sort()
        assert all(begin % 128 == 0 for begin, _ in copies)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise([*copies, [workspace, workspace]]))


def test_the_tile_of_many_products(engine):
    """Whatever their order, one that is no larger than products need, and fills the device."""
    small, large = [(48, 64, 512)] * 200, [(4096, 4096, 4096)] * 4
    assert many(engine, small)[0] == (64, 64)
    assert many(engine, large)[0] == (128, 256)
    mixed = [(17, 33, 65), (1024, 512, 2048), (300, 77, 4096), *small[:3], *large[:1]]
    assert many(engine, mixed)[0] == many(engine, mixed[::-1])[0]
    for tile in ((64, 64), (128, 128), (128, 256)):
        assert many(engine, large, tile_m=tile[0], tile_n=tile[1])[0] == tile


CASES = (
    Case(1024, 1024, 4096, "bfloat16"),
    Case(8192, 8192, 8192, "bfloat16"),
    Case(16, 8192, 8192, "bfloat16"),
    Case(64, 64, 65536, "bfloat16"),
    Case(2049, 2051, 2047, "bfloat16"),
    Case(300, 520, 72, "bfloat16", "TN", batch=12),
    Case(256, 2048, 512, "bfloat16", bias=True, activation="silu"),
)


@pytest.mark.skipif(not ROW.built, reason="this build has no such kernel")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_parts_of_a_time_add_up_to_it(case, benchmark_script):
    names = ("launch", "main_loop", "epilogue", "memory", "split", "copies")
    found = candidates(ROW, (), benchmark_script("tune").problem_of(case), H200)
    assert found
    option = {name: i for i, name in enumerate(ROW.options)}
    for x in found:
        parts = dict(x.parts)
        assert tuple(parts) == names
        assert sum(parts.values()) == pytest.approx(x.microseconds, rel=1e-9)
        assert min(parts.values()) >= -1e-9
        assert min(parts["launch"], parts["main_loop"], parts["epilogue"]) > 0
        in_workspace = x.config[option["split_k"]] > 1 and x.config[option["reduction"]] == 1
        assert (parts["split"] > 0) == in_workspace
    assert candidates(ROW, (), benchmark_script("tune").problem_of(case), H200, 3) == found[:3]
    pitches = (case.m if case.layout[0] == "T" else case.k, case.k if case.layout[1] == "T" else case.n)
    assert any(dict(x.parts)["copies"] > 0 for x in found) == any(pitch % 8 != 0 for pitch in pitches)


@pytest.mark.skipif(not ROW.built, reason="this build has no such kernel")
def test_what_dominates(benchmark_script):
    """Long products multiply, few rows of them wait for memory, and splitting K costs what it says."""
    problem_of = benchmark_script("tune").problem_of
    square = candidates(ROW, (), problem_of(Case(8192, 8192, 8192, "bfloat16")), H200)[0]
    assert dict(square.parts)["main_loop"] > 0.8 * square.microseconds
    copied = candidates(ROW, (), problem_of(Case(4096, 64, 4099, "bfloat16")), H200)
    assert any(dict(x.parts)["copies"] == 0 for x in copied)  # x is loaded where it lies
    assert any(dict(x.parts)["copies"] > 0 for x in copied)


def test_kernels_without_a_model_of_parts_tell_none():
    if not find_kernel("direct").built:
        pytest.skip("this build has no such kernel")
    a, b = (jax.ShapeDtypeStruct((64, 64), jnp.bfloat16) for _ in range(2))
    choice = jaxgemm.explain(a, b, platform="cuda", kernel="direct").products[0].decision.choice
    assert choice.considered
    assert all(x.parts == () for x in choice.considered)
