"""The Python of every page runs as it stands, from top to bottom."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import meshes  # asks for the eight devices of the pages' meshes
import numpy as np
import pytest

import jaxgemm

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in [ROOT / "README.md", *ROOT.glob("docs/*.md")])


def blocks(page: str) -> list[tuple[int, str]]:
    """(first line, code) of each block of Python on the page."""
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def given(page: str) -> dict[str, object]:
    """What a page's examples take as given: README's stand-ins for the reader's own arrays."""
    if page != "README.md":
        return {}
    rng = np.random.default_rng(0)
    shapes = {"a": (2, 8, 8), "b": (8, 8), "c": (8, 8), "x": (4, 8), "w": (8, 8), "bias": (8,)}
    shapes |= {"w_gate": (8, 8), "w_up": (8, 8)}
    arrays = {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}
    return {**arrays, "jax": jax, "jnp": jnp, "jaxgemm": jaxgemm}


def run(page: str) -> None:
    """Run the page's Python, statement by statement."""
    namespace = {**given(page), "__name__": "__page__"}
    for line, code in blocks(page):
        # Line numbers are the page's own, so that a failure points into it.
        tree = ast.parse("\n" * (line - 1) + code)
        lines = code.splitlines()
        for statement in tree.body:
            program = compile(ast.Module([statement], []), page, "exec")
            # A line that says that it may be refused may be.
            may_refuse = "UnsupportedError" in lines[statement.end_lineno - line].partition("#")[2]
            with jax.enable_x64(False):
                try:
                    exec(program, namespace)
                except jaxgemm.UnsupportedError:
                    if not may_refuse:
                        raise


@pytest.mark.parametrize("page", PAGES)
def test_page(page, monkeypatch, tmp_path):
    text = (ROOT / page).read_text()
    if "flax" in text:
        pytest.importorskip("flax")
    monkeypatch.chdir(tmp_path)
    if "make_mesh" not in text or len(jax.devices()) >= meshes.COUNT:
        run(page)
        return
    # Too few devices of the default kind for the page's meshes: then on CPU devices, in a process that knows no others.
    code = f"import sys; sys.path.append({str(ROOT / 'tests')!r}); import test_docs; test_docs.run({page!r})"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


#: What pages may name in backticks without a folder, beside what the repository's root has.
FOLDERS = {"docs/sm90.md": ("", "ffi/cuda/sm90")}
FILE = re.compile(r"`([\w./]+\.(?:h|cc|cu|cuh|cu\.in|inc|py|md|json))`")


@pytest.mark.parametrize("page", FOLDERS)
def test_files_that_are_named_exist(page):
    named = FILE.findall((ROOT / page).read_text())
    assert named
    missing = [name for name in named if not any((ROOT / folder / name).is_file() for folder in FOLDERS[page])]
    assert not missing


def test_names_of_the_engine_are_its_own():
    """Every name in backticks on the engine's page is one of the sources."""
    text = re.sub(r"```.*?```", "", (ROOT / "docs/sm90.md").read_text(), flags=re.S)
    named = {word for code in re.findall(r"`([\w:]+)`", text) for word in code.split("::")}
    sources = [p for p in (ROOT / "ffi").rglob("*") if p.suffix in (".h", ".cc", ".cu", ".cuh")]
    words = {word for p in sources for word in re.findall(r"\w+", p.read_text())}
    assert len(named) > 20
    assert not named - words
