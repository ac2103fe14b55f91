"""Names of JAX's that are not public: in one module, each with what it stands in for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jaxgemm

PACKAGE = Path(jaxgemm.__file__).resolve().parent
HOME = "_jax_private.py"
SOURCES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def private(tree: ast.AST) -> list[str]:
    """Imports from JAX's, flax's or jaxlib's own modules, and attributes of that kind."""
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [f"?.{node.attr}"] if node.attr == "_src" else []
        for name in names:
            first, *parts = name.split(".")
            if first in ("jax", "jaxlib", "flax", "?") and any(part.startswith("_") for part in parts):
                found.append(name)
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_one_module_has_them(source):
    found = private(ast.parse((PACKAGE / source).read_text()))
    assert bool(found) == (source == HOME), found


def test_each_says_what_it_stands_in_for():
    functions = [n for n in ast.parse((PACKAGE / HOME).read_text()).body if isinstance(n, ast.FunctionDef)]
    assert functions
    for function in functions:
        assert "Stands in for: " in (ast.get_docstring(function) or ""), function.name


def test_the_search_finds_them():
    found = ["import jax._src.core", "from jax import _src", "from jax._src.lax import lax", "jax._src.core"]
    assert len(private(ast.parse("\n".join([*found, "from jax.extend import core"])))) == 4
