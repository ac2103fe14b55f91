"""The replay of stored timings through auto's rules, and the page that is made of the rules."""

import json
import math
import sys

import pytest

import jaxgemm
from jaxgemm.choice.rules import Side
from jaxgemm.measure.case import Case

built = pytest.mark.skipif(
    not next(row for row in jaxgemm.kernels() if row.name == "sm90").built, reason="this build has no CUDA kernels"
)
LARGE, UNALIGNED = "4096x4096x4096 NN bf16", "2047x2049x2052 NN bf16"


def row(problem, kernel, us, xla, chosen=None, **more):
    path = {"us": xla, "device_us": xla}
    return {
        "problem": problem,
        "kernel": kernel,
        "chosen": chosen or kernel,
        "status": "ok",
        "us": us,
        "xla": {"default": path, "cublas": {"us": 1.0, "device_us": 1.0}},
    } | more


ROWS = (
    row(LARGE, "auto", 174.0, 175.0, "xla"),
    row(LARGE, "sm90", 160.0, 175.0),
    row(UNALIGNED, "auto", 35.0, 140.0, "sm90"),
    row("96x200x128 NN bf16", "sm90", 2.0, 3.0),  # direct's time is what counts
    row("512x512x512 NN f32", "simt", 9.0, 5.0, precision="default"),  # a fact decides
    row("300x300x300 NN bf16", "sm90", None, 5.0, status="error"),
    row("640x640x640 NN bf16", "sm90:tile_m=64", 1.0, 5.0),  # not the model's choice, which the next one is
    row("640x640x640 NN bf16", "sm90", 2.0, 5.0),
    row("1024x1024x128 NN f32", "simt:tile=1", 3.0, 5.0),  # the model's choice, as the first of those that are named
    row("1024x1024x128 NN f32", "simt:tile=2", 2.0, 5.0),
)


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("choices")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nvidia-h200" / "some.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"device": "NVIDIA H200", "rows": ROWS}))
    return path


def test_products_are_read_with_both_times(script, file):
    found = {str(timed.case): timed for timed in script.timings(file)}
    assert found[LARGE].case == Case(4096, 4096, 4096, "bfloat16")
    assert (found[LARGE].ours, found[LARGE].xla, found[LARGE].device) == ({"sm90": 160.0}, 175.0, "NVIDIA H200")
    assert found[UNALIGNED].ours == {"sm90": 35.0}
    assert found["640x640x640 NN bf16"].ours == {"sm90": 2.0}
    assert found["1024x1024x128 NN f32"].ours == {"simt": 3.0}
    assert len(found) == 6


def test_a_file_of_several_sources_has_each_by_itself(script, file):
    sources = {"old": {"device": "NVIDIA H200"}, "new": {"device": "NVIDIA H100 80GB HBM3"}}
    rows = [row(LARGE, "sm90", 160.0, 175.0, source="old"), row(LARGE, "sm90", 150.0, 170.0, source="new")]
    file.write_text(json.dumps({"sources": sources, "rows": rows}))
    found = [(timed.file, timed.device, timed.ours["sm90"], timed.xla) for timed in script.timings(file)]
    assert found == [
        ("nvidia-h200/some, old", "NVIDIA H200", 160.0, 175.0),
        ("nvidia-h200/some, new", "NVIDIA H100 80GB HBM3", 150.0, 170.0),
    ]


@built
def test_what_rules_lose(script, file):
    found = {str(x.timed.case): x for x in map(script.replay, script.timings(file)) if x}
    assert set(found) == {LARGE, UNALIGNED, "640x640x640 NN bf16", "1024x1024x128 NN f32"}
    large, unaligned = found[LARGE], found[UNALIGNED]
    assert (large.rule.name, large.side, large.without) == ("rows-aligned", Side.XLA, Side.OURS)
    assert large.loss() == pytest.approx(math.log(175 / 160))
    assert large.loss(large.without) == 0
    assert (unaligned.rule.name, unaligned.side, unaligned.loss()) == ("expected-times", Side.OURS, 0)
    lines = {line[0]: line for line in script.rule_lines([large, unaligned])}
    # Two products: without the rule the first one's loss is spared, which is half of it for all.
    percent = 100 * math.log(175 / 160) / 2
    assert lines["rows-aligned"][1:] == ("XLA", "1", f"{175 / 160:.4f}", "1.0000", f"-{percent:.3f} %")
    assert lines["expected-times"][2:] == ("1", "1.0000", "-", "-")
    assert lines["small"][2:] == ("0", "-", "-", "-")
    means = f"{math.sqrt(175 / 160):.4f}", "1.0000", f"{math.sqrt(175 / 160 * 4):.4f}"
    assert script.file_line("some", 4, [large, unaligned]) == ("some", "2", "2", *means, "1.09", LARGE)


@built
@pytest.mark.parametrize(("precision", "rule"), [("highest", "fp32-planes"), ("BF16_BF16_F32_X6", "named-algorithm")])
def test_float32_is_replayed_in_the_arithmetic_that_is_taken(script, file, precision, rule):
    rows = [row("4096x4096x4096 NN f32", "sm90", 1300.0, 2700.0, precision=precision)]
    file.write_text(json.dumps({"device": "NVIDIA H200", "rows": rows}))
    (found,) = map(script.replay, script.timings(file))
    assert (found.rule.name, found.side, found.loss()) == (rule, Side.OURS, 0)


@built
def test_the_tables_are_printed(script, file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["choices.py", str(file), "--worst", "1"])
    assert script.main() == 0
    out = capsys.readouterr().out
    assert f"4 products: {(175 / 160) ** 0.25:.4f} times the faster side on average by the rules, 1.0000 by ours" in out
    assert "nvidia-h200/some" in out
    worst = out[out.index("Most lost") :]
    assert LARGE in worst
    assert UNALIGNED not in worst


@pytest.mark.parametrize("rows", [[], [{"problem": "1x2x3 NN bf16"}]])
def test_a_file_without_such_times_is_said(script, tmp_path, monkeypatch, capsys, rows):
    path = tmp_path / "none.json"
    path.write_text(json.dumps({"device": "NVIDIA H200", "rows": rows}))
    monkeypatch.setattr(sys, "argv", ["choices.py", str(path)])
    assert script.main() == 1
    assert "no file holds times" in capsys.readouterr().err


def test_the_page_is_made_of_the_rules(benchmark_script):
    docs = benchmark_script("auto_docs")
    assert docs.text() == docs.DOCS.read_text()
