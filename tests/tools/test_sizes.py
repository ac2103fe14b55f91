"""Files and functions that a reader can take in: at most so many lines each."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE, FUNCTION = 400, 60
SUFFIXES = {".py", ".cc", ".cu", ".h", ".cuh"}
FILES = sorted(x for folder in ("ffi", "jaxgemm", "tests") for x in (ROOT / folder).rglob("*") if x.suffix in SUFFIXES)


def functions(source: str) -> list[tuple[str, int]]:
    """How many lines each function of a Python file has besides its docstring."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            lines = node.end_lineno - node.lineno + 1
            found.append((node.name, lines - (text.end_lineno - text.lineno + 1 if text else 0)))
    return found


def test_files():
    lines = {path.relative_to(ROOT).as_posix(): path.read_text().count("\n") for path in FILES}
    assert len(lines) > 100
    assert {name: count for name, count in lines.items() if count > FILE} == {}


def test_functions():
    sources = [path for path in FILES if path.suffix == ".py"]
    long = {path.name: [f for f in functions(path.read_text()) if f[1] > FUNCTION] for path in sources}
    assert {name: found for name, found in long.items() if found} == {}


def test_lines_are_counted():
    source = 'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n\n\nasync def g(\n    x,\n):\n    return x\n'
    assert functions(source) == [("f", 2), ("g", 4)]
