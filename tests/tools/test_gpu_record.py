"""The record of the last run on a GPU: what it holds, and when it counts as stale."""

import json
import subprocess
import sys

import gpu_record
import pytest

RECORD = {
    "device": "NVIDIA H200",
    "device_count": 1,
    "driver": "580.82.07",
    "versions": {"python": "3.11.2", "jax": "0.10.2", "jaxlib": "0.10.2", "jaxgemm": "0.1.0", "cuda": "13.0"},
    "passed": 1000,
    "failed": 0,
    "skipped": 3,
    "seconds": 123.4,
    "date": "2026-11-21T09:00:00Z",
    "digest": "",
}
FUZZ = {
    "device": "NVIDIA H200",
    "platform": "cuda",
    "seed": 1,
    "seconds": 600.0,
    "load": "",
    "operands": [],
    "products": 3000,
    "kernels": {"sm90": 2000, "xla": 1000},
    "guarded": 1200,
    "refused": {"gemv": 100},
    "failures": [],
    "jax": "0.10.2",
    "date": "2026-11-22T09:00:00Z",
    "digest": "",
}


@pytest.fixture
def tree(tmp_path):
    """A source tree of a few files."""
    for name in ("CMakeLists.txt", "ffi/handler.cc", "ffi/cuda/naive.cu", "jaxgemm/api.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {name}\n")
    return tmp_path


def write(path, *, fuzz=({},), **changed):
    """A record, with runs of random products that are as current as it is, with these changes."""
    runs = [{**FUZZ, "digest": changed.get("digest", ""), **run} for run in fuzz]
    path.write_text(json.dumps({**RECORD, "fuzz": runs, **changed}))
    return path


def test_a_current_record_says_nothing(tree):
    record = write(tree / "record.json", digest=gpu_record.digest(tree))
    assert gpu_record.staleness(record, tree) == ""


@pytest.mark.parametrize("name", ["CMakeLists.txt", "ffi/cuda/naive.cu", "jaxgemm/api.py"])
def test_a_changed_source_makes_it_stale(tree, name):
    record = write(tree / "record.json", digest=gpu_record.digest(tree))
    (tree / name).write_text("changed")
    assert "record.json is stale: the sources have changed since the run of 2026-11-21" in gpu_record.staleness(
        record, tree
    )


def test_names_count_as_well(tree):
    before = gpu_record.digest(tree)
    (tree / "ffi/handler.cc").rename(tree / "ffi/handled.cc")
    assert gpu_record.digest(tree) != before


def test_build_products_do_not_count(tree):
    before = gpu_record.digest(tree)
    (tree / "jaxgemm/__pycache__").mkdir()
    (tree / "jaxgemm/__pycache__/api.pyc").write_text("text")
    (tree / "jaxgemm/_ffi.so").write_bytes(b"\x7fELF\0\0")
    (tree / "README.md").write_text("not a source")
    assert gpu_record.digest(tree) == before


def test_no_record(tree):
    stale = gpu_record.staleness(tree / "record.json", tree)
    assert stale.startswith("record.json: the CUDA kernels have no recorded run; renew it with")


def test_a_record_of_failures(tree):
    record = write(tree / "record.json", digest=gpu_record.digest(tree), failed=2)
    assert "2 tests failed in the last run on a GPU, NVIDIA H200" in gpu_record.staleness(record, tree)


@pytest.mark.parametrize(
    ("fuzz", "problem"),
    [
        ((), "record.json tells of no random products; run `python tests/fuzz.py 600 SEED --json FILE`"),
        (({"digest": "other"},), "is stale: the sources have changed since the random products of 2026-11-22"),
        (({}, {"failures": ["one"]}), "1 random products of seed 1 failed, NVIDIA H200"),
        (({"digest": "other"}, {}), ""),
    ],
    ids=["none", "stale", "failed", "current"],
)
def test_random_products(tree, fuzz, problem):
    said = gpu_record.staleness(write(tree / "record.json", fuzz=fuzz, digest=gpu_record.digest(tree)), tree)
    assert problem in said
    assert bool(said) == bool(problem)


def test_adding_random_products(tmp_path, capsys):
    record = write(tmp_path / "record.json", fuzz=({"digest": "old"}, {"digest": "new"}, {"digest": "new", "seed": 2}))
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    files[0].write_text(json.dumps({**FUZZ, "digest": "new", "products": 5}))
    files[1].write_text(json.dumps({**FUZZ, "digest": "new", "load": "torch, 9 products"}))
    assert gpu_record.main(["--output", str(record), "--fuzz", *map(str, files)]) == 0
    assert "2 runs of random products" in capsys.readouterr().out
    held = json.loads(record.read_text())
    assert {**held, "fuzz": []} == {**RECORD, "fuzz": []}
    assert [(x["seed"], x["load"], x["products"]) for x in held["fuzz"]] == [
        (2, "", 3000),
        (1, "", 5),
        (1, "torch, 9 products", 3000),
    ]
    assert gpu_record.invalid(held) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Expecting property name"),
        ("{}", "'device' must be a str"),
        (json.dumps({**FUZZ, "device": "cpu", "platform": "cpu"}), "not of a GPU, but of cpu"),
    ],
)
def test_random_products_that_do_not_count(tmp_path, capsys, text, problem):
    record, file = write(tmp_path / "record.json"), tmp_path / "fuzz.json"
    before = record.read_text()
    file.write_text(text)
    assert gpu_record.main(["--output", str(record), "--fuzz", str(file)]) == 2
    assert problem in capsys.readouterr().out
    assert record.read_text() == before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "not an object"),
        ("{}", "'device' must be a str, got None"),
        (json.dumps({**RECORD, "passed": "1000"}), "'passed' must be a int, got '1000'"),
        (json.dumps({**RECORD, "versions": {"jax": "1"}}), "versions lack python, jaxlib, jaxgemm, cuda"),
        (json.dumps({**RECORD, "fuzz": [{**FUZZ, "failures": 0}]}), "fuzz: 'failures' must be a list, got 0"),
    ],
)
def test_a_broken_record(tree, text, problem):
    record = tree / "record.json"
    record.write_text(text)
    assert problem in gpu_record.staleness(record, tree)


