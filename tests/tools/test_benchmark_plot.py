"""The chart of result files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/plot.py"
ROWS = [
    {"problem": f"{n}x{n}x{n} NN bf16", "kernel": kernel, "ratio": ratio, "roofline_fraction": 0.5}
    for n, ratio in ((64, 0.9), (128, 1.3), (256, None))
    for kernel in ("auto", "sm90")
]


def run(*arguments):
    return subprocess.run([sys.executable, "-P", str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture
def result(tmp_path):
    file = tmp_path / "bf16.json"
    file.write_text(json.dumps({"device": "a device", "versions": {"jax": "0"}, "rows": ROWS}))
    return file


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_chart_of_a_result(result, tmp_path, ending):
    chart = tmp_path / f"chart.{ending}"
    done = run(result, "--output", chart)
    assert done.returncode == 0, done.stderr
    assert "2 products" in done.stdout
    assert chart.stat().st_size > 5000


def test_what_cannot_be_drawn(result, tmp_path):
    assert "must end in" in run(result, "--output", tmp_path / "chart.txt").stderr
    assert "no rows of kernel simt" in run(result, "--kernel", "simt", "--output", tmp_path / "a.svg").stderr
    result.write_text("[]")
    assert "not a result" in run(result, "--output", tmp_path / "a.svg").stderr
    assert "not a result" in run(tmp_path / "missing.json", "--output", tmp_path / "a.svg").stderr
