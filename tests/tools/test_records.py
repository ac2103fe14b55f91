"""The records of runs on a GPU, and what may be said of them.

A record must be there and tell of no failure. It may be of older sources, which pytest's summary says: a machine
without a GPU cannot renew it. So no document quotes a record's figures, which would outlive it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import gpu_record
import pytest
import sanitize

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: What writes the records, or is one.
SOURCES = re.compile(r"gpu_record|sanitizer_record|sanitize\.py|fuzz\.py|compute-sanitizer|memcheck|racecheck")
FIGURE = re.compile(r"\d[\d,]*(?: \w+)? (?:tests|products|passed|failed|skipped|errors|hazards)\b")
OUTCOME = re.compile(r"\d[\d,]*(?: tests?)? (?:passed|failed|skipped)\b")


def quoted(markdown: str) -> list[str]:
    """Figures of a record: outcomes of tests anywhere, and any count where a record or its script is named."""
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#*] |\|)", markdown):
        found += (FIGURE if SOURCES.search(paragraph) else OUTCOME).findall(" ".join(paragraph.split()))
    return found


@pytest.mark.parametrize("record", [gpu_record, sanitize], ids=lambda module: module.__name__)
def test_a_record_is_there_and_tells_of_no_failure(record):
    assert record.unusable() == ""
    held = json.loads(record.RECORD.read_text())
    for run in held.get("runs", [held]):
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", run["date"])
        assert re.fullmatch(r"[0-9a-f]{64}", run["digest"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_document_quotes_a_record(document):
    assert quoted(document.read_text()) == []


def test_quotes_are_found():
    assert quoted("On an H100 4,975 tests passed.") == ["4,975 tests passed"]
    assert quoted("`tests/fuzz.py` ran\n2,202 random products.") == ["2,202 random products"]
    assert quoted("- one\n- `tests/sanitize.py`: 373 products under two tools") == ["373 products"]
    assert quoted("38 random products are faster.\n\n`tests/fuzz.py` runs products for ten minutes.") == []


CLEAN = {"errors": 0, "products": 9, "output": []}
SANITIZED = {"kernels": [*sanitize.SECTIONS], "tools": dict.fromkeys(sanitize.TOOLS, CLEAN), "date": "2026-11-21"}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"digest": "0" * 64}, "record.json is stale: the sources have changed since the run of 2026-11-21; renew it"),
        ({"kernels": ["gemv", "sm90"]}, "record.json is stale: it lacks bytes, direct, "),
        ({"tools": {"memcheck": CLEAN}}, "record.json is no record: KeyError: 'racecheck'; renew it with"),
        ({"tools": {"memcheck": {**CLEAN, "errors": 2}}}, "record.json: memcheck found 2 errors in 9 products"),
        ({"tools": {"memcheck": {**CLEAN, "products": 0}}}, "record.json: memcheck found 0 errors in 0 products"),
        ({"digest": 5}, "record.json is no record: 'digest' must be a str; renew it with"),
        (None, "record.json is no record: FileNotFoundError"),
    ],
)
def test_a_sanitizer_record(tmp_path, changed, problem):
    record = tmp_path / "record.json"
    if changed is not None:
        run = {**SANITIZED, "digest": gpu_record.digest(), **changed}
        record.write_text(json.dumps({"runs": [run]}))
    assert sanitize.staleness(record).startswith(problem)
    assert bool(sanitize.staleness(record)) == bool(problem)
    assert bool(sanitize.unusable(record)) == (bool(problem) and "stale" not in problem)


def test_a_run_of_some_kernels_keeps_the_others(tmp_path):
    record = tmp_path / "record.json"
    for kernels in (["gemv", "sm90"], ["direct", "sm90"], ["gemv"]):
        record.write_text(json.dumps(sanitize.with_run(record, {**SANITIZED, "kernels": kernels})))
    assert [run["kernels"] for run in json.loads(record.read_text())["runs"]] == [["direct", "sm90"], ["gemv"]]
