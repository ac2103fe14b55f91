"""benchmarks/precision_docs.py: docs/precision.md is what it writes, with the figures of result files."""

from __future__ import annotations

import re

import pytest

from jaxgemm.measure import report

ABOUT = {"device": "Some GPU", "date": "2026-01-02T03:04:05+00:00", "commit": "0123456789", "m": 8, "n": 16}


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("precision_docs")


def test_the_page(script):
    if script.PAGE.read_text() != script.page():
        pytest.fail("docs/precision.md is not what is written now: run python benchmarks/precision_docs.py")


def test_every_precision_has_a_line(script):
    _, _, default, *lines = script.precisions().splitlines()
    assert default.startswith("| `default` |")
    assert [re.match(r"\| `(\w+)`", line)[1] for line in lines] == list(script.PRECISIONS) == list(script.KEEPS)
    for name, line in zip(script.PRECISIONS, lines, strict=True):
        assert f"{script.jaxgemm.error_bound(name, 4096):.1e}" in line


def test_without_results_there_are_words_alone(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    page = script.page()
    assert " on Some GPU" not in page
    assert not re.search(r"\{|\}", page)
    report.write(tmp_path / "nvidia-some/errors.json", {**ABOUT, "rows": []})
    assert script.page().startswith(page)
    assert "## Errors on Some GPU\n" in script.page()
    report.write(tmp_path / "nvidia-some/precisions.json", {**ABOUT, "rows": []})
    assert "## Speed on Some GPU\n" in script.page()
    report.write(tmp_path / "nvidia-some/fits.json", {**ABOUT, "how": "of a watch", "rows": []})
    assert "## Whole programs on Some GPU\n" in script.page()


def test_errors(script):
    def row(side, data, k, error, precision="BF16_BF16_F32_X6"):
        of = {"message": "no"} if error is None else {"error": error, "worst": 2 * error}
        return {"precision": precision, "side": side, "kernel": "", "data": data, "k": k, **of}

    rows = [
        row("XLA", "normal", 64, 3e-7),
        row("XLA", "uniform", 64, 1e-7),
        row("jaxgemm", "uniform", 64, 2e-8),
        row("jaxgemm", "uniform", 128, None),
        row("jaxgemm", "uniform", 64, None, "F32_F32_F32"),
    ]
    lines = [line for line in script.of_errors({**ABOUT, "rows": rows}).splitlines() if line.startswith("|")]
    assert lines == [
        "| data | precision | k = 64 | k = 128 |",
        "| --- | --- | --- | --- |",
        "| uniform | F32_F32_F32 | - / - | - / - |",
        "| uniform | BF16_BF16_F32_X6 | 2.0e-8 / 1.0e-7 | - / - |",
        "| normal | BF16_BF16_F32_X6 | - / 3.0e-7 | - / - |",
        "| precision | k = 64 | k = 128 |",
        "| --- | --- | --- |",
        "| F32_F32_F32 | - / - | - / - |",
        "| BF16_BF16_F32_X6 | 4.0e-8 / 6.0e-7 | - / - |",
    ]


def test_sizes(script):
    rows = [
        {"m": m, "n": 9, "k": k, "ratios": {"uniform": x, "normal": 0.1, "softmax": None}}
        for m, k, x in ((5, 64, 1.234), (5, 128, 0.05), (7, 128, None))
    ]
    lines = script.of_sizes({**ABOUT, "rows": rows}).splitlines()
    assert [line for line in lines if line.startswith("|")] == [
        "| m × n | k = 64 | k = 128 |",
        "| --- | --- | --- |",
        "| 5×9 | 1.23 | 0.10 |",
        "| 7×9 | - | 0.10 |",
    ]


def test_speed(script, tmp_path):
    def row(precision, us, default, cublas, data=""):
        xla = {name: {"us": us} if us else {"message": "no"} for name, us in (("default", default), ("cublas", cublas))}
        return {"problem": f"8x9x10 NN f32 {precision}{data}", "kernels": {"auto": {"us": us}}, "xla": xla}

    file = tmp_path / "precisions.json"
    x3, x6, x9 = (f"BF16_BF16_F32_X{i}" for i in (3, 6, 9))
    rows = [row(x6, 100.0, 120.0, 110.0), row("F32_F32_F32", 200.0, 250.0, 240.0), row(x3, 50.0, None, None)]
    rows.append(row(x9, None, 90.0, None))
    tiny = " data=one-tiny-value"
    rows += [row("F32_F32_F32", 200.0, 300.0, None, tiny), row(x6, 101.0, 120.0, None, tiny)]
    rows.append(row("TF32_TF32_F32_X3", 110.0, 190.0, 180.0, tiny))
    rows.append({**row("", 90.0, 210.0, 200.0), "problem": "16x9x10 NN f32"})
    report.write(file, {**ABOUT, "rows": rows})
    lines = script.of_speed(report.load(file)).splitlines()
    assert [line for line in lines if line.startswith("| `")] == [
        f"| `{x6}` | 8×9×10 | in float32 | 100 | 1.10 | 2.40 | 1.00 |",
        "| `F32_F32_F32` | 8×9×10 | in float32 | 200 | 1.20 | 1.20 | 0.50 |",
        f"| `{x3}` | 8×9×10 | in float32 | 50 | - | 4.80 | 2.00 |",
        f"| `{x9}` | 8×9×10 | in float32 | - | - | - | - |",
        # Products are held to others of the same data.
        "| `F32_F32_F32` | 8×9×10 | one tiny value | 200 | 1.50 | 1.50 | 0.51 |",
        f"| `{x6}` | 8×9×10 | one tiny value | 101 | 1.19 | 2.97 | 1.00 |",
        "| `TF32_TF32_F32_X3` | 8×9×10 | one tiny value | 110 | 1.64 | 2.73 | 0.92 |",
        "| `highest` | 16×9×10 | in float32 | 90 | 2.22 | - | - |",
    ]


def test_whole_programs(script):
    def row(fit, precision, side, us, error, residual, path="", **more):
        figures = {"error": error, "residual": residual, "us": us} if us else {"message": "no"}
        return {"fit": fit, "size": 64, "precision": precision, "side": side, "path": path, **figures, **more}

    x3 = "TF32_TF32_F32_X3"
    exact = row("network", "float64", "XLA", 9e3, 0, 1e-12, "default")
    del exact["error"]
    rows = [
        exact,
        row("network", "default", "XLA", 100.0, 2e-3, 4e-3, "default"),
        row("network", "highest", "XLA", 3e3, 3e-7, 2e-7, "default"),
        row("network", "highest", "XLA", 2e3, 4e-7, 5e-7, "cublas"),
        row("network", x3, "XLA", None, None, None, "default"),
        row("network", x3, "XLA", 1500.0, 6e-7, 7e-7, "cublas"),
        row("network", "highest", "jaxgemm", 1234.0, 1e-7, 1e-7, products={"sm90 bf16_x6": 3, "XLA": 1}),
        row("network", x3, "jaxgemm", None, None, None),
        row("rotation", x3, "XLA", None, None, None, "default"),
    ]
    section = script.of_fits({**ABOUT, "how": "of a watch", "rows": rows})
    assert "measured 2026-01-02, 0123456 by" in section
    assert "Times are of a watch." in section
    assert [line.partition(":")[0] for line in section.splitlines() if line.startswith("- ")] == [
        "- `network`, of size 64",
        "- `rotation`, of size 64",
    ]
    assert [line for line in section.splitlines() if line.startswith("|")] == [
        "| program | precision | error | residual | ms | products |",
        "| --- | --- | --- | --- | --- | --- |",
        "| `network` | float64 | - / - | - / 1.0e-12 | - / 9.0 | - |",
        "| `network` | default | - / 2.0e-3 | - / 4.0e-3 | - / 0.1 | - |",
        "| `network` | highest | 1.0e-7 / 4.0e-7 | 1.0e-7 / 5.0e-7 | 1.2 / 2.0 | 3 sm90 bf16_x6, 1 XLA |",
        "| `network` | TF32_TF32_F32_X3 | - / 6.0e-7 | - / 7.0e-7 | - / 1.5 | - |",
        "| `rotation` | TF32_TF32_F32_X3 | - / - | - / - | - / - | - |",
    ]
