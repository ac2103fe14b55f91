"""Charts of suites: our times beside XLA's, and beside what the hardware could do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

Row = dict[str, Any]


def draw(rows: Sequence[Row], title: str, file: Path) -> None:
    """Above, a bar for each product: XLA's faster path over ours. Below, the share of the roofline that either reaches.

    The file's ending chooses the format.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    at = range(len(rows))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxgemm"}):
        figure = Figure(figsize=(max(6.0, 1.5 + 0.3 * len(rows)), 7.0), layout="constrained")
        FigureCanvasAgg(figure)
        above, below = figure.subplots(2, 1, sharex=True)
        above.bar(at, [row["ratio"] for row in rows], color=["C0" if row["ratio"] >= 1 else "C1" for row in rows])
        above.axhline(1.0, color="black", linewidth=0.8)
        above.set_yscale("log", base=2)
        above.set_yticks([0.5, 1, 2], ["0.5", "1", "2"])
        above.set_ylabel("speed over XLA's faster path")
        mean = geometric_mean([row["ratio"] for row in rows])
        above.set_title(f"{title}; geometric mean {mean:.2f}", fontsize="medium")
        shares = [row["roofline_fraction"] or 0.0 for row in rows]
        theirs = [share / row["ratio"] for share, row in zip(shares, rows, strict=True)]
        below.plot(at, shares, "o", label="jaxgemm")
        below.plot(at, theirs, "x", label="XLA's faster path")
        below.set_ylim(0, 1.05)
        below.set_ylabel("share of the roofline")
        below.legend()
        below.set_xticks(at, [row["problem"] for row in rows], rotation=90, fontsize="small")
        for axes in (above, below):
            axes.grid(axis="y", alpha=0.3)
            axes.margins(x=0.01)
        figure.savefig(file, dpi=120, metadata={"Date": None} if file.suffix == ".svg" else None)


def chart(content: Row, kernel: str, file: Path) -> int:
    """Draw a kernel's rows of a result; how many products these are."""
    rows = [row for row in content["rows"] if row.get("kernel") == kernel and row.get("ratio")]
    if not rows:
        raise ValueError(f"no rows of kernel {kernel} with a ratio")
    draw(rows, f"jaxgemm {kernel} on {content['device']}, jax {content['versions']['jax']}", file)
    return len(rows)
