"""benchmarks/ladder.py: what it measures, what it shows, and that docs/ladder.md says what the results say."""

import importlib
import json
from pathlib import Path

import jax
import pytest

import jaxgemm
from jaxgemm import bench

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/nvidia-h200"
ROWS = [row.name for row in jaxgemm.kernels() if row.family == "ladder"]


@pytest.fixture
def ladder(monkeypatch):
    return script("ladder", monkeypatch)


@pytest.fixture
def shown(monkeypatch):
    return script("ladder_report", monkeypatch)


def script(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
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
    values = shown.figures(document, shown.counters_of(document))
    page = shown.PAGE.read_text()
    missing = [name for name in [*ROWS, "speeds", "own products", "counters"] if f"figures: {name} -->" not in page]
    assert not missing
    assert shown.marked(page, values) == page


def test_every_row_was_measured(shown):
    """All sizes, none of them failed, and each has its counters."""
    document = json.loads((RESULTS / "ladder.json").read_text())
    assert {row["status"] for row in document["rows"]} == {"ok"}
    for kernel in ROWS:
        sizes = {row["n"] for row in document["rows"] if row["kernel"] == kernel and row["part"] == "sizes"}
        assert sizes == {128, 256, 512, 1024, 2048, 4096, 8192}, kernel
    assert [row["kernel"] for row in shown.counters_of(document)["rows"]] == ROWS


def test_the_profilers_output_is_read(monkeypatch):
    counters = script("ladder_counters", monkeypatch)
    names = {"Kernel Name": ("", "void jaxgemm::cuda::tiled<...>(...)")}
    names |= dict.fromkeys(counters.METRICS.values(), ("%", "50"))
    names |= {counters.METRICS["us"]: ("ms", "2.5"), counters.METRICS["registers"]: ("register/thread", "32")}
    names |= {counters.METRICS["shared_bytes"]: ("Kbyte/block", "8.45"), counters.METRICS["sectors"]: ("%", "300")}
    names |= {counters.SHARED_READS: ("", "1,000"), counters.CONFLICTS: ("", "250")}
    names |= {counters._STALL.format(reason): ("", "1.5") for reason in counters.STALLS}
    lines = [names, *([unit for unit, _ in names.values()], [value for _, value in names.values()])]
    output = "==PROF== Connected\n" + "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    (row,) = counters.rows(output, ["tiled"])
    assert row["kernel"] == "tiled"
    assert row["issue"] == 0.5
    assert row["us"] == 2500
    assert row["registers"] == 32
    assert row["shared_bytes"] == 8450
    assert row["sectors"] is None
    assert row["conflicts"] == 0.25
    assert row["stalls"]["barrier"] == 1.5
    with pytest.raises(RuntimeError, match="expected one for each"):
        counters.rows(output, ["tiled", "naive"])
    with pytest.raises(RuntimeError, match="where naive was expected"):
        counters.rows(output, ["naive"])
