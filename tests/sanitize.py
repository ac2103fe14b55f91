"""A few products under compute-sanitizer: ``python tests/sanitize.py`` writes tests/sanitizer_record.json.

memcheck finds accesses out of bounds (every buffer is an allocation of its own here, so that neighbours do not hide
them), racecheck hazards in shared memory. Only our kernels are instrumented. Results are compared with float64 as well.

    python tests/sanitize.py                     both tools, every family of kernels
    python tests/sanitize.py --tool memcheck     one of them
    python tests/sanitize.py --kernel sm90       one kernel, for which others' results stay; may be repeated
    python tests/sanitize.py --kernel planes     sm90's products of float32 operands; bytes: of 8 bits
    python tests/sanitize.py --kernel groups     products of groups, by every configuration of their tiles
    python tests/sanitize.py --kernel many       lists of products, by every tile
    python tests/sanitize.py --kernel quantize   values of 8 bits and scales, of every kind
    python tests/sanitize.py --seconds 300       a tool that takes longer has failed, and says at which product
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE), str(_HERE / "support")]

from gpu_record import digest  # noqa: E402

RECORD = _HERE / "sanitizer_record.json"
RENEW = "renew it with `python tests/sanitize.py` on a machine with a GPU"
TOOLS = ("memcheck", "racecheck")
KERNELS = ("shared_pipeline", "wmma_f16", "mma_sync", "wgmma_tma", "gemv", "direct", "simt", "sm80", "sm90")
#: What is recorded: kernels, sm90's products of float32 and of 8 bits, of groups, lists of products, and quantize's
#: launches.
FLOAT32, NARROW, GROUPS, MANY, QUANTIZE = "planes", "bytes", "groups", "many", "quantize"
SECTIONS = (*KERNELS, FLOAT32, NARROW, GROUPS, MANY, QUANTIZE)
#: Settings of sm90: wide and narrow tiles, clusters of blocks, splits, swapped operands, unaligned ones
#: that are realigned; {} is the model's choice. Tiles of every eighth row are for one layout, and so apart.
SM90: tuple[dict[str, int], ...] = (
    {},
    {"tile_m": 128, "tile_n": 256, "cluster_m": 2, "cluster_n": 1},
    {"tile_m": 192, "tile_n": 160, "cluster_n": 2, "cluster_m": 1},
    {"tile_m": 64, "tile_n": 96, "cluster_n": 4, "cluster_m": 2},
    {"tile_m": 128, "tile_n": 128, "swap": 2},
    {"tile_m": 64, "tile_n": 64, "split_k": 3},
    {"tile_m": 64, "tile_n": 64, "split_k": 2, "reduction": 2},
    {"tile_m": 64, "tile_n": 32, "blocks": 2},
    {"tile_m": 64, "tile_n": 128, "unaligned": 2},
    {"tile_m": 128, "tile_n": 128, "unaligned": 2, "swap": 2},
)
#: Of float32 operands: every tile of planes, in bfloat16 and scaled.
PLANES: tuple[dict[str, Any], ...] = tuple(
    {"precision": precision, **options}
    for precision in ("highest", "TF32_TF32_F32_X3")
    for options in (
        {"tile_m": 192, "tile_n": 128, "cluster_n": 2},
        {"tile_m": 128, "tile_n": 128, "swap": 2, "slabs": 2},
        {"tile_m": 128, "tile_n": 64, "split_k": 3},
    )
)
#: Of 8 bits, aligned: tiles from shared memory and, of row-major weights, from registers; and sums in registers.
BYTES: dict[str, tuple[dict[str, Any], ...]] = {
    "NT": (
        {"tile_m": 128, "tile_n": 256, "cluster_n": 2},
        {"tile_m": 64, "tile_n": 64, "split_k": 3, "swap": 2},
        {"tile_m": 128, "tile_n": 128, "precision": "highest"},
    ),
    "NN": (
        {"tile_m": 128, "tile_n": 256},
        {"tile_m": 128, "tile_n": 64, "cluster_m": 2},
        {"tile_m": 128, "tile_n": 16, "split_k": 2},
        {"tile_m": 128, "tile_n": 64, "split_k": 2, "reduction": 2},
    ),
    "TN": ({},),
}
BYTES_SHAPE = (272, 304, 400)
EIGHTHS: tuple[dict[str, int], ...] = (
    {"every_eighth": 2, "tile_m": 128, "tile_n": 256, "cluster_m": 1, "cluster_n": 1},
    {"every_eighth": 2, "tile_m": 128, "tile_n": 128},
    {"every_eighth": 2, "tile_m": 64, "tile_n": 192},
    {"every_eighth": 2, "tile_m": 64, "tile_n": 192, "cluster_m": 2, "cluster_n": 2},
)
SHAPES = ((130, 264, 200), (131, 261, 197), (3, 520, 264))
LAYOUTS = ("NN", "NT", "TN")
#: So large that there are clusters of tiles of every eighth row.
CLUSTERED = (1043, 392, 83)
#: Products of groups, each with its types: m, k, n and groups, whose rows begin at multiples of 16 bytes and anywhere.
GROUPED = (
    ((180, 72, 264, 5), ("bfloat16", "bfloat16")),
    ((131, 69, 261, 3), ("float16", "float32")),
    ((131, 69, 261, 3), ("float32", "float32")),
)
#: Their forms, epilogues and gated pairs; in the last ones some groups have no weights.
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rows", {}),
    ("transposed", {}),
    ("sums", {}),
    ("rows", {"bias": True, "activation": "gelu"}),
    ("rows", {"gated": True, "activation": "silu"}),
    ("transposed", {"held": 2, "offset": 1}),
    ("sums", {"held": 2, "offset": 1}),
)
#: Products of a list: m, n, k.
LISTED = ((130, 261, 197), (3, 520, 264), (64, 64, 64), (201, 5, 330), (0, 9, 7), (1, 1, 1), (300, 270, 70))
#: Numbers to be quantized: rows of whole vectors, and others; and more of them than one block takes.
QUANTIZED = ((70, 264), (3, 5, 33), (1030, 516))
#: So large that simt copies operands first.
REPACKED = (1101, 1029, 1051)
#: A product for sm90's own code for C, a bias and an activation, whose rows must be whole vectors.
ACTIVATED = (203, 264, 96)
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


def unusable(record: Path = RECORD) -> str:
    """Why the record is evidence of nothing, in one line: it is missing, malformed, or tells of errors."""
    try:
        wrong = ""
        for run in json.loads(record.read_text())["runs"]:
            for tool in TOOLS:
                found = run["tools"][tool]
                if found["errors"] or not found["products"]:
                    return f"{record.name}: {tool} found {found['errors']} errors in {found['products']} products"
            kinds = {"kernels": list, "date": str, "digest": str}
            wrong = wrong or ", ".join(
                f"'{key}' must be a {kind.__name__}" for key, kind in kinds.items() if type(run[key]) is not kind
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        wrong = f"{type(error).__name__}: {error}"
    return f"{record.name} is no record: {wrong}; {RENEW}" if wrong else ""


def staleness(record: Path = RECORD) -> str:
    """Why the record is no evidence for these sources, in one line; empty if it is."""
    if problem := unusable(record):
        return problem
    runs = json.loads(record.read_text())["runs"]
    if missing := sorted({*SECTIONS}.difference(*(run["kernels"] for run in runs))):
        return f"{record.name} is stale: it lacks {', '.join(missing)}; {RENEW}"
    if old := [run["date"] for run in runs if run["digest"] != digest()]:
        return f"{record.name} is stale: the sources have changed since the run of {min(old)}; {RENEW}"
    return ""


def with_run(record: Path, run: dict[str, Any]) -> dict[str, Any]:
    """What the record has of kernels that this run did not see, and the run."""
    runs = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for held in json.loads(record.read_text())["runs"]:
            kernels = [name for name in held["kernels"] if name not in run["kernels"]]
            runs += [{**held, "kernels": kernels}] if kernels else []
    return {"runs": [*runs, run]}


def main() -> int:
    """Run the command line; returns 1 if a tool found anything or a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=TOOLS)
    parser.add_argument("--kernel", action="append", choices=SECTIONS)
    parser.add_argument("--output", type=Path, default=RECORD, help="default tests/sanitizer_record.json")
    parser.add_argument("--seconds", type=float, default=1800, help="at most, for the tools; default 1800")
    parser.add_argument("--products", action="store_true", help=argparse.SUPPRESS)  # what runs under the tools
    options = parser.parse_args()
    kernels = options.kernel or SECTIONS
    if options.products:
        return products(kernels)
    places = [shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer"]
    sanitizer = next((place for place in places if place and Path(place).is_file()), None)
    if sanitizer is None:
        parser.error("compute-sanitizer is not on the PATH")
    # Ended from outside, the script ends its tools too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        # Each tool is a process, and mostly waits for the device.
        runs = {
            tool: Run(stack, Path(folder) / tool, [sanitizer, "--tool", tool], kernels)
            for tool in options.tool or TOOLS
        }
        deadline = time.monotonic() + options.seconds
        found = {tool: process.result(deadline) for tool, process in runs.items()}
    run = {
        "kernels": list(kernels),
        "tools": found,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "digest": digest(),
    }
    options.output.write_text(json.dumps(with_run(options.output, run), indent=2) + "\n")
    print(json.dumps(found, indent=2))
    return int(any(result["errors"] != 0 for result in found.values()))


class Run:
    """The products under one tool: begun here, and a session of its own, so that all of it ends with the stack."""

    def __init__(
        self, stack: contextlib.ExitStack, output: Path, tool: list[str], kernels: tuple[str, ...] | list[str]
    ) -> None:
        print(f"{tool[-1]}: products of {', '.join(kernels)}, some minutes", file=sys.stderr)
        command = [*tool, "--kernel-regex", "kns=jaxgemm", "--print-limit", "5"]
        child = [sys.executable, "-P", __file__, "--products", *(f"--kernel={name}" for name in kernels)]
        settings = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self._output = output
        with output.open("w") as file:
            self._process = subprocess.Popen(
                [*command, *child],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings},
                start_new_session=True,
            )
        stack.callback(self.end)

    def end(self) -> None:
        """Kill what still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def result(self, deadline: float) -> dict[str, Any]:
        """What the tool says: errors (-1 where the run itself failed or took too long), products, and of a failure the
        first lines, or the last ones where it took too long: they name the product.
        """
        late = False
        try:
            self._process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            self.end()
        output = self._output.read_text()
        summary = _SUMMARY.search(output)
        products = re.search(r"^(\d+) products$", output, re.MULTILINE)
        errors = int(summary[1] or summary[2]) if summary and products and self._process.returncode == 0 else -1
        lines = output.splitlines()
        shown = [] if errors == 0 else lines[-20:] if late else lines[:60]
        return {"errors": errors, "products": int(products[1]) if products else 0, "output": shown}


def calls(kernels: tuple[str, ...] | list[str], rng: Any) -> Iterator[tuple[str, Any, str, dict[str, int]]]:
    """A label, a product, a kernel and its options."""
    import numpy as np
    from oracle import Product, refused_by_name

    from jaxgemm.kernels import find_kernel

    for name in kernels:
        if name not in KERNELS:
            continue
        row = find_kernel(name)
        for types in row.types[:2]:
            for shape in SHAPES:
                for layout in LAYOUTS:
                    for epilogue in ({}, {"alpha": 0.5, "beta": 2.0, "bias": True, "activation": "gelu"}):
                        p = Product.random(rng, shape, types, layout, **epilogue)
                        if refused_by_name(p, name):
                            continue
                        # racecheck is slow: each setting takes one of the layouts, another for every shape.
                        settings = SM90[(LAYOUTS.index(layout) + SHAPES.index(shape)) % len(LAYOUTS) :: len(LAYOUTS)]
                        for options in settings if name == "sm90" and not epilogue else ({},):
                            yield f"{name} {options} {p.label}", p, name, options
    for layout in LAYOUTS if "simt" in kernels else ():
        p = Product.random(rng, REPACKED, find_kernel("simt").types[0], layout)
        yield f"simt {p.label}", p, "simt", {}
    for layout in LAYOUTS if "sm90" in kernels else ():
        types = find_kernel("sm90").types[0]
        for epilogue in ({"bias": True, "activation": "gelu"}, {"beta": 1.0}):
            p = Product.random(rng, ACTIVATED, types, layout, **epilogue)
            for options in SM90:
                yield f"sm90 {options} {p.label}", p, "sm90", options
    for layout in LAYOUTS if FLOAT32 in kernels else ():
        types = next(types for types in find_kernel("sm90").types if types[0] == "float32")
        for options in PLANES:
            p = Product.random(rng, CLUSTERED, types, layout, beta=1.0)
            yield f"sm90 {options} {p.label}", p, "sm90", options
    row = find_kernel("sm90").types if NARROW in kernels else ()
    narrow = [types for types in row if types[0] in ("int8", "float8_e4m3fn")]
    for types, (layout, settings) in itertools.product(narrow, BYTES.items()):
        for shape, given in ((BYTES_SHAPE, settings), (SHAPES[1], ({},))):
            for options in given:
                if types[0] == "int8" and "precision" in options:
                    continue
                ones = {"a_scale": (shape[0], 1), "b_scale": (1, shape[1])} if "float8" in types[0] else {}
                scales = {x: rng.uniform(0.5, 2, s).astype(np.float32) for x, s in ones.items()}
                p = Product.random(rng, shape, types, layout, alpha=2.0, **scales)
                yield f"sm90 {options} {p.label}", p, "sm90", options
    for shape in (*SHAPES, CLUSTERED) if "sm90" in kernels else ():
        p = Product.random(rng, shape, find_kernel("sm90").types[0])
        for options in EIGHTHS if shape == CLUSTERED else EIGHTHS[:-1]:
            yield f"sm90 {options} {p.label}", p, "sm90", options


def grouped_calls(rng: Any) -> Iterator[tuple[str, Any, dict[str, int]]]:
    """A label, a product of groups, and options of sm90: all there are for aligned rows, a part of them for others."""
    from group_cases import KINDS, Grouped, configurations, sizes

    kinds = itertools.cycle(KINDS)
    for each, ((*shape, groups), types) in enumerate(GROUPED, 1):
        precision = "highest" if types[0] == "float32" else None
        for first, (form, variant) in enumerate(VARIANTS):
            keywords = {**variant, "precision": precision}
            p = Grouped.random(rng, form, shape, sizes(rng, "none", groups, shape[0]), types, **keywords)
            for options in configurations("sm90", p.problem)[first % each :: each]:
                kind = next(kinds)
                given = dataclasses.replace(p, sizes=sizes(rng, kind, groups, shape[0])).spoilt()
                options["walk_height"] = int(rng.integers(1, 5))
                yield f"{form} {shape} of {groups} groups ({kind}) {types} {keywords} {options}", given, options


def many_calls(rng: Any) -> Iterator[Any]:
    """Lists of products by every tile of sm90, for rows that begin at multiples of 16 bytes and anywhere."""
    from fuzz_many import TILES, Case

    for unit, types in ((8, ("bfloat16",) * 3), (1, ("float16", "float16", "float32"))):
        shapes = tuple(tuple(-(-x // unit) * unit for x in shape) for shape in LISTED)
        for layout, tile in itertools.product(LAYOUTS, TILES):
            options = tile | {"walk_height": int(rng.integers(1, 5))}
            yield Case("sm90", (*types, "float32"), shapes, layout, tuple(options.items()))


def checks(kernels: tuple[str, ...] | list[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    """A label, and what runs and checks a product."""
    import fuzz_many
    import jax
    import jax.numpy as jnp
    import numpy as np
    import quantized
    from group_cases import on_device
    from pairs import check_result, operands

    import jaxgemm
    from jaxgemm.choice.resolve import least_exact
    from jaxgemm.products import quantization

    def dense(p: Any, kernel: str, options: dict[str, int]) -> None:
        with least_exact():
            result = p.run(kernel, **options)
        p.check(result, kernel)

    def pair(args: Any) -> None:
        check_result(np.asarray(jaxgemm.gated_gemm(*map(jnp.asarray, args), kernel="sm90")), args)

    def grouped(p: Any, options: dict[str, int]) -> None:
        launched = jax.jit(lambda arrays: p.launched(arrays, "sm90", options))
        p.check(np.asarray(launched(on_device(p.arrays))), exact=True, kernel="sm90")

    def many(case: Any, listed: list[Any]) -> None:
        sides = [[jnp.asarray(getattr(p, side)) for p in listed] for side in "ab"]
        for p, x in zip(listed, jax.jit(fuzz_many.program(case))(*sides), strict=True):
            p.check(np.asarray(x), case.kernel)

    def quantize(x: Any, dtype: str, scaling: str) -> None:
        x = x.astype(np.float32)
        quantized.check(jaxgemm.quantize(x, dtype, scaling), x, dtype, scaling)

    for label, product, kernel, options in calls(kernels, np.random.default_rng(0)):
        yield label, partial(dense, product, kernel, options)
    for shape in SHAPES if "sm90" in kernels else ():
        yield f"gated_gemm {shape}", partial(pair, operands(np.random.default_rng(1), *shape, "bfloat16"))
    for label, p, options in grouped_calls(np.random.default_rng(2)) if GROUPS in kernels else ():
        yield label, partial(grouped, p, options)
    rng = np.random.default_rng(4)
    kinds = itertools.product(QUANTIZED, quantization.TYPES, quantized.AXES) if QUANTIZE in kernels else ()
    for shape, dtype, scaling in kinds:
        yield f"quantize {shape} {dtype} {scaling}", partial(quantize, rng.standard_normal(shape), dtype, scaling)
    rng = np.random.default_rng(3)
    for case in many_calls(rng) if MANY in kernels else ():
        yield str(case), partial(many, case, case.operands(rng))


def products(kernels: tuple[str, ...] | list[str]) -> int:
    """Run and check the products, one by one; prints how many."""
    import jax

    jax.config.update("jax_enable_x64", True)  # for simt's fp64
    count = 0
    for label, check in checks(kernels):
        print(label, flush=True)
        try:
            check()
        except AssertionError as error:
            print(f"{label}: {error}")
            return 1
        count += 1
    print(f"{count} products")
    return 0


if __name__ == "__main__":
    sys.exit(main())
