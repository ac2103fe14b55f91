"""The Python of every page runs as it stands, from top to bottom, and every link leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import meshes  # asks for the eight devices of the pages' meshes
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


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
