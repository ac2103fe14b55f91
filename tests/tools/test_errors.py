"""benchmarks/errors.py: its data are what their names say, and its figures those of what ran."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jaxgemm.measure import provenance


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("errors")


def test_its_results(script, tmp_path, capsys):
    assert script.main(["--k", "64,17,64", "--m", "5", "--n", "6", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*/errors.json")
    content = json.loads(file.read_text())
    assert set(provenance.KEYS) <= set(content)
    assert (content["m"], content["n"], content["seed"]) == (5, 6, 0)
    found = {(x["precision"], x["side"], x["data"], x["k"]): x for x in content["rows"]}
    expected = {
        (p, s, d, k) for p in script.PRECISIONS for s in ("XLA", "jaxgemm") for d in script.KINDS for k in (17, 64)
    }
    assert len(content["rows"]) == len(found)
    assert set(found) == expected
    printed = capsys.readouterr().out
    for (precision, side, data, _), row in found.items():
        ran = side == "XLA" or precision in ("highest", "F32_F32_F32")
        if "message" in row:
            assert not ran or side == "XLA"
            assert row["message"] in printed
            continue
        assert ran
        assert row["kernel"] == ("host" if side == "jaxgemm" else "")
        assert 0 < row["worst"] < 1e-6
        assert 0 < row["error"] < (1e-3 if data == "cancelling" else 1e-6)
    assert all("error" in found["highest", side, data, 64] for side in ("XLA", "jaxgemm") for data in script.KINDS)
    assert "did not both run" in printed


def test_sizes(script, tmp_path, monkeypatch, capsys):
    """Of each size and k the ratios of errors, where both sides ran; the host stands for planes here."""
    planes = script._EXACT
    monkeypatch.setattr(script, "forms", lambda _: [script.Form(script.SGEMM, "XLA"), script.Form(planes, "jaxgemm")])
    compiled = script.compiled

    def by_host(form, *extents):
        return compiled(form if form.side == "XLA" else form._replace(precision="F32_F32_F32", kernel="host"), *extents)

    monkeypatch.setattr(script, "compiled", by_host)
    assert script.main(["--sizes", "5x6,7x3", "--k", "17,64", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*/exact.json")
    content = json.loads(file.read_text())
    assert set(provenance.KEYS) <= set(content)
    assert [(x["m"], x["n"], x["k"]) for x in content["rows"]] == [(5, 6, 17), (5, 6, 64), (7, 3, 17), (7, 3, 64)]
    assert all(set(x["ratios"]) == set(script.KINDS) for x in content["rows"])
    assert all(0 < ratio < 100 for x in content["rows"] for ratio in x["ratios"].values())
    assert "5x6" in capsys.readouterr().out


def test_wrong_arguments(script, capsys):
    with pytest.raises(SystemExit, match="2"):
        script.main(["--sizes", "5x6x7"])
    assert "expected sizes like 512x1024" in capsys.readouterr().err
    for arguments in (["--k", "64,x"], ["--m", "1"], ["--k", ""]):
        with pytest.raises(SystemExit, match="2"):
            script.main(arguments)
        assert "expected an integer of at least 2" in capsys.readouterr().err


@pytest.mark.parametrize("k", [2, 300, 301])
def test_data(script, k):
    drawn = {kind: script.draw(kind, 40, 50, k, 3) for kind in script.KINDS}
    for kind, data in drawn.items():
        a, b = data.operands
        assert (a.shape, b.shape, a.dtype, b.dtype) == ((40, k), (k, 50), np.float32, np.float32)
        np.testing.assert_allclose(data.exact, a.astype(np.float64) @ b, atol=1e-12 * data.magnitude.max())
        assert (abs(data.exact) <= data.magnitude * (1 + 1e-12)).all()
        np.testing.assert_array_equal(script.draw(kind, 40, 50, k, 3).operands[0], a)
        assert (script.draw(kind, 40, 50, k, 4).operands[0] != a).any()
    assert (drawn["uniform"].operands[0] >= 0).all()
    np.testing.assert_allclose(drawn["softmax"].operands[0].sum(1), 1, rtol=1e-5)
    if k == 300:
        exponents = np.log2(abs(drawn["wide exponents"].operands[0]))
        assert exponents.min() < -20
        assert exponents.max() > 20
        of = drawn["cancelling"]
        assert np.linalg.norm(of.exact) < 1e-3 * np.linalg.norm(of.magnitude)


def row(precision, side, data, k, error):
    return {"precision": precision, "side": side, "data": data, "k": k, "error": error}


def test_from_which_k_planes_are_exact(script, capsys):
    errors = {64: 2.0, 256: 0.5, 512: 1.5, 1024: 1.0, 4096: 0.1}
    rows = [row("BF16_BF16_F32_X6", "jaxgemm", kind, k, 1.0) for kind in script.KINDS for k in errors]
    sgemm = {(kind, k): 1.0 / errors[k] for kind in script.KINDS for k in errors}

    def all_rows():
        return [*rows, *(row("F32_F32_F32", "XLA", kind, k, error) for (kind, k), error in sgemm.items())]

    assert script.ratios(all_rows())["normal"] == errors
    assert script.exact_from(all_rows()) == 1024
    sgemm["softmax", 1024] = 0.9
    assert script.exact_from(all_rows()) == 4096
    del sgemm["softmax", 4096]  # it did not run
    assert script.exact_from(all_rows()) is None
    script.show([{**x, "kernel": "", "worst": 1.0} for x in all_rows()])
    assert "at no k" in capsys.readouterr().out


def test_errors_of_fp8(benchmark_script, tmp_path, capsys):
    script = benchmark_script("errors_fp8")
    assert script.main(["--k", "40,8", "--m", "5", "--n", "6", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*/errors_fp8.json")
    content = json.loads(file.read_text())
    assert set(provenance.KEYS) <= set(content)
    heads = ("types", "precision", "side", "data", "k")
    found = {tuple(x[name] for name in heads): x for x in content["rows"]}
    assert len(found) == len(content["rows"]) == 2 * 2 * 2 * len(script.KINDS) * 2
    assert all(0 <= x["error"] < 1e-6 and 0 <= x["worst"] < 1e-6 for x in found.values())  # a CPU's sums are float32
    assert "Errors of products of fp8" in capsys.readouterr().out
    page = benchmark_script("precision_docs").of_fp8(content)
    assert page.count("| float8_e4m3fn | uniform | highest |") == 2
