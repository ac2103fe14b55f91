"""benchmarks/builds.py: the summary of two builds, and its turns."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks/builds.py"


@pytest.fixture(scope="module")
def builds():
    spec = importlib.util.spec_from_file_location("builds", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Fake:
    """A build whose times are given, a list for each round."""

    device = "a card"

    def __init__(self, turns, name, *rounds):
        self.turns, self.name, self.rounds = turns, name, iter(rounds)

    def time(self, suite):
        self.turns.append((self.name, suite))
        return next(self.rounds)


def test_turns_and_the_least_time(builds):
    turns = []
    old = Fake(turns, "old", [("a", 2.0, True)], [("a", 1.0, False)])
    new = Fake(turns, "new", [("a", 4.0, True)], [("a", 5.0, True)])
    rows = builds.compare([old, new], ["s"], 2)
    assert turns == [("old", "s"), ("new", "s")] * 2
    assert rows == [
        {"suite": "s", "product": "a", "old_us": 1.0, "old_by": "xla", "new_us": 4.0, "new_by": "jaxgemm"},
    ]


def test_summary(builds):
    def row(product, old, new, by):
        return {"suite": "s", "product": product, "old_us": old, "old_by": by, "new_us": new, "new_by": by}

    lines = builds.summary([row("a", 4.0, 1.0, "jaxgemm"), row("b", 1.0, 4.0, "jaxgemm"), row("c", 1.0, 1.0, "xla")])
    assert lines[1].split() == ["s", "3", "1.000", "1", "1", "(2:", "1.000)"]
    assert len(lines) == 3
    assert "0.250 s        b" in lines[2]
