"""benchmarks/builds.py: the summary of two builds, and its turns."""

import importlib.util
from pathlib import Path
from typing import ClassVar

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/builds.py"


@pytest.fixture(scope="module")
def builds():
    spec = importlib.util.spec_from_file_location("builds", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Fake:
    """A build whose times are given, a list for each round."""

    about: ClassVar[dict[str, str]] = {}

    def __init__(self, turns, name, ours, *rounds):
        self.turns, self.name, self.rounds = turns, name, iter(rounds)
        self.all, self.ours = [("s", "a"), ("s", "b")], ours

    def compile(self, products):
        self.turns.append((self.name, products))

    def time(self, suite):
        self.turns.append((self.name, suite))
        return next(self.rounds)


def test_turns_and_the_least_time(builds):
    turns = []
    old = Fake(turns, "old", set(), [("a", 2.0)], [("a", 1.0)])
    new = Fake(turns, "new", {("s", "a")}, [("a", 4.0)], [("a", 5.0)])
    rows = builds.compare([old, new], ["s"], 2)
    assert turns == [("old", [("s", "a")]), ("new", [("s", "a")]), *[("old", "s"), ("new", "s")] * 2]
    assert rows == [
        {"suite": "s", "product": "a", "old_by": "xla", "new_by": "jaxgemm", "old_us": 1.0, "new_us": 4.0},
        {"suite": "s", "product": "b", "old_by": "xla", "new_by": "xla"},
    ]
    assert [builds.ratio(row) for row in rows] == [0.25, 1.0]


def test_summary(builds):
    def row(product, old, new):
        times = {"old_us": old, "new_us": new} if old else {}
        return {"suite": "s", "product": product, "old_by": "xla", "new_by": "jaxgemm", **times}

    lines = builds.summary([row("a", 4.0, 1.0), row("b", 1.0, 4.0), row("c", None, None)])
    assert lines[1].split() == ["s", "3", "1.000", "1", "1", "2", "1.000"]
    assert len(lines) == 3
    assert "0.250 s        b" in lines[2]
