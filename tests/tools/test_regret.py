"""benchmarks/regret.py: which configurations it times, what it writes, and what it refuses."""

import random
import sys
from dataclasses import replace

import jax
import pytest

from jaxgemm.choice.resolve import Candidate, candidates
from jaxgemm.kernels import H200, find_kernel
from jaxgemm.measure import configurations, provenance
from jaxgemm.measure.case import Case
from jaxgemm.tuning import slug


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("regret")


def run(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["regret.py", *arguments])
    return script.main()


def test_it_times_the_best_and_some_of_every_tile(script):
    row = replace(find_kernel("sm90"), options=dict.fromkeys(("tile_m", "tile_n", "schedule", "split_k"), ()))
    weighed = [Candidate((tile, 64, 2, split), 1.0 + 0.01 * split) for split in range(40) for tile in (64, 128, 192)]
    timed = script._some(row, weighed, random.Random(1), best=5, others=6, within=1.2)
    assert timed[:5] == weighed[:5]
    assert len(set(timed)) == 11
    assert sorted(x.config[0] for x in timed[5:]) == [64, 64, 128, 128, 192, 192]
    assert max(x.microseconds for x in timed) < 1.2 * weighed[0].microseconds


@pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")
def test_other_walks_are_those_of_the_same_configurations(script, benchmark_script):
    row, problem = find_kernel("sm90"), benchmark_script("tune").problem_of(Case(4096, 8192, 512, "bfloat16"))
    first = candidates(row, (), problem, H200)[:2]
    walked = script._by_other_walks(row, first, problem, H200)
    at = list(row.options).index("walk_height")
    without = [x.config[:at] + x.config[at + 1 :] for x in walked]
    assert without == [x.config[:at] + x.config[at + 1 :] for x in first for _ in range(6)]
    assert [x.config[at] for x in walked] == 2 * [1, 2, 4, 8, 16, 32]
    for i, x in enumerate(first):
        mine = walked[6 * i : 6 * i + 6]
        assert x.microseconds == min(y.microseconds for y in mine)
        assert len({y.microseconds for y in mine}) > 3


def test_its_results_hold_every_timing(script, monkeypatch, tmp_path, capsys):
    if jax.devices()[0].platform != "cpu":
        pytest.skip("the script measures on JAX's default device")
    case = Case(16, 24, 8, "float32")
    monkeypatch.setattr(script, "drawn", lambda *asked: (case,) if asked == (3, 5, [7]) else ())
    monkeypatch.setattr(script, "candidates", lambda *_: [Candidate((), 2.0), Candidate((), 3.0)])
    drawn = ("--kernel", "host", "--each", "3", "--seed", "5", "--kinds", "7", "--results", str(tmp_path))
    assert run(script, monkeypatch, *drawn) == 0
    (file,) = tmp_path.iterdir()
    assert file == configurations.default_file(tmp_path, "host")
    table = configurations.load(file, "host")
    ((source, about),) = table.sources.items()
    assert source == f"{slug(about['device'])}/regret"
    assert (about["seed"], about["suite"]) == (5, None)
    assert set(provenance.KEYS) <= set(about)
    (product,) = table.products
    assert (product.source, product.case) == (source, replace(case, precision="highest"))
    us = [us for _, us in product.timed]
    assert len(us) == 2
    assert product.loss == us[0] / min(us) >= 1
    printed = capsys.readouterr().out
    assert "16x24x8 NN f32" in printed
    assert "1 products" in printed


def test_it_says_that_there_is_no_model(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(script, "drawn", lambda *_: (Case(16, 24, 8, "float32"),))
    assert run(script, monkeypatch, "--kernel", "host", "--results", str(tmp_path)) == 1
    assert "no product for which the kernel's cost model weighs configurations" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [("--kernel", "nothing"), ("--suite", "nothing"), ("--kinds", "99"), ("--kernel", "simt", "--walks", "2")],
)
def test_it_refuses_nonsense(script, monkeypatch, capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        run(script, monkeypatch, *arguments)
    assert "usage" in capsys.readouterr().err


@pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")
def test_it_weighs_the_arithmetic_that_a_precision_asks_for(script):
    row = find_kernel("sm90")
    found, problem = script._weighed(row, Case(1000, 700, 2100, precision="BF16_BF16_F32_X6"), H200)
    assert found
    assert problem.arithmetic == "bf16_x6"
    assert script._weighed(row, Case(1000, 700, 2100, precision="F32_F32_F32"), H200) == ([], None)
