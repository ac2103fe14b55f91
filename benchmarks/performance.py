"""docs/performance.md, from result files: python benchmarks/performance.py

Writes the page, and draws docs/bf16.svg and docs/fp32.svg, of the files in benchmarks/results. With FILEs, of run.py's
suites, it prints their tables instead; --plot FILE.svg draws them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import jaxgemm
from jaxgemm.measure import report
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE), str(_HERE / "support")]

import builds  # noqa: E402
from charts import chart  # noqa: E402

RESULTS, DOCS = _HERE / "results", _HERE.parent / "docs"
PAGE = DOCS / "performance.md"
_H200 = RESULTS / "nvidia-h200"
#: The suites' files of which the rows of ``auto`` are drawn, by the chart's name.
PLOTS = {name: _H200 / f"{name}.json" for name in ("bf16", "fp32")}
_FORMATS = (".svg", ".png", ".pdf")

Row = dict[str, Any]

#: What the suites are, in the page's order.
SUITES = {
    "bf16": "34 products in bf16: squares from 256 to 16384, layers of a large transformer, long sums, narrow results.",
    "16bit": "Products in 16 bits that bf16 leaves out: layouts, batches, a bias and gelu, f16.",
    "fp32": "Products in fp32 at precision HIGHEST: squares, layouts, batches, few rows, small ones and long sums.",
    "int8": "Products of int8 and uint8: weights row-major (NN) and along k (NT), gradients (TN), few and many rows.",
    "fp8": "Products of e4m3fn with results in bf16: weights row-major and along k, few and many rows.",
    "unseen": "20 products, chosen when no cost model was fitted to them; one has since been fitted to 3019×3023×3037.",
    "survey": "132 products drawn at random, twelve of each of eleven kinds; rules have been read off these since.",
    "small": "72 random products of a few microseconds, batches and epilogues among them.",
    "pitches": "60 random products: rows of some operands begin at multiples of 16 bytes, rows of others anywhere.",
    "flat": "24 large flat random results, where `sm90` is weakest; nothing is fitted to them.",
}
COLUMNS = ("suite", "kernel", "products", "over XLA's best", "over `jnp.dot`", "lowest", "at", "date, commit")
_HEAD = """<!-- python benchmarks/performance.py writes this page from the files in benchmarks/results -->
# Performance

Device time on the GPU: XLA's over ours in the same run, above 1 ours is faster. XLA has two paths, its default one and
cuBLAS with XLA's own generated kernels switched off; `jnp.dot` runs the default one, and ours is held to the faster of
both. Means are geometric. A product is written m×n×k@batch LAYOUT type; layout NT reads b as its transpose. `auto` is
what `jaxgemm.gemm` runs unless told otherwise; others are kernels by name, also where `auto` would not take them. The
last column has the date, and the commit if it is known. Each result file says with which card, clocks, versions and
sources it was measured.

What was tried, and what came of it, is in [experiments](experiments/README.md); the ladder has a
[page of its own](ladder.md)."""


# --- Suites ---


def lines(rows: Iterable[Row], name: str, when: str) -> list[tuple[str, ...]]:
    """The table's lines of a suite, one for each kernel."""
    timed: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("ratio"):
            timed.setdefault(row["kernel"], []).append(row)
    return [(name, kernel, *_figures(found), when) for kernel, found in timed.items()]


def _figures(rows: Sequence[Row]) -> tuple[str, ...]:
    """How many products, both means, and the lowest ratio and its product."""
    lowest = min(rows, key=lambda row: float(row["ratio"]))
    faster = geometric_mean([row["ratio"] for row in rows])
    against = [us / row["us"] for row in rows if (us := row["xla"]["default"].get("device_us"))]
    default = f"{geometric_mean(against):.2f}" if len(against) == len(rows) else "-"
    return str(len(rows)), f"{faster:.2f}", default, f"{lowest['ratio']:.2f}", lowest["problem"]


