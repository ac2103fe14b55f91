"""The command line, what it measures, and what it says when it is asked for nonsense."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxgemm
from jaxgemm.__main__ import main
from jaxgemm.kernels import TypeRule, find_kernel
from jaxgemm.measure import bench, case, plot, provenance, report
from jaxgemm.measure.case import Case

ON_CPU = jax.default_backend() == "cpu"
OURS = "host" if ON_CPU else "tiled"
ELSEWHERE = "tiled" if ON_CPU else "host"


def run(capsys, *arguments):
    """Status, stdout and stderr of the command line, in this process."""
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


# --- bench ---


def test_bench_measures_ours_beside_xla(capsys, tmp_path):
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    status, out, err = run(
        capsys,
        *("bench", "--shapes", "33x20x27,5x6x7@3", "--dtype", "f32", "--layout", "NN,TT", "--quick"),
        *("--kernel", "auto", "--kernel", OURS, "--json", str(file), "--plot", str(picture)),
    )
    assert status == 0
    assert err == ""  # the progress bar stays away from what is no terminal
    assert report.device_name(jax.devices()[0]) in out
    assert ("wall times" in out) == ON_CPU
    assert "float32 at precision HIGHEST" in out
    for problem in ("33x20x27 NN f32", "33x20x27 TT f32", "5x6x7@3 NN f32", "5x6x7@3 TT f32"):
        assert out.count(problem) == 2
    assert picture.read_bytes().startswith(b"\x89PNG")

    found = json.loads(file.read_text())
    assert found["device"] == report.device_name(jax.devices()[0])
    assert found["versions"]["jax"] == jax.__version__
    assert found["versions"]["jaxgemm"] == jaxgemm.__version__
    assert {*provenance.KEYS, "how"} <= set(found)
    assert len(found["rows"]) == 8
    for row in found["rows"]:
        assert row["status"] == "ok"
        assert row["chosen"] == (OURS if row["kernel"] == OURS else row["chosen"])
        assert row["us"] > 0
        assert row["tflops"] == pytest.approx(2e-6 * row["m"] * row["n"] * row["k"] * (row["batch"] or 1) / row["us"])
        others = [path["wall_us" if ON_CPU else "device_us"] for path in row["xla"].values()]
        assert row["ratio"] == pytest.approx(min(others) / row["us"])
        assert row["error"] < 1e-6
        assert all(path["error"] < 1e-6 for path in row["xla"].values())
        assert set(row["xla"]) == ({"default"} if ON_CPU else {"default", "cublas"})
        assert (row["roofline_fraction"] is None) == ON_CPU


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("f64", 1e-14), ("f16", 1e-3), ("bf16", 4e-3), ("s8", 0.0), ("u8", 0.0)]
)
def test_bench_of_every_type(capsys, tmp_path, dtype, tolerance):
    file = tmp_path / "out.json"
    status, _, _ = run(capsys, "bench", "--shapes", "16x24x40", "--dtype", dtype, "--quick", "--json", str(file))
    assert status == 0
    for row in json.loads(file.read_text())["rows"]:
        assert row["status"] in ("ok",) if ON_CPU else ("ok", "unsupported")
        if row["status"] == "ok":
            assert row["error"] <= tolerance
            assert row["out_dtype"] == ("int32" if dtype in ("s8", "u8") else row["dtype"])


def test_without_arguments_a_short_bench_runs(capsys, monkeypatch):
    monkeypatch.setattr("jaxgemm.__main__._CPU_SHAPES", "24x24x24")
    monkeypatch.setattr("jaxgemm.__main__._GPU_SHAPES", "24x24x24")
    monkeypatch.setattr(sys, "argv", ["jaxgemm"])
    assert main() == 0
    out, _ = capsys.readouterr()
    assert "24x24x24 NN f32" in out
    if ON_CPU:
        assert "this runs on the CPU" in out
        assert "auto > xla" in out
        assert "host" in out


def test_what_a_kernel_does_not_support_is_a_row(capsys):
    status, out, _ = run(
        capsys, "bench", "--shapes", "8x8x8,9x9x9", "--quick", "--kernel", ELSEWHERE, "--kernel", "auto"
    )
    assert status == 0
    assert out.count("unsupported") == 3  # two rows, and one line for both that says why
    assert f"8x8x8 NN f32 and 1 more: kernel {ELSEWHERE}: unsupported: kernel '{ELSEWHERE}' runs on" in out


def test_a_kernel_that_breaks_costs_its_own_row_only(capsys, monkeypatch):
    gemm = jaxgemm.gemm

    def broken(*operands, kernel, **options):
        if kernel == OURS:
            raise RuntimeError("out of luck")
        return gemm(*operands, kernel=kernel, **options)

    monkeypatch.setattr(jaxgemm, "gemm", broken)
    runner = bench.on_default_device(repeats=3)
    bad, good = runner.measure(Case(8, 8, 8), [OURS, "auto"])
    assert (bad.status, bad.us, bad.ratio, bad.ours.message) == (
        "error",
        None,
        None,
        "RuntimeError: out of luck",
    )
    assert good.status == "ok"
    status, out, _ = run(capsys, "bench", "--shapes", "8x8x8", "--quick", "--kernel", OURS)
    assert status == 1
    assert "RuntimeError: out of luck" in out


def test_a_wrong_product_shows_in_the_error(monkeypatch):
    gemm = jaxgemm.gemm
    monkeypatch.setattr(jaxgemm, "gemm", lambda *operands, **options: 1.01 * gemm(*operands, **options))
    (row,) = bench.on_default_device(repeats=3).measure(Case(50, 60, 70))
    assert row.ours.error == pytest.approx(0.01, rel=1e-3)
    assert row.xla["default"].error < 1e-6


def test_an_interrupted_bench_shows_what_it_has(capsys, monkeypatch):
    measure = bench.Bench.measure

    def until_the_second(self, one, kernels):
        if one.m == 9:
            raise KeyboardInterrupt
        return measure(self, one, kernels)

    monkeypatch.setattr(bench.Bench, "measure", until_the_second)
    status, out, _ = run(capsys, "bench", "--shapes", "8x8x8,9x9x9", "--quick")
    assert status == 130
    assert "8x8x8 NN f32" in out


def test_tables_without_rich(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    report.print_table("Title", ["name", "figure"], [["a", "1.0"], ["longer", "10.0"]])
    assert capsys.readouterr().out == "\nTitle\nname    figure\n------  ------\na          1.0\nlonger    10.0\n\n"


# --- info and explain ---


def test_info_names_versions_devices_and_kernels(capsys):
    status, out, err = run(capsys, "info")
    assert (status, err) == (0, "")
    assert f"jaxgemm {jaxgemm.__version__}, jax {jax.__version__}" in out
    assert "XLA FFI 0." in out
    assert report.device_name(jax.devices()[0]) in out
    for kernel in jaxgemm.kernels():
        assert f" {kernel.name} " in out


def test_module_runs_as_a_program(tmp_path):
    # Elsewhere than in a checkout, whose source folder would stand in for the installed package.
    done = subprocess.run(
        [sys.executable, "-m", "jaxgemm", "explain", "8", "9", "10"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "float32[8,10] x float32[10,9]" in done.stdout


def test_explain(capsys):
    status, out, _ = run(
        capsys,
        "explain",
        "64",
        "32",
        "16",
        "--dtype",
        "bf16",
        "--layout",
        "nt",
        "--batch",
        "5",
        "--kernel",
        OURS,
    )
    assert status == 0
    assert "bfloat16[5,64,16] x bfloat16[5,32,16] -> bfloat16" in out
    assert OURS in out
    assert "layout NT" in out


@pytest.mark.skipif(not find_kernel("tiled").built, reason="this build has no CUDA kernels")
def test_explain_for_another_device(capsys):
    name = bench.gpu_name()
    status, out, _ = run(capsys, "explain", "4096", "4096", "4096", "--kernel", "tiled", "--device", name.lower())
    assert status == 0
    assert name in out
    assert run(capsys, "explain", "8", "8", "8", "--device", "cpu", "--kernel", "host")[0] == 0


def test_explain_says_why_a_kernel_cannot(capsys):
    status, out, err = run(capsys, "explain", "8", "8", "8", "--kernel", ELSEWHERE)
    assert (status, out) == (1, "")
    assert f"kernel '{ELSEWHERE}' runs on" in err


# --- nonsense ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "--shapes", "8x8"), "malformed shape '8x8': expected MxNxK or MxNxK@batch"),
        (("bench", "--shapes", "8x8x8,"), "malformed shape ''"),
        (("bench", "--shapes", "8x0x8"), "malformed shape '8x0x8': every extent must be at least 1"),
        (("bench", "--shapes", "8x8x8@0"), "every extent must be at least 1"),
        (("bench", "--shapes", "8x-8x8"), "malformed shape '8x-8x8'"),
        (("bench", "--dtype", "f23"), "unknown dtype 'f23': expected one of f64, f32, f16, bf16, s8, u8"),
        (("bench", "--dtype", "complex64"), "unknown dtype 'complex64'"),
        (("bench", "--layout", "NX"), "unknown layout 'NX': expected one of NN, NT, TN, TT"),
        (("bench", "--kernel", "fast"), "unknown kernel 'fast': expected one of auto, xla, host, "),
        (("bench", "--kernel", "host:speed=9"), "malformed option 'speed=9' of kernel 'host'"),
        (("bench", "--repeats", "0"), "got '0', expected an integer of at least 1"),
        (("bench", "--precision", "half"), "invalid choice: 'half'"),
        (("bench", "--json", "/no/such/folder/x.json"), "cannot write /no/such/folder/x.json"),
        (("bench", "--plot", "x.jpeg2"), "cannot draw x.jpeg2: its name must end in one of .png"),
        (("explain", "8", "8"), "the following arguments are required: K"),
        (("explain", "8", "8", "-8"), "-8"),
        (("explain", "8", "8", "eight"), "got 'eight', expected an integer of at least 0"),
        (("explain", "8", "8", "8", "--device", "abacus"), "unknown device 'abacus'"),
        (("frobnicate",), "invalid choice: 'frobnicate'"),
    ],
)
def test_nonsense_ends_with_a_message_and_status_2(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("usage: python -m jaxgemm")


def test_a_plot_without_matplotlib_is_refused_at_once(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = run(capsys, "bench", "--plot", "x.png")
    assert status == 2
    assert "plots need matplotlib: pip install 'jaxgemm[bench]'" in err


@pytest.mark.parametrize("command", [(), ("bench",), ("info",), ("explain",)])
def test_help(capsys, command):
    status, out, _ = run(capsys, *command, "--help")
    assert status == 0
    assert "python -m jaxgemm" in out


# --- the parts ---


def test_parse_kernel_checks_options(monkeypatch):
    row = jaxgemm.Kernel(
        name="blocked",
        family="simt",
        summary="",
        platform="cuda",
        min_arch=80,
        max_arch=0,
        rules=(TypeRule(*("float32",) * 4, "plain", "float32", "float32"),),
        options={"tile": (128, 64), "split": ()},
        deterministic=True,
        batch_invariant=True,
        built=True,
    )
    monkeypatch.setattr(jaxgemm, "kernels", lambda: [row])
    assert bench.parse_kernel("blocked") == ("blocked", {})
    assert bench.parse_kernel("blocked:tile=64,split=7") == ("blocked", {"tile": 64, "split": 7})
    for text in (
        "blocked:tile=32",
        "blocked:tile",
        "blocked:split=-1",
        "blocked:depth=2",
        "auto:tile=64",
        "host",
    ):
        with pytest.raises(ValueError, match="kernel"):
            bench.parse_kernel(text)


@pytest.mark.parametrize(("bias", "activation"), [(True, None), (False, "silu"), (True, "gelu")])
def test_an_epilogue_is_part_of_what_is_measured(bias, activation):
    one = Case(9, 7, 8, bias=bias, activation=activation)
    (operands,) = case.make_inputs(one, 1, seed=0)
    assert len(operands) == 2 + bias
    rows = case.sample_rows(one, seed=1)
    expected = case.reference_rows(one, *operands, rows=rows)
    for result in (one.xla(*operands), one.ours(*operands, kernel=OURS)):
        np.testing.assert_allclose(case.take_rows(result, one, rows), expected, rtol=1e-5, atol=1e-5)
    (row,) = bench.on_default_device(repeats=3).measure(one)
    assert row.ours.error < 1e-6
    assert row.to_json()["problem"].endswith((" +bias" if bias else "") + (f" {activation}" if activation else ""))


@pytest.mark.parametrize("layout", case.LAYOUTS)
@pytest.mark.parametrize("batch", [None, 1, 40])
def test_the_reference_is_the_product(layout, batch):
    one = Case(7, 5, 6, "float32", layout, batch)
    a, b = (np.asarray(x, np.float64) for x in case.make_inputs(one, 1, seed=0)[0])
    a = np.swapaxes(a, -1, -2) if layout[0] == "T" else a
    b = np.swapaxes(b, -1, -2) if layout[1] == "T" else b
    rows = case.sample_rows(one, seed=1)
    assert len(rows[0]) == min(7 * (batch or 1), 64)
    whole = (a @ b).reshape(-1, 7, 5)
    expected = whole[rows]
    np.testing.assert_allclose(case.reference_rows(one, *case.make_inputs(one, 1, seed=0)[0], rows=rows), expected)
    np.testing.assert_allclose(case.take_rows(jax.numpy.asarray(a @ b), one, rows), expected, rtol=1e-6)


def test_a_table_of_algorithms_says_which_they_are(capsys):
    cases = [Case(9, 7, 8, precision=name) for name in ("highest", "F32_F32_F32")]
    report.print_rows([row for one in cases for row in bench.on_default_device(repeats=3).measure(one)])
    assert "float32 at precision F32_F32_F32, HIGHEST (SIMT" in capsys.readouterr().out


def test_inputs_are_fresh_and_never_zeros():
    first, second = case.make_inputs(Case(16, 16, 16), 2, seed=0)
    assert not np.array_equal(first[0], second[0])
    assert not np.array_equal(first[0], first[1])
    assert np.std(np.asarray(first[0])) == pytest.approx(1, abs=0.2)
    signed, _ = case.make_inputs(Case(64, 64, 64, "int8"), 1, seed=0)[0]
    assert signed.min() < -100
    assert signed.max() > 100


def test_inputs_outgrow_the_cache_within_the_memory_cap():
    runner = bench.on_default_device(repeats=10_000)
    small = Case(256, 256, 256)
    assert runner._copies(small, 3) * small.operand_bytes >= 3 * bench.cache_bytes(runner.limits)
    assert runner._copies(Case(8192, 8192, 8192), 3) == 1 if ON_CPU else 2
    assert bench.on_default_device(repeats=1)._copies(small, 2) == 26  # no more than are ever used


def test_a_plot_needs_no_row_that_ran(tmp_path):
    plot.save([], tmp_path / "empty.svg", "nothing")
    assert (tmp_path / "empty.svg").stat().st_size > 0
