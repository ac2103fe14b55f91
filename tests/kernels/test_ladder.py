"""The ladder: what its rows refuse, what benchmarks/ladder.py measures, and that docs/ladder.md says the same."""

import importlib
import itertools
import json
import re
from pathlib import Path

import cases
import cubins
import jax
import numpy as np
import pytest
from oracle import Product, check_all, refused_by_name

import jaxgemm
from jaxgemm.measure import bench

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/nvidia-h100-80gb-hbm3"
LADDER = [row for row in jaxgemm.kernels() if row.family == "ladder"]
ROWS = [row.name for row in LADDER]

#: WMMA's tile shapes by operand type.
WIDE = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
TILES = {**dict.fromkeys(("float16", "bfloat16", "int8", "uint8"), WIDE), "float32": ((16, 16, 8),)}
TILES["float64"] = ((8, 8, 4),)


@pytest.fixture
def ladder(monkeypatch):
    return script("ladder", monkeypatch)


@pytest.fixture
def shown(monkeypatch):
    return script("ladder_docs", monkeypatch)


def script(name, monkeypatch):
    for folder in ("benchmarks/support", "benchmarks"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module(name)


def test_measures_shows_and_draws(ladder, capsys, tmp_path):
    kernel, plot = "host" if jax.default_backend() == "cpu" else "tiled", tmp_path / "ladder.svg"
    arguments = ["--sizes", "32,48", "--repeats", "3", "--budget", "0.01", "--results", tmp_path, "--plot", plot]
    arguments += ["--kernel", kernel]
    assert ladder.main([*map(str, arguments), "--effective-ops"]) == 0
    text = capsys.readouterr().out
    assert kernel in text
    assert "Jetson" in text
    (file,) = tmp_path.glob("*/ladder_partial.json")
    document = json.loads(file.read_text())
    assert [(row["n"], row["kernel"], row["status"]) for row in document["rows"]] == [
        (32, kernel, "ok"),
        (48, kernel, "ok"),
    ]
    row = document["rows"][0]
    assert row["error"] < 1e-6
    assert row["tflops"] == pytest.approx(2e-6 * 32**3 / row["us"])
    assert row["effective_tops"] == pytest.approx(1e-6 * (32 * 32 + 63 * 32 * 32 + 2 * 32 * 32) / row["us"])
    assert row["xla"]["default"]["us"] > 0
    assert kernel in plot.read_text()

    again = tmp_path / "again.svg"
    assert ladder.main(["--from", str(file), "--plot", str(again)]) == 0
    assert again.read_bytes() == plot.read_bytes()


def test_everything_is_planned(ladder):
    work = ladder.plan(ROWS, None, "cuda")
    over_sizes = {(kernel, case.n) for part, case, kernels in work if part == "sizes" for kernel in kernels}
    assert over_sizes >= {(kernel, size) for kernel in ROWS for size in (128, 256, 512, 1024, 2048, 4096, 8192)}
    own = {(case.m, case.n, case.k, case.arithmetic) for part, case, _ in work if part == "write-up"}
    assert own >= {(2560, 2560, 1024, "f32"), (10000, 10000, 10000, "s8"), (1024, 1024, 1024, "f16")}
    assert {case.k for part, case, kernels in work if part == "over k" and kernels == ["outer_product"]} >= {32, 8192}
    # Every type of wmma, in every shape.
    wmma = next(row for row in jaxgemm.kernels() if row.name == "wmma")
    ran = {(case.dtype, case.out_dtype, k) for _, case, kernels in work for k in kernels if k.startswith("wmma")}
    shapes = {"tile_m=16,tile_n=16,tile_k=16", "tile_m=32,tile_n=8,tile_k=16", "tile_m=8,tile_n=32,tile_k=16"}
    for a, _, d, _ in wmma.types:
        wanted = {"wmma"} if a in ("float32", "float64") else {f"wmma:{shape}" for shape in shapes}
        assert wanted <= {kernel for *types, kernel in ran if types == [a, d]}
    for _, _, kernels in work:
        for kernel in kernels:
            bench.parse_kernel(kernel)


def test_sizes_of_the_callers_own_leave_out_the_rest(ladder):
    work = ladder.plan(["warp_tiled", "outer_product"], [100], "cuda")
    assert [(part, case.n, kernels) for part, case, kernels in work] == [
        ("sizes", 100, ["warp_tiled", "outer_product"])
    ]


def test_a_wrong_product_is_an_error(ladder):
    case = ladder.product((64, 64, 64), "f32")
    row = bench.Row(case, "tiled", "tiled", "ok", bench.Path(error=0.5), {})
    assert ladder.record("sizes", row)["status"] == "error"
    right = bench.Row(case, "tiled", "tiled", "ok", bench.Path(error=1e-7), {})
    assert ladder.record("sizes", right)["status"] == "ok"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "64,x"], "expected sizes"),
        (["--sizes", "0"], "expected sizes"),
        (["--kernel", "nothing"], "unknown kernel"),
        (["--kernel", "auto"], "no kernel of ours"),
        (["--plot", "ladder.txt"], "must end in"),
        (["--docs", "--sizes", "64"], "whole ladder"),
    ],
)
def test_nonsense_is_refused(ladder, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        ladder.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_help(ladder, capsys):
    with pytest.raises(SystemExit) as exit_:
        ladder.main(["--help"])
    assert exit_.value.code == 0
    assert "--effective-ops" in capsys.readouterr().out


def test_the_page_says_what_the_results_say(shown):
    """``python benchmarks/ladder.py --docs --from ...`` puts it right."""
    document = json.loads((RESULTS / "ladder.json").read_text())
    others = (shown.beside(document, name) for name in ("ladder_counters.json", "ladder_textbook.json"))
    values = shown.figures(document, *others)
    assert set(values) >= {*ROWS, "rungs", "budget", "speeds", "own products", "counters", "textbook"}
    pages = {name: page.read_text() for name, page in shown.pages().items()}
    missing = [name for name in values if f"figures: {name} -->" not in pages[name if name in ROWS else ""]]
    assert not missing
    for page in pages.values():
        assert shown.marked(page, values) == page


def test_every_row_was_measured(shown):
    """All sizes, none of them failed, and each has its counters; or its page says that it was not."""
    document = json.loads((RESULTS / "ladder.json").read_text())
    assert {row["status"] for row in document["rows"]} == {"ok"}
    unmeasured = [name for name in ROWS if "\nNot measured yet." in shown.pages()[name].read_text()]
    for kernel in ROWS:
        sizes = {row["n"] for row in document["rows"] if row["kernel"] == kernel and row["part"] == "sizes"}
        assert sizes == (set() if kernel in unmeasured else {128, 256, 512, 1024, 2048, 4096, 8192}), kernel
    measured = [kernel for kernel in ROWS if kernel not in unmeasured]
    assert [row["kernel"] for row in shown.beside(document, "ladder_counters.json")["rows"]] == measured


@pytest.mark.parametrize("name", ROWS)
def test_budgets_are_those_of_the_compiled_code(compiled, monkeypatch, name):
    """What ladder_budget.py works out from a kernel's shape, beside the kernel for Hopper."""
    hopper = [f for f in compiled if f.arch == "sm_90a"]
    if not hopper:
        pytest.skip("this build is not for Hopper")
    rung = script("ladder_budget", monkeypatch).RUNGS[name]
    found = [f for f in hopper if f.belongs(name) and f.product(rung.types)]
    (function,) = (f for f in found if name != "wmma" or "ILi16ELi16ELi16E" in f.mangled)  # its first tile
    if rung.launched:
        assert function.shared_bytes == 0
        assert cubins.barriers_end(function) == rung.shared_bytes - 1024  # and what aligns the first stage
    else:
        assert function.shared_bytes == rung.shared_bytes
    registers = function.usage["REG"]
    assert rung.results + rung.operands + rung.in_flight <= registers
    assert rung.registers == -(-registers // 8) * 8


def test_each_rung_is_a_row_a_file_and_a_page(shown, monkeypatch):
    budget = script("ladder_budget", monkeypatch)
    assert list(budget.RUNGS) == ROWS
    assert {path.stem for path in budget.SOURCES.glob("*.cu")} == set(ROWS)
    assert {path.stem for path in shown.RUNG_PAGES.iterdir()} == set(ROWS)
    for name, rung in budget.RUNGS.items():
        page = shown.pages()[name].read_text()
        assert page.startswith(f"# `{name}`\n")
        assert "```text" in page, f"no diagram of {name}"
        if rung.shared_bytes:
            assert f"{rung.shared_bytes:,}" in page.partition("<!--")[0], name


def test_effective_operations_are_counted_for_xla_too(ladder, capsys):
    shown = ladder.ladder_report
    document = json.loads((RESULTS / "ladder.json").read_text())
    plain, effective = (shown.speeds(document, "f32", effective=e) for e in (False, True))
    n = 128
    times = (n * n + (2 * n - 1) * n * n + 2 * n * n) / (2 * n**3)
    for name in ("naive", "XLA", "cuBLAS", "roofline"):
        assert effective[name][n] == pytest.approx(times * plain[name][n])
    shown.show(document, effective=True)
    assert shown.number(effective["cuBLAS"][n]) in capsys.readouterr().out


def test_the_textbooks_forms(shown, monkeypatch, capsys):
    textbook = script("ladder_textbook", monkeypatch)
    assert set(textbook.KERNELS) <= set(ROWS)
    for name in textbook.KERNELS:
        assert f"SYMBOL(textbook_{name}, launch_{name}, binding())" in textbook.SOURCE
    if jax.default_backend() == "cpu":
        with pytest.raises(SystemExit):
            textbook.main([])
        assert "measures CUDA kernels" in capsys.readouterr().err
    row = {"n": 2048, "kernel": "tiled", "tflops": 7.164, "textbook_tflops": 7.1, "ratio": 1.009}
    document = {"device": "NVIDIA H200", "date": "2026-11-21", "how": "device time", "rows": [row]}
    text = shown.figures({"rows": []}, {"rows": []}, document)["textbook"]
    assert "ladder_textbook.json" in text
    assert "| `tiled` | 2048³ | 7.16 | 7.10 | 1.01 |" in text


def test_the_profilers_output_is_read(monkeypatch):
    counters = script("ladder_counters", monkeypatch)
    names = {"Kernel Name": ("", "void jaxgemm::cuda::tiled<...>(...)")}
    names |= dict.fromkeys(counters.METRICS.values(), ("%", "50"))
    names |= {counters.METRICS["us"]: ("ms", "2.5"), counters.METRICS["registers"]: ("register/thread", "32")}
    names |= {counters.METRICS["shared_bytes"]: ("Kbyte/block", "8.45"), counters.METRICS["sectors"]: ("%", "300")}
    names |= {counters.METRICS["launched_bytes"]: ("byte/block", "1,000")}
    names |= {counters.SHARED_READS: ("", "1,000"), counters.CONFLICTS: ("", "250")}
    names |= {counters._STALL.format(reason): ("", "1.5") for reason in counters.STALLS}
    lines = [names, *([unit for unit, _ in names.values()], [value for _, value in names.values()])]
    output = "==PROF== Connected\n" + "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    (row,) = counters.rows(output, ["tiled"])
    assert row["kernel"] == "tiled"
    assert row["issue"] == 0.5
    assert row["us"] == 2500
    assert row["registers"] == 32
    assert row["shared_bytes"] == 9450
    assert row["sectors"] is None
    assert row["conflicts"] == 0.25
    assert row["stalls"]["barrier"] == 1.5
    with pytest.raises(RuntimeError, match="expected one for each"):
        counters.rows(output, ["tiled", "naive"])
    with pytest.raises(RuntimeError, match="where naive was expected"):
        counters.rows(output, ["naive"])


# --- The rows -------------------------------------------------------------------------------------------------


def test_every_kernel_of_the_write_ups_is_there():
    names = "naive coalesced tiled coarse_1d coarse_2d coarse_2d_vec vec4_global vec4_shared vec4_shared_at"
    names += " fragment_pipeline shared_pipeline register_blocked warp_tiled outer_product wmma_tf32 wmma_f16 wmma"
    names += " mma_sync wgmma_tma"  # which lead from WMMA to the engines
    assert set(names.split()) <= set(ROWS)
    (wmma,) = (row for row in LADDER if row.name == "wmma")
    assert {types[:3] for types in wmma.types} == {
        ("float16", "float16", "float32"),
        ("float16", "float16", "float16"),
        ("bfloat16", "bfloat16", "float32"),
        ("uint8", "uint8", "int32"),
        ("int8", "int8", "int32"),
        ("float32", "float32", "float32"),
        ("float64", "float64", "float64"),
    }


def lower(row, a, b, d, **options):
    """Lower a product for the kernel's platform, on any machine."""
    shapes = jax.ShapeDtypeStruct((64, 32), a), jax.ShapeDtypeStruct((32, 48), b)
    product = jax.jit(lambda x, y: jaxgemm.gemm(x, y, out_dtype=d, kernel=row.name, **options))
    product.trace(*shapes).lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("name", [row.name for row in LADDER if row.built])
def test_types_that_a_row_lacks(name):
    (row,) = (row for row in LADDER if row.name == name)
    supported = ", ".join(f"{a} x {b} -> {d}" for a, b, d, _ in row.types)
    for dtype in {"float64", "float32", "bfloat16", "int8", "int16"} - {types[0] for types in row.types}:
        out = "int32" if dtype.startswith("int") else dtype
        text = f"kernel '{name}' got {dtype} x {dtype} -> {out}; it supports {supported}"
        with pytest.raises(jaxgemm.UnsupportedError, match=re.escape(text)):
            lower(row, dtype, dtype, out)


@pytest.mark.parametrize("dtype", TILES)
def test_tile_shapes(dtype):
    """Each shape of an operand's type is taken; any other combination is refused with those that are."""
    (row,) = (row for row in LADDER if row.name == "wmma")
    if not row.built:
        pytest.skip("this build has no CUDA kernels")
    types = next(types for types in row.types if types[0] == dtype)
    supported = ", ".join(map(str, TILES[dtype]))
    for tile in itertools.product((8, 16, 32), (8, 16, 32), (4, 8, 16)):
        if tile in TILES[dtype]:
            lower(row, *types[:3], tile=tile)
            continue
        text = f"kernel 'wmma' got tile {tile} for {dtype}; it supports {supported}"
        with pytest.raises(jaxgemm.UnsupportedError, match=re.escape(text)):
            lower(row, *types[:3], tile=tile)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("kernel", ["wmma"])
def test_every_tile_shape_in_every_layout(kernel, layout, rng):
    """Of every type pair, whole tiles and ragged ones."""
    (row,) = (row for row in LADDER if row.name == kernel)
    for types in row.types:
        beta = -5 if types[2] == "int32" else -2.25
        products = [
            Product.random(rng, shape, types, layout, **epilogue)
            for shape in ((64, 96, 48), (17, 33, 65), (127, 129, 131))
            for epilogue in ({}, {"alpha": 3, "beta": beta, "bias": True}, {"beta": beta})
        ]
        for m, n, k in TILES[types[0]]:
            check_all(products, kernel, tile_m=m, tile_n=n, tile_k=k)


#: Ragged in every extent that a layout lets be ragged where rows begin at multiples of 16 bytes.
ADDRESSABLE = {
    "NN": ((1, 8, 8), (127, 136, 200), (300, 264, 72), (65, 512, 1032)),
    "NT": ((1, 1, 8), (127, 129, 136), (300, 257, 72), (65, 511, 1032)),
    "TN": ((8, 8, 1), (128, 136, 65), (304, 264, 131), (64, 512, 1027)),
    "TT": ((8, 1, 8), (128, 129, 136), (304, 257, 72), (64, 511, 1032)),
}
EPILOGUES = ({}, {"alpha": 1.75, "beta": -2.25, "bias": True, "activation": "gelu"}, {"beta": 1.0})


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ADDRESSABLE)
@pytest.mark.parametrize("kernel", ["mma_sync", "wgmma_tma"])
def test_ragged_tiles_of_whole_vectors(kernel, layout, rng):
    """Of every type pair, with every kind of epilogue."""
    (row,) = (row for row in LADDER if row.name == kernel)
    for types in row.types:
        shapes = itertools.product(ADDRESSABLE[layout], EPILOGUES)
        products = [Product.random(rng, shape, types, layout, **epilogue) for shape, epilogue in shapes]
        products += [Product.random(rng, ADDRESSABLE[layout][1], types, layout, batches) for batches in cases.BATCHES]
        assert not any(refused_by_name(p, kernel) for p in products)
        check_all(products, kernel)


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [5, 24])
@pytest.mark.parametrize("kernel", ["mma_sync", "wgmma_tma"])
def test_what_lies_beside_rows_is_not_summed(kernel, depth, rng):
    """Heads of attention, read where they lie: behind a row's end is another head's row, of NaN."""
    queries, keys = (rng.standard_normal((2, n, 8, depth)).astype("float16") for n in (70, 50))
    queries[:, :, 3] = keys[:, :, 3] = float("nan")
    dims = (((3,), (3,)), ((0, 2), (0, 2)))
    scores = jaxgemm.dot_general(queries, keys, dims, preferred_element_type="float32", kernel=kernel)
    expected = np.einsum("bqhd,bkhd->bhqk", queries.astype(np.float64), keys.astype(np.float64))
    np.testing.assert_allclose(np.asarray(scores), expected, rtol=1e-4, atol=1e-4)


def test_rows_that_the_copy_engine_cannot_address(rng):
    """wgmma_tma refuses those, by name, and no others."""
    (row,) = (row for row in LADDER if row.name == "wgmma_tma")
    if not row.built:
        pytest.skip("this build is not for Hopper")
    refused = 0
    for layout, shape in itertools.product(cases.LAYOUTS, (*cases.SHAPES, *cases.EMPTY, *ADDRESSABLE["NN"])):
        for batches in (((), ()), ((2, 3), (2, 3))):
            p = Product.random(rng, shape, row.types[0], layout, batches)
            reason = ""
            try:
                jax.jit(lambda x, p=p: p.call(x, row.name)).trace(p.arrays).lower(lowering_platforms=("cuda",))
            except jaxgemm.UnsupportedError as error:
                reason = str(error)
            assert bool(reason) == refused_by_name(p, row.name), f"{p.label}: {reason}"
            if reason:
                assert "kernel 'wgmma_tma' copies rows that begin at multiples of 16 bytes; those of " in reason
                refused += 1
    assert refused
