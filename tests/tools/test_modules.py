"""Where a reader starts: few modules at the top of the package, and none that needs one that needs it."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import jaxgemm

PACKAGE = Path(jaxgemm.__file__).resolve().parent
TOP = 15  # modules that jaxgemm/ may have, besides its folders


def sources() -> dict[str, str]:
    """The text of each module by its name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def needs(modules: dict[str, str]) -> dict[str, set[str]]:
    """What each module imports of the others, in functions too."""
    found: dict[str, set[str]] = {}
    for name, text in modules.items():
        own = found.setdefault(name, set())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                own.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name} has a relative import"
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                own.update(full if full in modules else node.module for full in whole)
        own &= modules.keys()
    return found


def test_the_top_of_the_package():
    assert len([*PACKAGE.glob("*.py")]) <= TOP


def test_every_folder_says_what_it_is_for():
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_no_circle_of_imports():
    [*TopologicalSorter(needs(sources())).static_order()]


def test_circles_are_found():
    circle = {"a": "import b", "b": "def f():\n    from c.d import e", "c.d": "from a import x", "c": ""}
    assert needs(circle) == {"a": {"b"}, "b": {"c.d"}, "c.d": {"a"}, "c": set()}
    with pytest.raises(CycleError):
        [*TopologicalSorter(needs(circle)).static_order()]
    assert needs({"a": "from c import d, e", "c": "", "c.d": ""})["a"] == {"c", "c.d"}
