"""Files and functions that a reader can take in: at most so many lines each."""

from __future__ import annotations

import ast
from pathlib import Path

import braces
import pytest

ROOT = Path(__file__).parents[2]
FILE, FUNCTION = 400, 60
SUFFIXES = {".py", ".cc", ".cu", ".h", ".cuh", ".inc", ".in"}
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
    counted = {path: (functions if path.suffix == ".py" else braces.functions)(path.read_text()) for path in FILES}
    assert sum(len(found) for path, found in counted.items() if path.suffix != ".py") > 800
    long = {path.name: [f for f in found if f[1] > FUNCTION] for path, found in counted.items()}
    assert {name: found for name, found in long.items() if found} == {}


def test_lines_are_counted():
    source = 'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n\n\nasync def g(\n    x,\n):\n    return x\n'
    assert functions(source) == [("f", 2), ("g", 4)]


SOURCE = """
#define TWICE(x) \\
  x x
#if defined(A)  // {
extern "C" {
#endif
namespace a {
// A comment with a brace: {
constexpr char kOpen = '{', *kText = "}{\\"";
constexpr int kMillion = 1'000'000, kList[] = {1, f(2)};
template <typename T, class U = std::pair<T, T>>
struct alignas(16) S : public Base<T> {
  S(int x, U u = {})
      : x_{x}, u_(u) {
    y = [] { return 1; }();
  }
  ~S() {}
  bool operator==(const S& other) const {
    for (int i = 0; i < 3; ++i) {
    }
    return true;
  }
  enum class E { kOne, kTwo };
  int x_{1}, y = {2};
};
ROWS(ROW)
struct Last {};
template <typename T>
__global__ void __launch_bounds__(kThreads * f(2), 2) kernel(const __grid_constant__ S<T> p)
{
  struct Local { void inner() {} } local;
}
auto lambda = [](auto x) {
  return x;
};
auto trailing(int x) -> std::vector<int> { return {x}; }
int declared(int);
int value{f(3)};
}
#if defined(A)
}
#endif
"""


def test_functions_are_found_by_their_braces():
    assert braces.functions(SOURCE) == [
        ("TWICE", 2),
        ("S", 4),
        ("~S", 1),
        ("operator==", 5),
        ("kernel", 5),
        ("lambda", 3),
        ("trailing", 1),
    ]


@pytest.mark.parametrize("source", ["void f() {", "}", "void f() { g(; }"])
def test_braces_that_do_not_match(source):
    with pytest.raises(ValueError, match=r"brace|parenthes"):
        braces.functions(source)
