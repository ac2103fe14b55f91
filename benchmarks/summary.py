"""What result files of run.py say, a line for each suite and kernel.

    python benchmarks/summary.py [--markdown] [FILE ...]

Geometric means of XLA's time over ours, above 1 ours is faster: against the faster of XLA's two paths, and against its
default one; and the product that is furthest behind the faster one. README.md holds the Markdown of --markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from jaxgemm.measure.report import print_table

_RESULTS = Path(__file__).resolve().parent / "results"
COLUMNS = (
    "device",
    "suite",
    "kernel",
    "products",
    "of the faster path",
    "of the default path",
    "lowest",
    "at",
    "measured",
)
TEXT = 3  # columns of text before the figures


def lines(files: Sequence[Path]) -> list[tuple[str, ...]]:
    """The table's lines: of every file that holds ratios, one for each kernel."""
    found = []
    for file in files:
        content = json.loads(file.read_text())
        timed: dict[str, list[dict[str, Any]]] = {}
        for row in content.get("rows", ()):
            if row.get("ratio") and {"problem", "kernel", "xla"} <= row.keys():
                timed.setdefault(row["kernel"], []).append(row)
        for kernel, rows in timed.items():
            found.append((content["device"], file.stem, kernel, *_figures(rows), content["date"][:10]))
    return found


def _figures(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """How many products, both means, and the lowest ratio and its product."""
    lowest = min(rows, key=lambda row: row["ratio"])
    faster = geometric_mean([row["ratio"] for row in rows])
    against = [us / row["us"] for row in rows if (us := row["xla"]["default"].get("device_us"))]
    default = f"{geometric_mean(against):.2f}" if len(against) == len(rows) else "-"
    return str(len(rows)), f"{faster:.2f}", default, f"{lowest['ratio']:.2f}", lowest["problem"]


def markdown(table: Sequence[tuple[str, ...]]) -> str:
    """The table as README.md has it."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *table]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="result files (default: all of GPUs)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args()
    table = lines(options.files or all_files())
    if options.markdown:
        print(markdown(table))
    else:
        print_table("Speed of ours over XLA's", COLUMNS, table, left=TEXT)
    return 0


def all_files() -> list[Path]:
    """The committed result files of GPUs."""
    return sorted(_RESULTS.glob("nvidia-*/*.json"))


if __name__ == "__main__":
    sys.exit(main())
