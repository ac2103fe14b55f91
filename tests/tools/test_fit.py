"""benchmarks/fit.py: the model that it fits is the kernel's own, and a search that is given an answer finds it."""

import ctypes
import math
import random
import re
import shutil
from dataclasses import replace

import pytest

from jaxgemm.choice.resolve import candidates, computed
from jaxgemm.kernels import H200, find_kernel
from jaxgemm.measure import configurations
from jaxgemm.measure.case import Case
from jaxgemm.measure.configurations import Product, Table
from jaxgemm.precision import canonical

ROW = find_kernel("sm90")
CASES = (
    Case(1024, 1024, 4096, "bfloat16"),
    Case(40, 6144, 6144, "bfloat16", "NT"),
    Case(300, 520, 72, "bfloat16", "TN", batch=12),
    Case(513, 257, 1001, "bfloat16"),
    Case(256, 2048, 512, "bfloat16", bias=True, activation="silu"),
    Case(1000, 700, 2100, precision="BF16_BF16_F32_X6"),
    Case(96, 300, 500, batch=5, precision="TF32_TF32_F32_X3"),
)


@pytest.fixture
def script(benchmark_script):
    if shutil.which("g++") is None:
        pytest.skip("there is no compiler")
    return benchmark_script("fit")


@pytest.fixture
def model(script, tmp_path):
    return script.compiled(tmp_path)


def product(case, timed):
    return Product("card/some", case, tuple(timed))


def written(file, products, device="NVIDIA H200"):
    """A table of these products; a configuration may lack the last options."""
    options = tuple(ROW.options)
    whole = [
        replace(x, timed=tuple(((*config, *[1] * (len(options) - len(config))), us) for config, us in x.timed))
        for x in products
    ]
    configurations.write(file, Table("sm90", options, {"card/some": {"device": device}}, tuple(whole)))
    return ["card/some", "--table", str(file), "--steps"]


def weighed(benchmark_script, case):
    problem = computed(ROW, benchmark_script("tune").problem_of(case), H200, canonical(case.jax_precision))
    return candidates(ROW, (), problem, H200)[:40]


@pytest.mark.skipif(not ROW.built, reason="this build has no such kernel")
def test_it_expects_what_the_kernel_does(script, model, benchmark_script):
    library, _ = model
    for number, case in enumerate(CASES):
        ranked = weighed(benchmark_script, case)
        script.load(library, [product(case, [(x.config, x.microseconds) for x in ranked])])
        for i, x in enumerate(ranked):
            assert library.expect(number, i) == pytest.approx(x.microseconds, rel=1e-6)


@pytest.mark.skipif(not ROW.built, reason="this build has no such kernel")
def test_a_search_finds_its_way_back(script, model, benchmark_script):
    """Timings by the model itself, constants that are off: choices lose less, and times are nearer, afterwards."""
    library, names = model
    found = script.load(
        library,
        [product(c, [(x.config, x.microseconds) for x in weighed(benchmark_script, c)]) for c in CASES],
    )
    constants, smooth = library.constants(), ctypes.c_double()
    assert library.loss(1.0, ctypes.byref(smooth)) == pytest.approx(0, abs=1e-9)
    assert script.launch_offset(library, found) == pytest.approx(0, abs=1e-5)
    draw = random.Random(3)
    for i in range(len(names)):
        constants[i] *= math.exp(draw.gauss(0, 0.2))
    library.loss(1.0, ctypes.byref(smooth))
    before = smooth.value
    script.search(library, names, 600, 1.0, 1)
    library.loss(1.0, ctypes.byref(smooth))
    assert smooth.value < 0.7 * before


def test_timings_are_of_their_own_device(script, model):
    """A device of slower memory takes longer for few rows, which the constants, an H200's, are not to blame for."""
    library, _ = model
    slower = script.KNOWN_DEVICES["NVIDIA H100 80GB HBM3"]
    timed = [product(Case(16, 8192, 8192, "bfloat16"), [((64, 16, 2, 1, 1, 1, 2, 1, 1, 1, 2), 40.0)])]
    assert script.load(library, timed) == script.load(library, timed, slower) == [[40.0]]
    assert library.expect(1, 0) > 1.2 * library.expect(0, 0)


