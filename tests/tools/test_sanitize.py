"""The script that runs products under compute-sanitizer; the tool itself needs a GPU."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import group_cases
import numpy as np
import pytest
import sanitize
from fuzz_many import TILES

SCRIPT = Path(__file__).parents[1] / "sanitize.py"


def run(tmp_path, says, status=0, *, takes=0, seconds=60):
    """The script with a tool that says this, and what it recorded."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nsleep {takes}\nexit {status}\n")
    tool.chmod(0o755)
    record = tmp_path / "record.json"
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-P", SCRIPT, "--tool", "memcheck", "--kernel", "sm90", "--output", record]
    command += ["--seconds", str(seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, json.loads(record.read_text())["runs"][0]["tools"]["memcheck"]


@pytest.mark.parametrize(
    ("says", "status", "code", "errors"),
    [
        ("12 products\n========= ERROR SUMMARY: 0 errors", 0, 0, 0),
        ("12 products\n========= ERROR SUMMARY: 3 errors", 0, 1, 3),
        ("========= ERROR SUMMARY: 0 errors", 0, 1, -1),
        ("12 products", 0, 1, -1),
        ("12 products\n========= ERROR SUMMARY: 0 errors", 1, 1, -1),
    ],
    ids=["clean", "errors", "no products", "no summary", "failed"],
)
def test_what_a_tool_says_is_recorded(tmp_path, says, status, code, errors):
    got, result = run(tmp_path, says, status)
    assert (got, result["errors"]) == (code, errors)
    assert bool(result["output"]) == (errors != 0)


def test_a_tool_that_takes_too_long_has_failed(tmp_path):
    code, result = run(tmp_path, "one product\nanother", takes=100, seconds=1)
    assert (code, result["errors"]) == (1, -1)
    assert result["output"] == ["one product", "another"]


def test_a_script_that_is_ended_ends_its_tools(tmp_path):
    tool, begun = tmp_path / "compute-sanitizer", tmp_path / "pid"
    tool.write_text(f"#!/bin/sh\necho $$ > {begun}.part\nmv {begun}.part {begun}\nexec sleep 100\n")
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-P", SCRIPT, "--tool", "memcheck", "--output", tmp_path / "record.json"]
    script = subprocess.Popen(command, env=environment)
    while not begun.exists():
        assert script.poll() is None
        time.sleep(0.05)
    script.terminate()
    assert script.wait(60) == 128 + signal.SIGTERM
    for _ in range(200):  # its parent has ended, and who waits for it instead may take a while
        try:
            os.kill(int(begun.read_text()), 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the tool still runs")


def test_every_configuration_of_groups_has_products(monkeypatch):
    monkeypatch.setattr(
        group_cases, "configurations", lambda *_: [{"tile_m": rows, "walk_height": 1} for rows in range(4)]
    )
    labels, products, options = zip(*sanitize.grouped_calls(np.random.default_rng(0)), strict=True)
    assert len(set(labels)) == len(labels)
    for shape in {p.lhs.shape for p in products}:
        assert {x["tile_m"] for p, x in zip(products, options, strict=True) if p.lhs.shape == shape} == set(range(4))
    assert {p.form for p in products} == set(group_cases.FORMS)
    for name in ("bias", "activation", "up", "offset"):
        assert {getattr(p, name) is None for p in products} == {True, False}, name
    assert any(np.isnan(p.lhs.astype(np.float32)).any() for p in products)


def test_every_tile_has_lists_of_products():
    found = list(sanitize.many_calls(np.random.default_rng(0)))
    assert len({str(case) for case in found}) == len(found) == 2 * len(TILES) * len(sanitize.LAYOUTS)
    for tile in TILES:
        of = [case for case in found if tile.items() <= dict(case.options).items()]
        assert {case.layout for case in of} == set(sanitize.LAYOUTS)
        assert {case.types[2] for case in of} == {"bfloat16", "float32"}
    assert any(0 in shape for case in found for shape in case.shapes)


def test_every_kernel_has_products():
    chosen = [
        (kernel, tuple(options.items()))
        for _, _, kernel, options in sanitize.calls(sanitize.SECTIONS, np.random.default_rng())
    ]
    assert {kernel for kernel, _ in chosen} == set(sanitize.KERNELS)
    asked = (*sanitize.SM90, *sanitize.PLANES, *sanitize.EIGHTHS, *itertools.chain(*sanitize.BYTES.values()))
    assert {options for kernel, options in chosen if kernel == "sm90"} == {tuple(x.items()) for x in asked}
