"""benchmarks/summary.py: what result files of run.py say, a line for each suite and kernel."""

from __future__ import annotations

import json
import sys

import pytest


def row(problem, kernel, us, default, cublas):
    xla = {"default": {"device_us": default}, "cublas": {"device_us": cublas}}
    faster = min(time for time in (default, cublas) if time is not None)
    return {"problem": problem, "kernel": kernel, "us": us, "ratio": faster / us, "xla": xla}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "some.json"
    rows = [
        row("a", "auto", 1.0, 4.0, 2.0),
        row("b", "auto", 1.0, 1.0, 0.5),
        row("a", "sm90", 2.0, None, 1.0),
        {"problem": "c", "kernel": "auto", "us": None, "ratio": None, "xla": {}},  # did not run
    ]
    path.write_text(json.dumps({"device": "Some GPU", "date": "2026-01-02T03:04:05+00:00", "rows": rows}))
    return path


def test_lines(benchmark_script, file):
    auto, sm90 = benchmark_script("summary").lines([file])
    assert auto == ("Some GPU", "some", "auto", "2", "1.00", "2.00", "0.50", "b", "2026-01-02")
    # XLA's default path did not run, so there is no mean over it.
    assert sm90 == ("Some GPU", "some", "sm90", "1", "0.50", "-", "0.50", "a", "2026-01-02")


def test_files_without_ratios_have_no_line(benchmark_script, tmp_path):
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({"device": "Some GPU", "date": "2026-01-02", "rows": [{"problem": "a", "us": 1.0}]}))
    assert benchmark_script("summary").lines([path]) == []


@pytest.mark.parametrize("arguments", [[], ["--markdown"]])
def test_command_line(benchmark_script, file, monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["summary.py", str(file), *arguments])
    assert benchmark_script("summary").main() == 0
    printed = capsys.readouterr().out
    assert "Some GPU" in printed
    assert "2026-01-02" in printed
    assert ("| --- |" in printed) == bool(arguments)
