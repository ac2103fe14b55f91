"""The figures of docs/ladder.md and of the rungs' pages: python benchmarks/ladder.py --docs --from FILE

Prose is written by hand. What stands between marks is written by this: on a rung's page what was measured of it and the
way to its neighbours, on the ladder's the tables. So no figure is copied by hand, and none can be older than the
results beside it.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import kernel_docs
from ladder_budget import RUNGS
from ladder_report import PATHS, draw, find, number, speeds

from jaxgemm.measure import report
from jaxgemm.tuning import slug

_ROOT = Path(__file__).resolve().parents[2]
PAGE, PLOT = _ROOT / "docs/ladder.md", _ROOT / "docs/ladder.svg"
RUNG_PAGES = _ROOT / "docs/ladder"

Result = dict[str, Any]

#: The profiler's reasons for which a warp does not issue, in words.
STALLS = {
    "long_scoreboard": "global memory and L1",
    "short_scoreboard": "what they read from shared memory",
    "mio_throttle": "a place in the queue to shared memory",
    "lg_throttle": "a place in the queue to L1",
    "barrier": "one another, at barriers",
    "math_pipe_throttle": "the arithmetic pipes",
    "dispatch_stall": "the dispatcher",
    "wait": "the fixed latency of their last instruction",
}


def beside(document: Result, name: str) -> Result:
    """Another result of that device, as "ladder_counters.json"; one of no rows if there is none."""
    file = _ROOT / "benchmarks/results" / slug(document["device"]) / name
    return report.load(file) if file.exists() else {"rows": []}


def figures(document: Result, counters: Result, textbook: Result) -> dict[str, str]:
    """What stands between marks, by the marks' names: of each rung, and the tables of docs/ladder.md."""
    profiled = {row["kernel"]: row for row in counters["rows"]}
    out = {}
    for kernel in RUNGS:
        out[kernel] = f"{_sentence(document, kernel, profiled.get(kernel))}\n\n{_way(kernel)}"
    out["rungs"] = "\n".join(_index())
    out["budget"] = "\n".join(_budget_table())
    out["speeds"] = "\n".join([_origin(document, "ladder.json"), "", *_speed_tables(document)])
    out["own products"] = "\n".join(_own_table(document))
    out["counters"] = "\n".join([_origin(counters, "ladder_counters.json"), "", *_counter_table(counters)])
    out["textbook"] = "\n".join([_origin(textbook, "ladder_textbook.json"), *_textbook_table(textbook)])
    return out


def _origin(document: Result, name: str) -> str:
    if not document["rows"]:
        return "Not measured yet."
    folder = f"benchmarks/results/{slug(document['device'])}"
    text = f"From {folder}/{name} ({document['device']}, {document['date'][:10]}): {document['how']}."
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _index() -> list[str]:
    return _table(
        ["rung", "what it is"], [[f"[`{name}`](ladder/{name}.md)", rung.summary] for name, rung in RUNGS.items()]
    )


def _way(kernel: str) -> str:
    names = list(RUNGS)
    at = names.index(kernel)
    steps = [f"from [`{name}`]({name}.md)" for name in names[max(at - 1, 0) : at]]
    steps += [f"to [`{name}`]({name}.md)" for name in names[at + 1 : at + 2]]
    source = f"[its source](../../ffi/cuda/ladder/{kernel}.cu)"
    return ", ".join(["[The ladder](../ladder.md)", source, *steps])


def _sentence(document: Result, kernel: str, profiled: Result | None) -> str:
    arithmetic = RUNGS[kernel].arithmetic
    rows = [row for size in (2048, 4096) if (row := find(document, kernel, arithmetic, size)) and row["tflops"]]
    speed = " and ".join(f"{number(row['tflops'])} at {row['n']}³" for row in rows)
    ratio = " and ".join(f"{row['ratio']:.2f}" for row in rows if row["ratio"] is not None)
    text = "Not measured yet."
    if rows:
        text = f"**Measured** in {arithmetic}: {speed}, in TFLOP/s; {ratio} of XLA's faster path."
    if profiled:
        unit, share = ("tensor", "tensor") if profiled["tensor"] > 0.02 else ("FMA", "fma")
        text += (
            f" {profiled['registers']} registers, {profiled['shared_bytes']:,} bytes of shared memory, "
            f"occupancy {_share(profiled['occupancy'])}. Of its cycles {_share(profiled['issue'])} issue; the {unit} "
            f"pipes are busy in {_share(profiled[share])}, the L1/shared unit in {_share(profiled['wavefronts'])}. "
        )
        # Of cp.async's copies and TMA's the profiler counts no sectors: 0 is not a share.
        used, lost = _share(profiled["sectors"] or None), _share(profiled["conflicts"])
        stall = _stall(profiled["stalls"])
        text += f"Global reads use {used} of the sectors they fetch. " if used else ""
        text += f"Of the wavefronts of shared reads {lost} are bank conflicts. " if lost else ""
        text += f"Warps wait most for {STALLS[stall]}."
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}".replace("%", " %")