def when(about: Row) -> str:
    """Date and commit of a result."""
    commit = str(about["commit"])
    return str(about["date"])[:10] + ("" if commit in ("", "unknown") else f", {commit[:7]}")


def suites(folder: Path) -> list[tuple[str, ...]]:
    """The table of a device: every suite that there is a file of, with a link to it: by ``auto``, or by name if that
    was not timed.
    """
    found: list[tuple[str, ...]] = []
    for name in SUITES:
        file = folder / f"{name}.json"
        if file.exists():
            content = report.load(file)
            rows = [row for row in content["rows"] if row["kernel"] == "auto"] or content["rows"]
            found += lines(rows, _link(name, file), when(content))
    return found


def _link(name: str, file: Path) -> str:
    return f"[{name}](../benchmarks/results/{file.relative_to(RESULTS).as_posix()})"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


# --- The other tables ---


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1e4 else f"{value:#.4g}".rstrip(".")


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


#: Paths of kernels by name, which the page leaves out.
_BY_NAME = tuple(f"jaxgemm {kernel.name}" for kernel in jaxgemm.kernels())


def of_paths(rows: Sequence[Row]) -> str:
    """Programs by the paths that compute them: µs of each, and XLA's faster path over `auto`."""
    paths = [path for path in dict.fromkeys(row["path"] for row in rows) if not path.startswith(_BY_NAME)]
    programs: dict[str, dict[str, Row]] = {}
    for row in rows:
        programs.setdefault(row["problem"], {})[row["path"]] = row
    table = [
        [name, *(_us(found[path].get("us")) for path in paths), _ratio(found["jaxgemm auto"]["ratio"])]
        for name, found in programs.items()
    ]
    return markdown(["", *(f"{path}, µs" for path in paths), "XLA's faster / auto"], table)


def grouped(content: Row) -> str:
    """Products of groups: ours beside XLA's faster path, torch's, and reading the weights alone."""
    found: dict[str, dict[str, Row]] = {}
    for row in content["rows"]:
        found.setdefault(row["problem"], {})[row["path"]] = row
    table = []
    for name, of in found.items():
        us = {path: row["us"] for path, row in of.items() if row.get("us")}
        ours = us.get("jaxgemm auto")
        xla = min((time for path, time in us.items() if path.startswith("XLA")), default=None)
        others = [xla, *(us.get(path) for path in ("jaxgemm two products", "torch", "reading weights"))]
        ratios = [time / ours if time and ours else None for time in others]
        speed = f"{of['jaxgemm auto']['tflops']:.0f}" if ours else "-"
        table.append((name, _us(ours), speed, *map(_us, others), *map(_ratio, ratios)))
    names = ("XLA's faster", "two of ours", "torch", "reading")
    columns = ("m × n × k", "`auto`, µs", "TFLOP/s", *(f"{x}, µs" for x in names), *(f"{x} / `auto`" for x in names))
    return markdown(columns, table)


def chains(content: Row) -> str:
    """Chains of products in one program."""
    columns = ("chain", "path", "wall, µs", "results kept in place, µs", "kernels, µs", "launches")
    table = [
        (
            row["source"],
            row["path"],
            *(_us(row[x]) for x in ("wall_us", "kept_wall_us", "device_us")),
            f"{row['launches']}",
        )
        for row in content["rows"]
    ]
    return markdown(columns, table)


def parallel(content: Row) -> str:
    """Layers over several devices, but for what is only a part of them; sets of XLA options, if any, by letters."""
    rows = [row for row in content["rows"] if not row["is_part"] and not row["message"]]
    options = list(dict.fromkeys(_options(row) for row in rows if row["xla"]))
    suffixes = {"": "", **{text: f", XLA options {chr(ord('A') + i)}" for i, text in enumerate(options)}}
    legend = [f"{suffixes[text].removeprefix(', ')}: {text}." for text in options]
    layers: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        line = row["case"], row["form"] + suffixes[_options(row)], _us(row["us"]), _ratio(row["ratio"])
        layers.setdefault(row["source"], []).append(line)
    columns = ("case", "form", "µs", "jnp.dot's least / this")
    return "\n\n".join([*(f"### {name}\n\n{markdown(columns, table)}" for name, table in layers.items()), *legend])


