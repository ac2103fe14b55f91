"""The Python of every page runs as it stands, from top to bottom, and every link leads somewhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import meshes  # asks for the eight devices of the pages' meshes
import pytest

ROOT = Path(__file__).resolve().parents[2]
MAPS = ("tests/README.md", "benchmarks/README.md")
PAGES = sorted([*MAPS, *(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])])


def blocks(page: str) -> list[tuple[int, str]]:
    """(first line, code) of each block of Python on the page."""
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def run(page: str) -> None:
    """Run the page's Python."""
    namespace = {"__name__": "__page__"}
    with jax.enable_x64(False):
        for line, code in blocks(page):
            # Line numbers are the page's own, so that a failure points into it.
            exec(compile("\n" * (line - 1) + code, page, "exec"), namespace)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_page(page, monkeypatch, tmp_path):
    text = "".join(code for _, code in blocks(page))
    if "from flax" in text:
        pytest.importorskip("flax")
    monkeypatch.chdir(tmp_path)
    if "make_mesh" not in text or len(jax.devices()) >= meshes.COUNT:
        run(page)
        return
    # Too few devices of the default kind for the page's meshes: then on CPU devices, in a process that knows no others.
    folders = [str(Path(module).parent) for module in (__file__, meshes.__file__)]
    code = f"import sys; sys.path += {folders!r}; import test_docs; test_docs.run({page!r})"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


#: [text](target) and ![text](target), where the text may hold a code span or a line's end.
LINK = re.compile(r"\]\(([^()\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    file = ROOT / page
    text = re.sub(r"^```.*?^```$", "", file.read_text(), flags=re.M | re.S)
    for target in LINK.findall(text):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        linked = file.parent / name if name else file
        assert linked.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page} links to {target}"


def test_links_are_found():
    assert LINK.findall("[a `b`](c.md#d), ![e\nf](g.svg)") == ["c.md#d", "g.svg"]
    assert "should-i-use-it" in anchors(ROOT / "README.md")


#: What pages may name in backticks without a folder, beside what the repository's root has.
FOLDERS = {"docs/sm90.md": ("", "ffi/cuda/sm90"), **{page: ("", page.partition("/")[0]) for page in MAPS}}
FILE = re.compile(r"`([\w./]+\.(?:h|cc|cu|cuh|cu\.in|inc|py|md|json))`")


@pytest.mark.parametrize("page", FOLDERS)
def test_files_that_are_named_exist(page):
    named = FILE.findall((ROOT / page).read_text())
    assert named
    missing = [name for name in named if not any((ROOT / folder / name).is_file() for folder in FOLDERS[page])]
    assert not missing


@pytest.mark.parametrize("page", MAPS)
def test_a_map_is_of_the_whole_folder(page):
    """Every file and folder beside it has a place on it."""
    folder = (ROOT / page).parent
    stands = {p.name + "/" * p.is_dir() for p in folder.iterdir() if p.name not in ("README.md", "__pycache__")}
    assert stands == set(re.findall(r"`([\w.]+(?:/|\.py|\.json))`", (ROOT / page).read_text())) - {"docs/"}


def test_scripts_stand_apart_from_what_they_import():
    for path in (ROOT / "benchmarks").rglob("*.py"):
        assert ('if __name__ == "__main__":' in path.read_text()) == (path.parent.name == "benchmarks"), path


def test_names_of_the_engine_are_its_own():
    """Every name in backticks on the engine's page is one of the sources."""
    text = re.sub(r"```.*?```", "", (ROOT / "docs/sm90.md").read_text(), flags=re.S)
    named = {word for code in re.findall(r"`([\w:]+)`", text) for word in code.split("::")}
    sources = [p for p in (ROOT / "ffi").rglob("*") if p.suffix in (".h", ".cc", ".cu", ".cuh")]
    words = {word for p in sources for word in re.findall(r"\w+", p.read_text())}
    assert len(named) > 20
    assert not named - words


def test_every_layer_of_flax_says_what_it_adds():
    pytest.importorskip("flax")
    layers = {"linen": ("Dense", "DenseGeneral", "Einsum"), "nnx": ("Linear", "LinearGeneral", "Einsum")}
    for folder, names in layers.items():
        module = importlib.import_module(f"jaxgemm.flax.{folder}")
        for name in names:
            assert "``activation`` and ``kernel``" in getattr(module, name).__doc__