def _table(columns: list[str], lines: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *(f"| {' | '.join(line)} |" for line in lines)]


def _speed_tables(document: Result) -> list[str]:
    out: list[str] = []
    for arithmetic in dict.fromkeys(row["arithmetic"] for row in document["rows"] if row["part"] == "sizes"):
        series = speeds(document, arithmetic)
        sizes = sorted({size for values in series.values() for size in values})
        lines = []
        for name, values in series.items():
            row = find(document, name, arithmetic, 4096)
            ratio = f"{row['ratio']:.2f}" if row and row["ratio"] is not None else ""
            shown = name if name in (*PATHS.values(), "roofline") else f"`{name}`"
            lines.append([shown, *(number(values.get(size)) for size in sizes), ratio])
        columns = [f"{arithmetic}, TFLOP/s", *(f"{size}³" for size in sizes), "ratio at 4096³"]
        out += [*_table(columns, lines), ""]
    return out[:-1]


def _own_table(document: Result) -> list[str]:
    lines = []
    for row in document["rows"]:
        if row["part"] == "sizes" or not row["us"]:
            continue
        name, _, options = row["kernel"].partition(":")
        tile = ", ".join(re.findall(r"=(\d+)", options))
        times = [ran["us"] for ran in row["xla"].values() if ran["us"]]
        best = number(2e-6 * row["m"] * row["n"] * row["k"] / min(times)) if times else ""
        lines.append(
            [
                f"{row['m']} × {row['n']} × {row['k']}",
                row["arithmetic"],
                f"`{name}`" + (f" ({tile})" if tile else ""),
                number(row["tflops"]),
                number(row["effective_tops"]),
                best,
            ]
        )
    columns = [
        "product (m × n × k)",
        "operands",
        "kernel (tile)",
        "10¹² operations/s",
        "effective",
        "XLA's faster path",
    ]
    return _table(columns, lines)


def _budget_table() -> list[str]:
    columns = ["kernel", "tile m × n", "k", "threads", "operations a byte", "bytes of shared memory"]
    columns += ["sums", "operands", "in flight", "registers", "blocks", "threads at most"]
    lines = [
        [
            f"`{kernel}`",
            f"{rung.tile[0]} × {rung.tile[1]}",
            *map(str, (rung.step, rung.threads, f"{rung.intensity:#.3g}".rstrip("."), f"{rung.shared_bytes:,}")),
            *map(str, (rung.results, rung.operands, rung.in_flight, rung.registers, rung.blocks)),
            _share(rung.occupancy),
        ]
        for kernel, rung in RUNGS.items()
    ]
    return _table(columns, lines)


def _textbook_table(document: Result) -> list[str]:
    lines = [
        [f"`{row['kernel']}`", f"{row['n']}³", *(f"{row[key]:.2f}" for key in ("tflops", "textbook_tflops", "ratio"))]
        for row in document["rows"]
    ]
    return ["", *_table(["kernel", "size", "ours, TFLOP/s", "the textbook's", "ratio"], lines)] if lines else []


def _counter_table(counters: Result) -> list[str]:
    columns = ["kernel", "cycles that issue", "FMA pipes", "tensor pipes", "L1/shared wavefronts"]
    columns += ["conflicts among shared reads", "global sectors used", "L1 hits", "occupancy", "largest stall"]
    lines = [
        [
            f"`{row['kernel']}`",
            *(_share(row[key]) for key in ("issue", "fma", "tensor", "wavefronts", "conflicts")),
            _share(row["sectors"] or None),
            _share(row["l1_hits"]),
            _share(row["occupancy"]),
            _stall(row["stalls"]).replace("_", " "),
        ]
        for row in counters["rows"]
    ]
    return _table(columns, lines)


def _stall(stalls: dict[str, float]) -> str:
    """What warps wait for most. One that could issue, but was not selected, waits for nothing."""
    return max((reason for reason in stalls if reason != "not_selected"), key=lambda r: stalls[r])


def marked(text: str, values: dict[str, str]) -> str:
    """The page with these values between its marks; a mark that has no value keeps what it has."""

    def replaced(match: re.Match[str]) -> str:
        value = values.get(match[1])
        return match[0] if value is None else f"<!-- figures: {match[1]} -->\n{value}\n<!-- end -->"

    return re.sub(r"<!-- figures: ([\w ]+) -->\n.*?<!-- end -->", replaced, text, flags=re.S)


def pages() -> dict[str, Path]:
    """The page of each rung, by its name, and the ladder's, by an empty one."""
    return {"": PAGE} | {name: RUNG_PAGES / f"{name}.md" for name in RUNGS}


def update_docs(document: Result) -> None:
    """Put a result's figures into the pages, and draw docs/ladder.svg. Rungs stand in the table of kernels too."""
    values = figures(document, *(beside(document, name) for name in ("ladder_counters.json", "ladder_textbook.json")))
    for page in pages().values():
        page.write_text(marked(page.read_text(), values))
    kernel_docs.PAGE.write_text(kernel_docs.updated(kernel_docs.PAGE.read_text()))
    draw(document, PLOT)
