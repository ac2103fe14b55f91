"""Random products: what is drawn, that sound kernels pass, and that faults are found and can be run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cases
import fuzz
import fuzz_cases
import fuzz_groups
import fuzz_load
import fuzz_many
import group_cases
import guards
import jax
import numpy as np
import pytest
from fuzz_cases import Case
from fuzz_load import Load

import jaxgemm

SCRIPT = Path(__file__).parents[1] / "fuzz.py"
ROWS = jaxgemm.kernels()
F32 = ("float32", "float32", "float32", "float32")
PLAIN = Case("host", F32, (33, 17, 21), guarded=False)


def found_of(case, monkeypatch):
    monkeypatch.setattr(fuzz, "draw", lambda *_, **__: case)
    return fuzz.run(7, indices=[3])


# --- Drawing ----------------------------------------------------------------------------------------------------


def test_a_case_is_of_its_seed_and_index():
    assert [str(fuzz_cases.draw(1, i, ROWS)) for i in (5, 3)] == [str(fuzz_cases.draw(1, i, ROWS)) for i in (5, 3)]
    assert len({str(fuzz_cases.draw(seed, i, ROWS)) for seed in (1, 2) for i in range(20)}) == 40


def test_everything_is_drawn():
    drawn = [fuzz_cases.draw(0, i, ROWS) for i in range(3000)]
    assert {case.kernel for case in drawn} == {"auto", *(row.name for row in ROWS)}
    options = {(case.kernel, name) for case in drawn for name, _ in case.options}
    assert options == {(row.name, name) for row in ROWS for name in row.options}
    assert {case.special for case in drawn} == {None, "row", "column", "member", "elements"}
    assert {case.layout for case in drawn} == {"NN", "NT", "TN", "TT"}
    assert {case.activation for case in drawn} == {None, *cases.ACTIVATIONS}
    for name in ("traced", "bias", "batch_invariant", "gated", "guarded"):
        assert {getattr(case, name) for case in drawn} == {True, False}, name
    extents = [extent for case in drawn for extent in case.shape]
    assert 0 in extents
    assert max(extents) > 20000
    assert 0.3 < np.mean([extent % 2 for extent in extents]) < 0.7


def test_cases_are_of_bounded_size():
    for i in range(1000):
        case = fuzz_cases.draw(1, i, ROWS)
        m, n, k = case.shape
        batch = int(np.prod(np.broadcast_shapes(*case.batches)))
        assert m * n * k * batch <= 2 * fuzz_cases.MOST
        assert max(m * n, m * k, k * n) * batch <= 2 * fuzz_cases.LARGEST


# --- Groups -----------------------------------------------------------------------------------------------------


def test_every_kind_of_groups_is_drawn():
    drawn = [fuzz_groups.draw(0, i, ROWS) for i in range(1000)]
    assert {case.kernel for case in drawn} == {"auto", *(row.name for row in ROWS if row.grouped)}
    assert {case.form for case in drawn} == set(group_cases.FORMS)
    assert {case.kind for case in drawn} == set(group_cases.KINDS)
    assert {case.activation for case in drawn if case.form == "rows"} == {None, *cases.ACTIVATIONS}
    for name in ("bias", "guarded"):
        assert {getattr(case, name) for case in drawn} == {True, False}, name
    assert {case.offset is None for case in drawn} == {True, False}
    assert {bool(case.members) for case in drawn} == {True, False}
    assert {0 in case.shape for case in drawn} == {True, False}
    assert max(case.groups for case in drawn) > 200
    assert len({str(case) for case in drawn}) == len(drawn)
    for case in drawn:
        m, k, n = case.shape
        assert m * k * n <= fuzz_cases.MOST
        assert case.held * k * n <= fuzz_cases.LARGEST
    assert str(drawn[3]) == str(fuzz_groups.draw(0, 3, ROWS))


def test_some_cases_are_of_groups_and_some_are_lists():
    drawn = [type(fuzz.draw(0, i, ROWS, groups=False)) for i in range(400)]
    assert 60 < drawn.count(fuzz_groups.Case) < 100
    assert 10 < drawn.count(fuzz_many.Case) < 35
    alone = [type(fuzz.draw(0, i, ROWS, groups=True)) for i in range(400)]
    assert 50 < alone.count(fuzz_many.Case) < 110
    assert set(alone) == {fuzz_many.Case, fuzz_groups.Case}


@pytest.mark.parametrize("form", group_cases.FORMS)
def test_groups_pass(form):
    case = fuzz_groups.Case("auto", form, ("float32", "float32"), (19, 8, 6), 5, "negative", 5)
    for changed in ({}, {"held": 3, "offset": 1}, {"members": 2, "mapped": ("lhs", "rhs", "sizes")}):
        assert fuzz_groups.fuzz(replace(case, **changed), 1) == "xla"


@pytest.mark.gpu
def test_groups_pass_on_a_gpu():
    found = fuzz.run(1, 20, groups=True)
    assert not found.failures
    assert found.guarded
    assert found.grouped
    assert found.many
    assert found.grouped + found.many == found.ran.total()


def test_a_wrong_group_is_found_and_can_be_run_again(faulty, monkeypatch):
    def wrong(x, _run):
        x[1, 2] += 0.5
        return x

    faulty(wrong)
    case = fuzz_groups.Case("auto", "rows", ("float32", "float32"), (19, 8, 6), 2, "cuts", 2)
    monkeypatch.setattr(fuzz, "draw", lambda *_, **__: case)
    (failure,) = fuzz.run(7, indices=[3], groups=True).failures
    assert "1 of " in failure
    assert "elements are off, first at" in failure
    assert "again: python tests/fuzz.py 60 7 --groups --only 3" in failure


# --- Lists of products ------------------------------------------------------------------------------------------


def test_every_kind_of_list_is_drawn():
    drawn = [fuzz_many.draw(0, i, ROWS) for i in range(500)]
    able = [row for row in ROWS if row.many]
    assert {case.kernel for case in drawn} == {"auto", *(row.name for row in able)}
    assert {case.types for case in drawn} == {*fuzz_many.WIDE, *map(tuple, fuzz_cases.types_together(able))}
    assert {case.layout for case in drawn} == set(cases.LAYOUTS)
    assert {case.guarded for case in drawn} == {True, False}
    assert len({case.options[:2] for case in drawn if case.options}) == len(fuzz_many.TILES)
    assert {1} < {len(case.shapes) for case in drawn}
    assert max(len(case.shapes) for case in drawn) > 126  # three launches
    assert any(0 in shape for case in drawn for shape in case.shapes)
    assert max(sum(m * n * k for m, n, k in case.shapes) for case in drawn) <= fuzz_cases.MOST
    assert str(drawn[3]) == str(fuzz_many.draw(0, 3, ROWS))


LISTED = fuzz_many.Case("auto", F32, ((19, 8, 6), (3, 0, 5), (7, 9, 0), (1, 1, 1), (4, 40, 33)))


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_lists_pass(layout):
    assert fuzz_many.fuzz(replace(LISTED, layout=layout), 1) == "xla"
    if jax.default_backend() == "cpu":
        assert fuzz_many.fuzz(replace(LISTED, layout=layout, kernel="host"), 1) == "host"


@pytest.mark.gpu
def test_lists_pass_in_one_call():
    types = ("bfloat16", "bfloat16", "float32", "float32")
    for options in ((), tuple(fuzz_many.TILES[0].items())):
        assert fuzz_many.fuzz(replace(LISTED, types=types, kernel="sm90", options=options), 1) == "sm90"


def test_a_wrong_product_of_a_list_is_found_and_can_be_run_again(monkeypatch):
    execute = fuzz_many.execute

    def wrong(*args):
        results = execute(*args)
        results[4] = results[4] + (np.arange(160).reshape(4, 40) == 7).astype("float32")
        return results

    monkeypatch.setattr(fuzz_many, "execute", wrong)
    (failure,) = found_of(LISTED, monkeypatch).failures
    assert "4x40x33" in failure
    assert "1 of 160 elements are off" in failure
    assert "again: python tests/fuzz.py 60 7 --only 3" in failure


# --- What passes ------------------------------------------------------------------------------------------------


def test_sound_kernels_pass():
    found = fuzz.run(1, indices=range(10))
    assert not found.failures
    assert found.ran.total() + found.refused.total() == 10
    assert found.guarded


@pytest.mark.gpu
def test_sound_kernels_pass_on_a_gpu():
    found = fuzz.run(1, 20)
    assert not found.failures
    assert found.guarded


@pytest.mark.parametrize("special", ["row", "column", "member", "elements"])
def test_nan_and_infinity_pass_where_they_belong(special):
    case = Case("host", F32, (9, 8, 7), ((2,), (2,)), stored=((0, 1, 2), (2, 0, 1)), special=special)
    assert fuzz_cases.fuzz(case, 1) == "host"


def test_a_refusal_is_counted(monkeypatch):
    elsewhere = next(row for row in ROWS if row.platform == "cuda")
    found = found_of(Case(elsewhere.name, F32, (4, 4, 4)), monkeypatch)
    assert dict(found.refused) == {elsewhere.name: 1}
    assert not found.failures


# --- What does not ----------------------------------------------------------------------------------------------


@pytest.fixture
def faulty(monkeypatch):
    """Changes results by a function of the result and of the number of the run."""

    def plant(change):
        execute, runs = fuzz_cases.execute, []

        def changed(*args):
            runs.append(None)
            return change(np.array(execute(*args)), len(runs))

        monkeypatch.setattr(fuzz_cases, "execute", changed)

    return plant


def one_element(x, _run):
    x[4, 5] += 0.01
    return x


def one_element_later(x, run):
    x[4, 5] = np.nextafter(x[4, 5], np.float32(9)) if run % 2 == 0 else x[4, 5]
    return x


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (one_element, "1 of 561 elements are off, first at (np.int64(4), np.int64(5))"),
        (one_element_later, "two runs differ in 1 of 561 elements, first at [4 5]"),
        (lambda x, _: x[1:], "shape (32, 17), expected (33, 17)"),
        (lambda x, _: np.full_like(x, np.nan), "561 of 561 elements are off"),
    ],
    ids=["off", "moving", "shape", "nan"],
)
def test_a_wrong_result(faulty, monkeypatch, change, text, capsys):
    faulty(change)
    found = found_of(PLAIN, monkeypatch)
    assert len(found.failures) == 1
    assert text in found.failures[0]
    assert "again: python tests/fuzz.py 60 7 --only 3" in found.failures[0]
    assert found.failures[0] in capsys.readouterr().err


def test_infinity_in_place_of_nan(faulty):
    faulty(lambda x, _: np.where(np.isnan(x), np.inf, x).astype(x.dtype))
    with pytest.raises(AssertionError, match=r"got .*inf"):
        fuzz_cases.fuzz(Case("host", F32, (9, 8, 7), special="row", guarded=False), 1)


def test_a_wrong_integer(faulty):
    faulty(lambda x, _: x + (np.arange(x.size).reshape(x.shape) == 7))
    with pytest.raises(AssertionError, match="1 of 12 elements differ"):
        fuzz_cases.fuzz(Case("host", ("int8", "int8", "int32", "int32"), (3, 4, 5), guarded=False), 1)


def test_a_wrong_pair(faulty):
    faulty(lambda x, _: x * np.float32(1.01))
    with pytest.raises(AssertionError, match="elements are off"):
        fuzz_cases.fuzz(Case("auto", F32, (9, 8, 7), gated=True), 1)


def test_rows_that_follow_others(faulty):
    """Some of the rows run last."""
    faulty(lambda x, run: x if run <= 2 * fuzz_cases.SETS else np.nextafter(x, np.float32(9)))
    with pytest.raises(AssertionError, match="rows alone and among all differ"):
        fuzz_cases.fuzz(Case("host", F32, (9, 8, 7), batch_invariant=True), 1)


def test_a_write_outside(monkeypatch):
    monkeypatch.setattr(guards, "wrote_outside", lambda _: True)
    found = found_of(Case("host", F32, (9, 8, 7)), monkeypatch)
    assert "wrote outside of its result" in found.failures[0]


def test_any_other_error(monkeypatch):
    def fails(*_, **__):
        raise ValueError("some error")

    monkeypatch.setattr(jaxgemm, "gemm", fails)
    assert "ValueError: some error" in found_of(PLAIN, monkeypatch).failures[0]


def test_a_run_stops_at_many_failures(faulty, monkeypatch):
    faulty(one_element)
    monkeypatch.setattr(fuzz, "draw", lambda *_, **__: PLAIN)
    assert len(fuzz.run(7, indices=range(1000)).failures) == fuzz.ENOUGH


# --- The script -------------------------------------------------------------------------------------------------


def test_operands_alone():
    found = fuzz.run(1, 5, operands=["int8", "uint8"])
    assert found.ran.total() + found.refused.total() > 0
    assert not found.failures


def test_the_command_line(tmp_path):
    file = tmp_path / "fuzz.json"
    command = [sys.executable, "-P", SCRIPT, "1", "4", "--load", "--only", "0", "--only", "2", "--json", file]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result == json.loads(file.read_text())
    assert (result["seed"], result["products"], result["platform"], result["failures"]) == (4, 2, "cpu", [])
    assert "numpy in a thread" in result["load"]
    assert jax.__version__ == result["jax"]


# --- What runs beside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("platform", "name"), [("cpu", "numpy in a thread"), ("cuda", "a second process")])
def test_products_that_run_beside(platform, name, monkeypatch):
    monkeypatch.setattr(fuzz_load, "_torch", lambda: None)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with Load(platform) as load:
        assert not load.ended
    assert load.ended
    assert str(load).startswith(name)
    assert int(str(load).split()[-2]) > 0


def test_products_beside_that_end_are_a_failure():
    with Load("cpu") as load:
        pass
    found = fuzz.run(1, indices=range(3), load=load)
    assert found.failures == [f"what runs beside has ended: {load}"]
