"""The record of the last run on a GPU: what it holds, and when it counts as stale."""

import json
import re
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


@pytest.fixture
def tree(tmp_path):
    """A source tree of a few files."""
    for name in ("CMakeLists.txt", "ffi/handler.cc", "ffi/cuda/naive.cu", "jaxgemm/api.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {name}\n")
    return tmp_path


def write(path, **changed):
    path.write_text(json.dumps({**RECORD, **changed}))
    return path


def test_the_record_in_the_repository_is_one():
    if gpu_record.RECORD.exists():
        record = json.loads(gpu_record.RECORD.read_text())
        assert gpu_record.invalid(record) == ""
        assert record["failed"] == 0
        assert record["passed"] > 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", record["date"])
        assert re.fullmatch(r"[0-9a-f]{64}", record["digest"])


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
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "not an object"),
        ("{}", "'device' must be a str, got None"),
        (json.dumps({**RECORD, "passed": "1000"}), "'passed' must be a int, got '1000'"),
        (json.dumps({**RECORD, "versions": {"jax": "1"}}), "versions lack python, jaxlib, jaxgemm, cuda"),
    ],
)
def test_a_broken_record(tree, text, problem):
    record = tree / "record.json"
    record.write_text(text)
    assert problem in gpu_record.staleness(record, tree)


def test_counting_outcomes():
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
    assert counter.counts() == {"passed": 1, "failed": 2, "skipped": 2}


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
