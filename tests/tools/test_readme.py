"""The README's table of kernels is the kernel table, and its table of speeds what the result files say."""

from __future__ import annotations

from pathlib import Path

import pytest

import jaxgemm

README = Path(__file__).parents[2] / "README.md"
SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "s8", "uint8": "u8"}


def table() -> str:
    """The README's table as the kernel table has it."""
    lines = ["| kernel | runs on | operands | what it is |", "|---|---|---|---|"]
    for k in jaxgemm.kernels():
        arch = f"{k.min_arch // 10}.{k.min_arch % 10}" + ("" if k.max_arch else "+")
        where = "CPU" if k.platform == "cpu" else f"CUDA {arch}"
        operands = ", ".join(dict.fromkeys(SHORT[t[0]] for t in k.types))
        lines.append(f"| `{k.name}` | {where} | {operands} | {k.summary} |")
    return "\n".join(lines)


def test_kernel_table():
    text = README.read_text()
    if table() not in text:
        pytest.fail(f"the kernel table of README.md is not the one in ffi/registry.cc; it should be\n\n{table()}")


def test_speed_table(benchmark_script):
    summary = benchmark_script("summary")
    speeds = summary.markdown(summary.lines(summary.all_files()))
    if speeds not in README.read_text():
        pytest.fail(f"README.md does not say what benchmarks/results do; it should be\n\n{speeds}")
