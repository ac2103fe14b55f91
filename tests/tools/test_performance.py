"""benchmarks/performance.py: docs/performance.md is what result files say, and its tables and charts."""

from __future__ import annotations

import json
import re

import pytest

from jaxgemm.measure import report


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("performance")


def row(kernel, us, default, cublas, problem="8x8x8 NN bf16"):
    xla = {name: {"us": us} for name, us in (("default", default), ("cublas", cublas)) if us}
    return {"problem": problem, "kernels": {kernel: {"us": us}}, "xla": {"default": {}, **xla}}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "some.json"
    rows = [
        row("auto", 1.0, 4.0, 2.0),
        row("auto", 1.0, 1.0, 0.5, "9x9x9 NN bf16"),
        row("sm90", 2.0, None, 1.0),
        row("auto", None, 1.0, 1.0, "7x7x7 NN bf16"),  # did not run
    ]
    about = {
        "device": "Some GPU",
        "date": "2026-01-02T03:04:05+00:00",
        "commit": "0123456789",
        "versions": {"jax": "0"},
    }
    report.write(path, {**about, "rows": rows})
    return path


def test_the_page_says_what_the_files_do(script):
    if script.PAGE.read_text() != script.page():
        pytest.fail("docs/performance.md is not what benchmarks/results say: run python benchmarks/performance.py")


def test_the_index_of_experiments_has_every_page(script):
    folder = script.DOCS / "experiments"
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text())
    assert sorted([*linked, "README.md"]) == sorted(page.name for page in folder.iterdir())


def test_lines(script, file):
    content = report.load(file)
    auto, sm90 = script.lines(content["rows"], "some", script.when(content))
    assert auto == ("some", "auto", "2", "1.00", "2.00", "0.50", "9x9x9 NN bf16", "2026-01-02, 0123456")
    # XLA's default path did not run, so there is no mean over it.
    assert sm90 == ("some", "sm90", "1", "0.50", "-", "0.50", "8x8x8 NN bf16", "2026-01-02, 0123456")
    assert script.when({"date": "2026-01-02", "commit": "unknown"}) == "2026-01-02"


def test_groups_are_beside_xlas_torchs_and_reading(script, tmp_path, monkeypatch):
    times = {"jaxgemm auto": 10.0, "XLA default": 40.0, "XLA cublas": 30.0, "torch": 15.0, "reading weights": 9.0}
    rows = [{"problem": "forward 1x2x3", "path": path, "us": us, "tflops": 70.0} for path, us in times.items()]
    rows += [{"problem": "d rhs 1x2x3", "path": "jaxgemm auto", "message": "failed"}]
    table = script.grouped({"rows": rows}).splitlines()
    assert table[2:] == [
        "| forward 1x2x3 | 10.00 | 70 | 30.00 | - | 15.00 | 9.000 | 3.00 | - | 1.50 | 0.90 |",
        "| d rhs 1x2x3 | - | - | - | - | - | - | - | - | - | - |",
    ]
    assert len({line.count("|") for line in table}) == 1
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    assert script._grouped_tables() == []
    report.write(tmp_path / "nvidia-some/grouped.json", {"rows": rows})
    ((_, file, _, made),) = script._grouped_tables()
    assert made(report.load(file)) == script.grouped({"rows": rows})


def test_several_devices_have_a_table_for_each_layer(script):
    common = {"case": "c", "form": "f", "is_part": False, "message": "", "ratio": 1.0}
    rows = [
        {**common, "source": "2 devices", "us": 1000.0, "xla": {}},
        {**common, "source": "2 devices", "us": 500.0, "xla": {"x": 1}},
        {**common, "source": "4 devices", "us": 2000.0, "xla": {}},
        {**common, "source": "4 devices", "us": 1.0, "xla": {}, "form": "a part", "is_part": True},
    ]
    head = "| case | form | µs | jnp.dot's least / this |\n| --- | --- | --- | --- |"
    first = f"### 2 devices\n\n{head}\n| c | f | 1000 | 1.00 |"
    assert script.parallel({"rows": rows[:1]}) == first
    assert script.parallel({"rows": rows}).split("\n\n", 2) == [
        *f"{first}\n| c | f, XLA options A | 500.0 | 1.00 |".split("\n\n"),
        f"### 4 devices\n\n{head}\n| c | f | 2000 | 1.00 |\n\nXLA options A: `x=1`.",
    ]


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_command_shows_and_draws_files(script, file, tmp_path, capsys, ending):
    chart = tmp_path / f"chart.{ending}"
    assert script.main([str(file), "--plot", str(chart)]) == 0
    assert "9x9x9 NN bf16" in capsys.readouterr().out
    assert chart.stat().st_size > 3000
    if ending == "svg":
        assert "9x9x9 NN bf16" in chart.read_text()


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_charts_of_the_page_have_every_product(script, name):
    text = (script.DOCS / f"{name}.svg").read_text()
    problems = [row["problem"] for row in report.load(script.PLOTS[name])["rows"] if row["kernel"] == "auto"]
    assert problems
    assert all(f">{problem}<" in text for problem in problems)
    assert len(text) < 100_000


def test_what_cannot_be_shown(script, file, tmp_path, capsys):
    other = tmp_path / "other.json"
    other.write_text(json.dumps([]))
    for arguments, message in (
        ((file, "--plot", "chart.txt"), "ends in one of"),
        (("--plot", "chart.svg"), "needs a FILE"),
        ((file, "--kernel", "simt", "--plot", tmp_path / "a.svg"), "no rows of kernel simt"),
        ((other,), "not a suite's result"),
        ((tmp_path / "missing.json",), "not a suite's result"),
    ):
        with pytest.raises(SystemExit, match="2"):
            script.main([*map(str, arguments)])
        assert message in capsys.readouterr().err
