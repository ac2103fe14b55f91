"""Writes the table of docs/kernels.md from the kernel table: python benchmarks/kernel_docs.py"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from jaxgemm.dtypes import ELEMENT_TYPES
from jaxgemm.kernels import kernels

PAGE = Path(__file__).resolve().parent.parent / "docs/kernels.md"


def kernel_table() -> str:
    """A line for each kernel."""
    lines = ["| kernel | runs on | operands | what it is |", "|---|---|---|---|"]
    for k in kernels():
        arch = f"{k.min_arch // 10}.{k.min_arch % 10}" + ("" if k.max_arch else "+")
        where = "CPU" if k.platform == "cpu" else f"CUDA {arch}"
        operands = ", ".join(dict.fromkeys(ELEMENT_TYPES[t[0]].short for t in k.types))
        lines.append(f"| `{k.name}` | {where} | {operands} | {k.summary} |")
    return "\n".join(lines)


def updated(text: str) -> str:
    """The page with the table behind its mark."""
    mark = "<!-- written by benchmarks/kernel_docs.py -->\n"
    return re.sub(f"(?<={mark})(\\|.*\n)*", lambda _: kernel_table() + "\n", text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(updated(PAGE.read_text()))
