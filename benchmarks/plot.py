"""Draws result files of run.py: python benchmarks/plot.py RESULT.json ... --output docs/bf16.svg

For every product, above: XLA's faster path over ours (above 1 ours is faster). Below: the share of the roofline that
ours and XLA's faster path reach.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

_FORMATS = (".svg", ".png", ".pdf")


def load(files: Sequence[Path], kernel: str) -> list[dict[str, Any]]:
    """The rows of one kernel of ours that have a ratio."""
    rows = [row for file in files for row in json.loads(file.read_text())["rows"]]
    return [row for row in rows if row.get("kernel") == kernel and row.get("ratio")]


def draw(rows: Sequence[dict[str, Any]], title: str, file: Path) -> None:
    """Write the chart; the file's ending chooses the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [row["problem"] for row in rows]
    at = range(len(rows))
    figure = Figure(figsize=(max(6.0, 1.5 + 0.3 * len(rows)), 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    above.bar(at, [row["ratio"] for row in rows], color=["C0" if row["ratio"] >= 1 else "C1" for row in rows])
    above.axhline(1.0, color="black", linewidth=0.8)
    above.set_yscale("log", base=2)
    above.set_yticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
    above.set_ylabel("speed over XLA's faster path")
    above.set_title(f"{title}; geometric mean {geometric_mean([row['ratio'] for row in rows]):.2f}", fontsize="medium")
    fractions = [row["roofline_fraction"] or 0.0 for row in rows]
    below.plot(at, fractions, "o", label="jaxgemm")
    below.plot(at, [f / row["ratio"] for f, row in zip(fractions, rows, strict=True)], "x", label="XLA's faster path")
    below.set_ylim(0, 1.05)
    below.set_ylabel("share of the roofline")
    below.legend()
    below.set_xticks(at, names, rotation=90, fontsize="small")
    for axes in (above, below):
        axes.grid(axis="y", alpha=0.3)
        axes.margins(x=0.01)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120, metadata={"Date": None} if file.suffix == ".svg" else None)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="result files of benchmarks/run.py")
    parser.add_argument("--kernel", default="auto", help="whose rows to draw (default auto)")
    parser.add_argument("--output", type=Path, required=True, help=f"ends in one of {', '.join(_FORMATS)}")
    options = parser.parse_args()
    if options.output.suffix not in _FORMATS:
        parser.error(f"cannot draw {options.output}: its name must end in one of {', '.join(_FORMATS)}")
    try:
        rows = load(options.results, options.kernel)
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"not a result of benchmarks/run.py: {error}")
    if not rows:
        parser.error(f"no rows of kernel {options.kernel} with a ratio")
    document = json.loads(options.results[0].read_text())
    draw(rows, f"jaxgemm {options.kernel} on {document['device']}, jax {document['versions']['jax']}", options.output)
    print(f"{options.output}: {len(rows)} products")
    return 0


if __name__ == "__main__":
    sys.exit(main())
