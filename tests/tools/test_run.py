"""benchmarks/run.py: suites are written as they go, and hold what they should."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import jax
import pytest

from jaxgemm.measure import bench, case, provenance, report


@pytest.fixture
def runner_script(benchmark_script):
    return benchmark_script("run")


def test_suites_are_written_as_they_go(capsys, monkeypatch, tmp_path, runner_script):
    short = runner_script.chain.Chain(3, 16, (16, 24), "float32", ())
    monkeypatch.setitem(runner_script.CHAINS, "chain", short)
    monkeypatch.setitem(runner_script.LAYERS, "gated", (runner_script.gated_layers.Layer(5, 24, 16, "float32"),))
    made = runner_script.programs
    scores = replace(made.einsum("scores", "bthk,bshk->bhts", (2, 5, 3, 4), (2, 6, 3, 4)), dtype="float32")
    biased = replace(made.dense("bias", made._biased, {"bias": (6,)}, 5, 6, 7), dtype="float32")
    layer = replace(made.decoder(2, 3, 8, 2, 12, 10), dtype="float32")
    monkeypatch.setitem(runner_script.PROGRAMS, "programs", (scores, biased, layer))
    groups = [
        runner_script.grouped_products.Layer(form, 11, 8, 16, 3, dtype="float32")
        for form in runner_script.grouped_products.NUMBERS
    ]
    groups.append(replace(groups[0], m=2, equal=True))
    monkeypatch.setitem(runner_script.grouped_products.LAYERS, "grouped", groups)
    narrow = [case.Case(5, 24, 16, dtype, out=out) for dtype, out in (("int8", None), ("float8_e4m3fn", "bfloat16"))]
    monkeypatch.setitem(runner_script.beside_torch.PRODUCTS, "torch", narrow)
    suites = "smoke", "chain", "gated", "programs", "grouped", "torch"
    monkeypatch.setattr(sys, "argv", ["run.py", *suites, "--repeats", "3", "--results", str(tmp_path)])
    assert runner_script.main() == 0
    folder = tmp_path / runner_script.slug(report.device_name(jax.devices()[0]))
    smoke = report.load(folder / "smoke.json")
    assert smoke["suite"] == "smoke"
    assert all(smoke[name] is not None for name in provenance.KEYS if name != "driver")
    assert {row["status"] for row in smoke["rows"]} == {"ok"}
    assert all(row["ratio"] > 0 and row["error"] < 1e-6 for row in smoke["rows"])
    assert len({row["problem"] for row in smoke["rows"]}) == len(runner_script.SUITES["smoke"].cases)
    chain = json.loads((folder / "chains.json").read_text())
    assert {row["source"] for row in chain["rows"]} == {"chain"}
    assert set(provenance.KEYS) <= set(chain["sources"]["chain"])
    assert {row["path"] for row in chain["rows"]} >= {"jaxgemm auto", "XLA default"}
    assert all(row["wall_us"] > 0 and row["kept_wall_us"] > 0 and len(row["compile"]) == 3 for row in chain["rows"])
    gated = json.loads((folder / "gated.json").read_text())["rows"]
    assert [row["path"] for row in gated] == ["jaxgemm auto", "jaxgemm host", "XLA default"]
    assert all(row["us"] > 0 and row["ratio"] > 0 and row["error"] < 1e-5 for row in gated)
    written = json.loads((folder / "programs.json").read_text())["rows"]
    assert [row["problem"] for row in written[::3]] == [str(scores), str(biased), str(layer)]
    assert all(row["us"] > 0 and row["ratio"] > 0 and row["error"] < 1e-6 for row in written)
    grouped = json.loads((folder / "grouped.json").read_text())["rows"]
    assert [row["path"] for row in grouped] == ["jaxgemm auto", "XLA default"] * len(groups)
    assert [row["problem"] for row in grouped[::2]] == [str(layer) for layer in groups]
    assert all(row["us"] > 0 and row["tflops"] > 0 and row["ratio"] > 0 and row["error"] < 1e-6 for row in grouped)
    torch = json.loads((folder / "torch.json").read_text())["rows"]
    torch = [row for row in torch if row["path"] == "jaxgemm auto"]
    assert [row["problem"] for row in torch] == [str(case) for case in narrow]
    assert all(row["us"] > 0 for row in torch)
    assert torch[0]["error"] == 0
    assert 0 < torch[1]["error"] < 0.01
    out, _ = capsys.readouterr()
    assert "trace + compile" in out


@pytest.mark.parametrize("suite", ["smoke", "programs"])
def test_a_run_that_is_interrupted_leaves_what_it_had(monkeypatch, tmp_path, runner_script, suite):
    made = runner_script.programs
    layer = replace(made.decoder(2, 3, 8, 2, 12, 10), dtype="float32")
    monkeypatch.setitem(runner_script.PROGRAMS, "programs", (layer, replace(layer, dtype="bfloat16")))
    whose = made if suite == "programs" else bench.Bench
    measure, asked = whose.measure, []

    def once(*arguments):
        asked.append(arguments)
        if len(asked) > 1:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(whose, "measure", once)
    monkeypatch.setattr(sys, "argv", ["run.py", suite, "--repeats", "3", "--results", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        runner_script.main()
    (file,) = tmp_path.glob(f"*/{suite}.json")
    rows = report.load(file)["rows"]
    assert rows
    assert {row["problem"] for row in rows} == {str(asked[0][1])}


def test_the_suites_hold_what_they_should(runner_script):
    suites = runner_script.SUITES
    assert len(suites["bf16"].cases) == 34
    assert {c.dtype for c in suites["bf16"].cases} == {"bfloat16"}
    sgemm = suites["sgemm"].cases
    assert {c.precision for c in sgemm} == {"highest"}
    assert {c.layout for c in sgemm if c.m == 4096} == set(case.LAYOUTS)
    precisions = suites["precisions"].cases
    for name in case.ALGORITHMS:  # each beside SGEMM of the same size and data
        of = {(c.m, c.n, c.k, c.data) for c in precisions if c.precision == name}
        assert {(n, n, n, None) for n in (4096, 8192)} <= of
        assert of <= {(c.m, c.n, c.k, c.data) for c in precisions if c.precision == "F32_F32_F32"}
    scaled, exact = (
        {(c.m, c.data) for c in precisions if c.precision == name and c.data}
        for name in ("TF32_TF32_F32_X3", "BF16_BF16_F32_X6")
    )
    assert scaled == exact == {(n, data) for n in (4096, 8192) for data in ("normal", "one tiny value")}
    squares = {c.m for c in suites["fp32"].cases if c.precision == "highest" and c.m == c.n == c.k}
    assert squares >= {1024, 3000, 4096, 8192, 16384}
    for suite in suites.values():
        assert len(set(suite.cases)) == len(suite.cases)
        for kernel in suite.kernels:
            bench.parse_kernel(kernel)  # raises where the table has no such kernel or option