def _options(row: Row) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in row["xla"].items())


def both_builds(content: Row) -> str:
    """Two builds in turn: a line for each product."""
    table = [
        (row["product"], _us(row["old_us"]), _us(row["new_us"]), _ratio(builds.ratio(row))) for row in content["rows"]
    ]
    return markdown(("product", "old, µs", "new, µs", "old / new"), table)


def beside_torch(content: Row) -> str:
    """Products of 8 bits beside torch's."""
    found: dict[str, dict[str, Row]] = {}
    for row in content["rows"]:
        found.setdefault(row["problem"], {})[row["path"]] = row
    table = [
        (name, _us(of["jaxgemm auto"].get("us")), _us(of["torch"].get("us")), _ratio(of["jaxgemm auto"]["ratio"]))
        for name, of in found.items()
    ]
    return markdown(("product", "`auto`, µs", "torch, µs", "torch / `auto`"), table)


def floors(content: Row) -> str:
    """Products beside what moves their bytes and does nothing else."""
    names = list(content["rows"][0]["us"])
    table = [
        (
            row["problem"],
            *(_us(row["us"][x]) for x in names),
            _ratio(row["ratios"]["move"]),
            _ratio(row["ratios"]["auto"]),
        )
        for row in content["rows"]
    ]
    return markdown(("product", *(f"{x}, µs" for x in names), "XLA's faster / move", "/ auto"), table)


def tracing(content: Row) -> str:
    """What tracing costs."""
    table = [
        (row["form"], row["against"], _ratio(row["make_jaxpr_ratio"]), _ratio(row["jit.trace_ratio"]))
        for row in content["rows"]
    ]
    return markdown(("form", "beside", "make_jaxpr", "jit.trace"), table)


#: Title, file, what it says, and what makes its table.
TABLES: tuple[tuple[str, Path, str, Callable[[Row], str]], ...] = (
    (
        "Gated layers",
        _H200 / "gated.json",
        "silu(x · w_gate) · (x · w_up) by `gated_gemm`, and as it is written in jnp; m × n × k of either product.",
        lambda content: of_paths(content["rows"]),
    ),
    (
        "What models write",
        _H200 / "programs.json",
        "Contractions of several axes, biases and residuals, and a decoder's layer with its logits as it is and by\n"
        "`jaxgemm.override`.",
        lambda content: of_paths(content["rows"]),
    ),
    (
        "Chains of products in one program",
        _H200 / "chains.json",
        "Fifty products of 256³ in fp32 and in bf16, and two hundred of mixed sizes in bf16. Where results move from\n"
        "call to call, XLA updates the graph that it captured before each call; results kept in place spare it that.",
        chains,
    ),
    (
        "Several devices",
        _H200 / "parallel.json",
        "The two products of an MLP and the gelu between them over a mesh: tokens, and a token's features before,\n"
        "between and after; bf16, forward and backward. `all_gather_matmul` and `matmul_reduce_scatter` are one of\n"
        "the products and its collective, forward only; overlapped forms exchange chunks beside products. Wall time\n"
        "of calls in a row. With 28672 features `jaxgemm auto` leaves all products to XLA and gave the bits of\n"
        "jnp.dot: its ratios show how far apart the same products come out. 28674 features are no multiple of 8, nor\n"
        "are the 14337 of a device: rows are unaligned.",
        parallel,
    ),
    (
        "What few bytes allow",
        _H200 / "floors.json",
        "`move` is a kernel that reads the operands and writes as many bytes as the result has, and does nothing else.",
        floors,
    ),
    (
        "Sums of planes",
        _H200 / "promotion.json",
        "fp32 in planes by `sm90`, of two builds in turn on one card. The new one adds up\n"
        "sums over 64 of k in registers, the old one leaves them to the tensor core.",
        both_builds,
    ),
    (
        "8 bits beside torch",
        _H200 / "torch.json",
        "Weights as JAX stores them, (k, n); torch's, for `_scaled_mm` and `_int_mm`, lie along k.",
        beside_torch,
    ),
    (
        "Tracing",
        RESULTS / "cpu/tracing.json",
        "Processor time to trace a model of 500 products, over jnp's.",
        tracing,
    ),
)


