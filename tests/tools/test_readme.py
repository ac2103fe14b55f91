"""README fits on a page, and the tables of README and docs/ say what the kernel table and the result files do."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean

import pytest

from jaxgemm.measure import report

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
WORDS = 800  # that README may have


def words(markdown: str) -> list[str]:
    """What a reader sees: code and tables too, but neither addresses of links nor marks."""
    shown = re.sub(r"<!--.*?-->", " ", markdown, flags=re.S)
    shown = re.sub(r"\]\([^)]*\)", "] ", shown)
    return [word for word in shown.split() if re.search(r"\w", word)]


def test_a_page():
    assert words("[a b](http://c/d) | `e` | <!-- f -->\n|---|\n# g-h") == ["[a", "b]", "`e`", "g-h"]
    assert len(words(README.read_text())) <= WORDS
    assert len(words((ROOT / "CHANGELOG.md").read_text())) <= 400


#: That all pages together may have, but for tables that scripts write.
ALL_WORDS = 23_000
#: Pages, or parts of pages, whose tables scripts write.
GENERATED = ("docs/auto.md", "docs/kernels.md", "docs/ladder.md", "docs/performance.md", "docs/precision.md")


def test_all_pages():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("tests/*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("docs/**/*.md")]
    total = 0
    for page in pages:
        lines = page.read_text().splitlines()
        if page.relative_to(ROOT).as_posix() in GENERATED:
            lines = [line for line in lines if not line.startswith("|")]
        total += len(words("\n".join(lines)))
    assert total <= ALL_WORDS


def test_licence():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    (file,) = project["license-files"]
    text = (ROOT / file).read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert f"]({file})" in README.read_text()


def test_kernel_table(monkeypatch):
    """``python benchmarks/kernel_docs.py`` puts it right."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    docs = importlib.import_module("kernel_docs")
    page = docs.PAGE.read_text()
    assert docs.kernel_table() in page
    assert docs.updated(page) == page


# --- Should I use it? -----------------------------------------------------------------------------------------

RESULTS = ROOT / "benchmarks/results/nvidia-h200"
#: Suites of bf16 products of all sizes, most of them drawn at random.
DRAWN = ("survey", "unseen", "small")


class Timed:
    """A product that a result file says of how fast ``auto`` was."""

    def __init__(self, row: dict) -> None:
        m, n, k, batch, layout = re.match(r"(\d+)x(\d+)x(\d+)(?:@(\d+))? (\w\w)", row["problem"]).groups()
        self.m, self.n, self.k = int(m), int(n), int(k)
        #: As multiples of what a cube of 1024 takes.
        self.size = self.m * self.n * self.k * int(batch or 1) / 1024**3
        rows = (self.k if layout[0] == "N" else self.m, self.n if layout[1] == "N" else self.k, self.n)
        self.types = row["problem"].split()[2]
        vector = 4 if self.types == "f32" else 8
        self.aligned = all(extent % vector == 0 for extent in rows)
        self.over_best, self.over_default = row["ratio"], row["xla"]["default"]["device_us"] / row["us"]


CASES: tuple[tuple[str, tuple[str, ...], str, Callable[[Timed], bool]], ...] = (
    ("bf16, unaligned rows", DRAWN, "auto", lambda p: not p.aligned),
    ("bf16, aligned, below 512³", DRAWN, "auto", lambda p: p.aligned and p.size < 1 / 8),
    ("bf16, aligned, from 512³ on", DRAWN, "auto", lambda p: p.aligned and p.size >= 1 / 8),
    ('fp32, "highest", m, n ≥ 512', ("fp32",), "auto", lambda p: min(p.m, p.n) >= 512),
    ('fp32, "highest", m or n < 512', ("fp32",), "auto", lambda p: min(p.m, p.n) < 512),
    ("int8", ("int8",), "auto", lambda p: p.types == "s8"),
    ("uint8", ("int8",), "auto", lambda p: p.types == "u8"),
    ("fp8", ("fp8",), "auto", lambda _: True),
)


class Grouped:
    """A product of groups of rows, or a gradient of it, likewise."""

    def __init__(self, us: dict[str, float]) -> None:
        ours, default, cublas = (us[path] for path in ("jaxgemm auto", "XLA default", "XLA cublas"))
        self.over_best, self.over_default = min(default, cublas) / ours, default / ours