def test_counting_outcomes(capsys):
    class Report:
        def __init__(self, nodeid, outcome):
            self.nodeid, self.outcome = nodeid, outcome
            self.passed, self.failed, self.skipped = (outcome == x for x in ("passed", "failed", "skipped"))

    counter = gpu_record.Counter()
    # set-up, call and tear-down of: a pass, a skip while it ran, a skip by mark, a failure, a failed tear-down
    for nodeid, outcomes in {
        "a": ("passed", "passed", "passed"),
        "b": ("passed", "skipped", "passed"),
        "c": ("skipped", "passed"),
        "d": ("passed", "failed", "passed"),
        "e": ("passed", "passed", "failed"),
    }.items():
        for outcome in outcomes:
            counter.pytest_runtest_logreport(Report(nodeid, outcome))
    assert counter.counts() == {"passed": 1, "failed": 2, "skipped": 2, "failures": ["d", "e"]}
    assert capsys.readouterr().out.split() == ["FAILED", "d", "FAILED", "e"]


def test_parts_make_a_whole(tmp_path):
    file, digest = tmp_path / "record.json", "d" * 64
    record = {**RECORD, "digest": digest}
    first = gpu_record.joined(record, gpu_record.part("1/2"), file)
    assert first == {**record, "parts": ["1/2"]}
    file.write_text(json.dumps(first))
    assert "record.json holds parts 1/2 of a run alone" in gpu_record.unusable(file)
    assert gpu_record.joined({**record, "failed": 2}, gpu_record.part("2/2"), file) == {
        **record,
        "passed": 2000,
        "failed": 2,
        "skipped": 6,
        "seconds": 246.8,
    }
    # Of a part once more, of other sources or of other parts nothing is added.
    for part, changed in (("1/2", {}), ("2/2", {"digest": "other"}), ("2/3", {})):
        given = {**record, **changed}
        assert gpu_record.joined(given, gpu_record.part(part), file) == {**given, "parts": [part]}


def test_failures_are_run_again_and_named(tmp_path):
    first = {**RECORD, "failed": 2, "failures": ["tests/a.py::a", "tests/b.py"], "parts": ["1/2"]}
    again = {**RECORD, "passed": 4, "failed": 1, "skipped": 0, "seconds": 2.0, "failures": ["tests/b.py::b"]}
    held = gpu_record.rerun(again, first)
    names = ["tests/a.py::a", "tests/b.py"]
    counts = {"passed": 1004, "failed": 1, "skipped": 3, "seconds": 125.4}
    assert held == {**first, **counts, "failures": ["tests/b.py::b"], "again": names}
    # The other part brings its own failures, and the names of the tests that ran twice are not lost.
    file = tmp_path / "record.json"
    file.write_text(json.dumps(held))
    whole = gpu_record.joined({**RECORD, "failed": 1, "failures": ["tests/c.py::c"]}, gpu_record.part("2/2"), file)
    assert (whole["failures"], whole["again"], whole["failed"]) == (["tests/b.py::b", "tests/c.py::c"], names, 2)
    mended = gpu_record.rerun({**RECORD, "passed": 2}, whole)
    assert "failures" not in mended
    assert (mended["failed"], mended["again"]) == (0, [*names, "tests/b.py::b", "tests/c.py::c"])


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"failures": []}, "names no tests that failed"),
        ({"digest": "other"}, "is of another digest; renew it"),
        ({"device": "NVIDIA H100", "versions": {}}, "is of another device, versions; renew it"),
    ],
)
def test_what_cannot_be_run_again(tmp_path, changed, problem):
    failed = {"failures": ["a"], "failed": 1}
    assert gpu_record.to_run_again(write(tmp_path / "record.json", **failed), RECORD)["failures"] == ["a"]
    with pytest.raises(ValueError, match=problem):
        gpu_record.to_run_again(write(tmp_path / "record.json", **{**failed, **changed}), RECORD)
    with pytest.raises(ValueError, match="names no tests that failed"):
        gpu_record.to_run_again(tmp_path / "none.json", RECORD)


def test_parts_have_every_test_once():
    items = list(range(11))
    assert sorted(x for i in (1, 2, 3) for x in gpu_record.part(f"{i}/3").of(items)) == items
    for text in ("0/2", "3/2", "2", "a/b"):
        with pytest.raises(ValueError, match=r"no part|unpack|literal"):
            gpu_record.part(text)


def test_the_digest_on_the_command_line():
    command = [sys.executable, gpu_record.__file__, "--digest"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == gpu_record.digest()


def test_a_machine_without_a_gpu_records_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    command = [sys.executable, gpu_record.__file__, "--output", str(tmp_path / "record.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "JAX finds no CUDA device, so there is nothing to record" in done.stderr
    assert not list(tmp_path.iterdir())