#: Title, suite and text.
_GROUPED = (
    (
        "Products of groups",
        "grouped",
        "Rows in groups, each times its group's weights (forward), and both gradients, by `jaxgemm.ragged_dot`;\n"
        "beside `lax.ragged_dot` and `torch._grouped_mm`. Gated ones are by `ragged_gated`, beside two grouped\n"
        "products of ours and what follows them. Unequal groups are cut at random. Reading is of the rows, and of\n"
        "the weights of groups that have rows, without any product.",
    ),
    ("Products of groups in fp32", "grouped_fp32", "Likewise, beside `lax.ragged_dot`."),
)


def _grouped_tables() -> list[tuple[str, Path, str, Callable[[Row], str]]]:
    """Of each suite of groups one for each device that it has been measured on."""
    return [
        (title, file, text, grouped)
        for title, suite, text in _GROUPED
        for file in sorted(RESULTS.glob(f"nvidia-*/{suite}.json"))
    ]


def page() -> str:
    """docs/performance.md."""
    sections = [_HEAD]
    measured = {name: text for name, text in SUITES.items() if any(RESULTS.glob(f"nvidia-*/{name}.json"))}
    listed = [f"- {name}: {text}" for name, text in measured.items()]
    sections.append("## Products\n\n" + "\n".join(listed))
    for folder in sorted(file.parent for file in RESULTS.glob("nvidia-*/unseen.json")):
        device = report.load(folder / "unseen.json")["device"]
        assert slug(device) == folder.name
        sections.append(f"### {device}\n\n{markdown(COLUMNS, suites(folder))}")
    charts = "\n\n".join(
        f"![{name}: speed over XLA's faster path, and share of the roofline, by product]({name}.svg)" for name in PLOTS
    )
    sections.append(charts)
    for title, file, text, table in (*TABLES, *_grouped_tables()):
        content = report.load(file)
        sources = content.get("sources", {"": content})
        dates = "; ".join(f"{name}: {when(about)}".removeprefix(": ") for name, about in sources.items())
        devices = {about["device"] for about in sources.values()} - {"unknown"}
        origin = f"{_link(file.name, file)}, {', '.join([*devices, dates])}."
        sections.append(f"## {title}\n\n{text}\n{origin}\n\n{table(content)}")
    return "\n\n".join(sections) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="result files to show instead")
    parser.add_argument("--plot", type=Path, help=f"draw the first FILE; ends in one of {', '.join(_FORMATS)}")
    parser.add_argument("--kernel", default="auto", help="whose rows to draw (default auto)")
    options = parser.parse_args(arguments)
    if options.plot and (options.plot.suffix not in _FORMATS or not options.files):
        parser.error(f"--plot needs a FILE, and a name that ends in one of {', '.join(_FORMATS)}")
    if not options.files:
        PAGE.write_text(page())
        for name, file in PLOTS.items():
            chart(report.load(file), "auto", DOCS / f"{name}.svg")
        return 0
    try:
        contents = [report.load(file) for file in options.files]
        pairs = list(zip(options.files, contents, strict=True))
        table = [line for file, content in pairs for line in lines(content["rows"], file.stem, when(content))]
        if options.plot:
            chart(contents[0], options.kernel, options.plot)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"not a suite's result: {error}")
    report.print_table("Speed of ours over XLA's", COLUMNS, table, left=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