#: With their suites.
GROUPED = (
    ("groups, bf16, over `lax.ragged_dot`", "grouped"),
    ("groups, fp32, over `lax.ragged_dot`", "grouped_fp32"),
)


def grouped(suite: str) -> list[Grouped]:
    times: dict[str, dict[str, float]] = {}
    for row in report.load(RESULTS / f"{suite}.json")["rows"]:
        times.setdefault(row["problem"], {})[row["path"]] = row["us"]
    return [Grouped(us) for us in times.values()]


def timed(suites: tuple[str, ...], kernel: str = "auto") -> Iterator[Timed]:
    for suite in suites:
        for row in report.load(RESULTS / f"{suite}.json")["rows"]:
            if row["kernel"] == kernel and row.get("ratio"):
                yield Timed(row)


def speed_table() -> str:
    """The table as README has it: geometric means of XLA's time over ours, and the lowest."""
    lines = ["| case | products | over `jnp.dot` | over XLA's best | lowest | suites |", "|---|--:|--:|--:|--:|---|"]
    cases = [
        (name, suites, [p for p in timed(suites, kernel) if belongs(p)]) for name, suites, kernel, belongs in CASES
    ]
    cases += [(name, (suite,), grouped(suite)) for name, suite in GROUPED]
    for name, suites, found in cases:
        default, best = (geometric_mean(x) for x in zip(*((p.over_default, p.over_best) for p in found), strict=True))
        lowest = min(p.over_best for p in found)
        files = ", ".join(suites)
        lines.append(f"| {name} | {len(found)} | {default:.2f} | {best:.2f} | {lowest:.2f} | {files} |")
    return "\n".join(lines)


def test_cases_are_apart():
    for product in timed(DRAWN):
        assert sum(belongs(product) for _, suites, _, belongs in CASES if suites == DRAWN) == 1


def test_speed_table():
    if speed_table() not in README.read_text():
        pytest.fail(f"README.md does not say what {RESULTS.name}'s files do; it should be\n\n{speed_table()}")


# --- Overlapped products --------------------------------------------------------------------------------------


def overlap_table() -> str:
    """The table as docs/sharding.md has it: of the layers that both were measured in, without options of XLA."""
    functions = ("all_gather_matmul", "matmul_reduce_scatter")
    lines = ["| devices | kernel | `all_gather_matmul` | `matmul_reduce_scatter` |", "|---|---|--:|--:|"]
    content = report.load(RESULTS / "parallel.json")
    for source, about in content["sources"].items():
        rows = [row for row in content["rows"] if row["source"] == source and not row["xla"]]
        ratios = {(row["case"], row["form"]): row.get("ratio") for row in rows}
        if {case for case, _ in ratios}.issuperset(functions):
            for kernel in ("auto", "sm90"):
                cells = " | ".join(f"{ratios[f, f'overlapped {kernel}']:.2f}" for f in functions)
                lines.append(f"| {about['devices']} H200 | `{kernel}` | {cells} |")
    return "\n".join(lines)


def test_overlap_table():
    if overlap_table() not in (ROOT / "docs/sharding.md").read_text():
        pytest.fail(f"docs/sharding.md does not say what the result files do; it should be\n\n{overlap_table()}")


# --- Builds ---------------------------------------------------------------------------------------------------


def test_build_times(monkeypatch):
    """CONTRIBUTING.md has what ``python benchmarks/build_times.py`` measured, and no other figures."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    build_times = importlib.import_module("build_times")
    page, file = (ROOT / "CONTRIBUTING.md").read_text(), RESULTS.parent / "cpu/build_times.json"
    found = re.search(r"^\| a build for .*?(?=\n\n)", page, re.M | re.S)
    assert (found[0] if found else "") == (build_times.table(report.load(file)) if file.exists() else "")


def test_build_times_are_told_in_minutes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    row = {"for": "one chip", "seconds": 330.0, "processor_seconds": 600.0, "bytes": 8_500_000}
    *_, last = importlib.import_module("build_times").table({"cores": 2, "rows": [row]}).splitlines()
    assert last == "| one chip | 5.5 | 10.0 | 8.5 |"
