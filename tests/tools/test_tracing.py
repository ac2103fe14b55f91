"""benchmarks/tracing.py: every form of a product is traced, and the committed figures keep the limit."""

import json
from pathlib import Path

import pytest

from jaxgemm.measure import report

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("tracing")


def test_every_form_is_traced(script, monkeypatch, tmp_path, capsys):
    """With few products, so that it says nothing about time."""
    monkeypatch.setattr(script, "LENGTH", 3)
    monkeypatch.setattr(script, "LIMIT", 1e6)
    file = tmp_path / "new" / "tracing.json"
    monkeypatch.setattr("sys.argv", ["tracing.py", "--repeats", "1", "--result", str(file)])
    assert script.main() == 0
    document = json.loads(file.read_text())
    assert [row["form"] for row in document["rows"]] == list(script.FORMS)
    assert all(
        row[f"{tracer}_{what}"] > 0 for row in document["rows"] for tracer in script.TRACERS for what in ("ms", "ratio")
    )
    assert "jaxgemm.gemm, bias and gelu" in capsys.readouterr().out
    monkeypatch.setattr(script, "LIMIT", 0)
    assert script.main() == 1


def test_the_committed_figures_keep_the_limit(script):
    document = report.load(BENCHMARKS / "results/cpu/tracing.json")
    assert (document["length"], script.LIMIT) == (500, 1.3)
    assert {row["form"] for row in document["rows"]} == set(script.FORMS)
    for row in document["rows"]:
        for tracer in script.TRACERS:
            assert row[f"{tracer}_ratio"] == pytest.approx(
                row[f"{tracer}_ms"] / next(r for r in document["rows"] if r["form"] == row["against"])[f"{tracer}_ms"]
            )
            assert row[f"{tracer}_ratio"] <= script.LIMIT, row["form"]