def test_the_constants_are_what_the_script_writes(benchmark_script):
    """The header has one source: the table of the script, and its own values."""
    table = benchmark_script("cost_constants")
    text = table.FILE.read_text()
    values = table.values(text)
    assert list(values) == [name for name, _, _ in table.CONSTANTS]
    assert table.header(values) == text
    names, numbers = table.flat(values)
    assert table.grouped(names, numbers) == values
    assert len(names) == len(set(names)) > len(values)
    other = {name: tuple(2 * x for x in value) for name, value in values.items()}
    written = table.flat(table.values(table.header(other)))
    assert written[0] == names
    assert written[1] == pytest.approx([2 * x for x in numbers], rel=1e-3)
    with pytest.raises(ValueError, match="not those of the table"):
        table.header({name: value for name, value in values.items() if name != "kLaunch"})


def test_every_constant_is_used(benchmark_script):
    table = benchmark_script("cost_constants")
    model = (table.FILE.parent / "cost.cc").read_text()
    assert [name for name, _, _ in table.CONSTANTS if not re.search(rf"\b{name}\b", model)] == []


def test_the_command_judges_a_file(script, tmp_path, capsys):
    file = tmp_path / "fit.json"
    two = [((64, 64, 2, 1, 1, 1, 1, 1, 1, 1, 1), 5.0), ((64, 32, 2, 1, 1, 1, 1, 1, 1, 1, 1), 6.0)]
    asked = written(file, [product(Case(256, 256, 256, "bfloat16"), two)])
    assert script.main([*asked, "0"]) == 0
    assert "1 products, 2 timings: choices take" in capsys.readouterr().out
    assert script.main(["card/some", *asked, "0"]) == 0
    assert "2 products, 4 timings: choices take" in capsys.readouterr().out
    same = [((64, 64, 2, 1, 1, 1, 1, 1, 1, 1, 1), us) for us in (6.0, 7.2, 5.0)]
    written(file, [product(Case(256, 256, 256, "bfloat16"), same)])
    assert script.main([*asked, "0"]) == 0
    assert "choices take 1.2000 times the best" in capsys.readouterr().out  # of equals the first is the choice
    other = written(tmp_path / "other.json", [product(CASES[0], same)], "an unknown device")
    with pytest.raises(SystemExit):
        script.main([*other, "0"])
    assert "no rates of an unknown device: jaxgemm.roofline knows NVIDIA" in capsys.readouterr().err
    constants = script.cost_constants.FILE
    before = constants.read_text()
    near = [((64, 64, 2, 1, 1, 1, 1, 1, 1, 1, 1), 2.9)]
    written(file, [product(Case(256, 256, 256, "bfloat16"), near)])
    assert script.main([*asked, "40", "--only", "kLaunch,kHandover"]) == 0
    changed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("constexpr")]
    changed = [line.split()[2].removesuffix("[]") for line in changed if line not in before]
    assert changed
    assert all(name.startswith(("kLaunch", "kHandover")) for name in changed), changed
    assert constants.read_text() == before
    header = script.cost_constants.FILE = tmp_path / "cost_constants.h"
    header.write_text(before)
    assert script.main([*asked, "40", "--only", "kLaunch,kHandover", "--write"]) == 0
    assert [line.split()[2] for line in header.read_text().splitlines() if line not in before] == changed
    with pytest.raises(SystemExit, match="2"):
        script.main([*asked, "0", "--only", "kNothing"])
    assert "no constant's name begins with kNothing" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        script.main(["--table", str(tmp_path / "missing.json")])
    assert "no timings" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        script.main(["other", *asked, "0"])
    assert "no source other; there are card/some" in capsys.readouterr().err


def test_products_of_no_tile_that_there_is_are_left_out(script, tmp_path, capsys):
    file = tmp_path / "fit.json"
    gone = product(Case(256, 256, 256, "bfloat16"), [((72, 64, 2, 1, 1, 1, 1, 1, 1, 1, 1), 5.0)])
    there = product(Case(256, 256, 256, "bfloat16"), [((64, 64, 2, 1, 1, 1, 1, 1, 1, 1, 1), 5.0)])
    asked = written(file, [gone, there, gone])
    assert script.main([*asked, "0"]) == 0
    out = capsys.readouterr().out
    assert "2 products left out: none of their timings is of a tile that there is" in out
    assert "1 products, 1 timings: choices take 1.0000 times the best" in out
    written(file, [gone])
    with pytest.raises(SystemExit, match="2"):
        script.main([*asked, "0"])
    assert "no product has a timing of a tile that there is" in capsys.readouterr().err
