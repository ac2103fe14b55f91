"""What a process's first product costs beside its later ones: loading the kernel's code, which fat binaries compress.

Each run is a process of its own: JAX and the GPU are warm, the program is compiled, and then it runs twice. The first
run less the second is what loading took. Several builds are compared in turn, so that all see the same machine:

    python benchmarks/first_product.py none=/path/to/site-packages size=/another/one
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

#: (kernel, m, n, k, type): one of each family that has much code for a type and layout.
PRODUCTS = (
    ("sm90", 512, 512, 512, "bfloat16"),
    ("direct", 128, 128, 128, "bfloat16"),
    ("sm80", 512, 512, 512, "bfloat16"),
)

CHILD = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np
kernel, m, n, k, dtype = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
rng = np.random.default_rng(0)
a, b = (jnp.asarray(rng.standard_normal(s), dtype) for s in ((m, k), (k, n)))
jax.jit(jnp.dot)(a, b).block_until_ready()
import jaxgemm
run = jax.jit(lambda a, b: jaxgemm.gemm(a, b, kernel=kernel)).lower(a, b).compile()
for _ in range(2):
    start = time.perf_counter()
    run(a, b).block_until_ready()
    print(1e3 * (time.perf_counter() - start))
from jaxgemm.measure import provenance
print(json.dumps(provenance.record(jax.devices()[0])))
"""


def loading(folder: Path, product: tuple[str, int, int, int, str]) -> tuple[float, dict[str, Any]]:
    """Milliseconds that the first run of a product took more than the second, and what it was measured with."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    command = [sys.executable, "-P", "-c", CHILD, *map(str, product)]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"first_product: {folder}: {done.stderr[-2000:]}")
    first, second, about = done.stdout.splitlines()
    return float(first) - float(second), json.loads(about)


def main(arguments: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("builds", nargs="+", metavar="NAME=FOLDER", help="a folder with an installed jaxgemm")
    parser.add_argument("--runs", type=int, default=5, help="processes for each build and product (default: 5)")
    parser.add_argument("--output", type=Path, help="where to write a JSON file")
    given = parser.parse_args(arguments)
    builds = dict(build.split("=", 1) for build in given.builds)
    rows: list[dict[str, Any]] = []
    about: dict[str, dict[str, Any]] = {}
    for product in PRODUCTS:
        times: dict[str, list[float]] = {name: [] for name in builds}
        for _ in range(given.runs):
            for name, folder in builds.items():
                took, about[name] = loading(Path(folder), product)
                times[name].append(round(took, 2))
        kernel, m, n, k, dtype = product
        row = {"kernel": kernel, "problem": f"{m}x{n}x{k} {dtype}", "ms": times}
        rows.append(row)
        medians = "  ".join(f"{name} {statistics.median(ms):7.2f}" for name, ms in times.items())
        print(f"{kernel:8s} {row['problem']:24s} {medians} ms", flush=True)
    if given.output:
        sys.path.insert(0, next(iter(builds.values())))  # which writes the file
        from jaxgemm.measure import provenance, report

        each = {
            name: {
                "library_bytes": Path(folder, "jaxgemm/libjaxgemm.so").stat().st_size,
                **{x: about[name][x] for x in ("commit", "ffi_digest", "package_digest")},
            }
            for name, folder in builds.items()
        }
        head = {**next(iter(about.values())), "script": provenance.script(), "builds": each}
        report.write(given.output, {**head, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
