"""The first rungs beside the textbook's forms of them, in one run: python benchmarks/ladder_textbook.py

Ours carry the whole contract: alpha, beta, bias and activation, transposition, batches, any extent. The textbook's
forms of `naive`, `coalesced` and `tiled` compute D = A B of row-major fp32 with 32-bit indices and nothing else. This
compiles the textbook's forms with nvcc, calls them through the same FFI, and times both in turn on the same data: what
the contract costs. Results go to benchmarks/results/<device>/ladder_textbook.json.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxgemm.measure import bench, report
from jaxgemm.measure.case import Case, make_inputs, reference_rows, relative_error, sample_rows, take_rows
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent
sys.path.append(str(_HERE / "support"))

from nvcc import build, register  # noqa: E402

SIZES = (1024, 2048, 4096)
KERNELS = ("naive", "coalesced", "tiled")
TOLERANCE = 1e-5  # from float64, in the Frobenius norm

SOURCE = r"""
#include <cuda_runtime.h>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Matrix = ffi::Buffer<ffi::F32, 2>;

__device__ float dot(const float* a, const float* b, int row, int col, int n, int k) {
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + col];
  return sum;
}

// One element a thread, a block of 16 x 16.
__global__ void naive(const float* a, const float* b, float* d, int m, int n, int k) {
  const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  if (row < m && col < n) d[row * n + col] = dot(a, b, row, col, n, k);
}

// A warp along a row; neighbouring blocks below one another.
__global__ void coalesced(const float* a, const float* b, float* d, int m, int n, int k) {
  const int row = blockIdx.x * 32 + threadIdx.x / 32, col = blockIdx.y * 32 + threadIdx.x % 32;
  if (row < m && col < n) d[row * n + col] = dot(a, b, row, col, n, k);
}

// 32 x 32 tiles in padded shared memory.
__global__ void tiled(const float* a, const float* b, float* d, int m, int n, int k) {
  __shared__ float a_tile[32][33], b_tile[32][33];
  const int row = blockIdx.y * 32 + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x;
  float sum = 0.0f;
  for (int first = 0; first < k; first += 32) {
    const int a_col = first + threadIdx.x, b_row = first + threadIdx.y;
    a_tile[threadIdx.y][threadIdx.x] = row < m && a_col < k ? a[row * k + a_col] : 0.0f;
    b_tile[threadIdx.y][threadIdx.x] = b_row < k && col < n ? b[b_row * n + col] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; ++i) sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && col < n) d[row * n + col] = sum;
}

ffi::Error launch(void (*kernel)(const float*, const float*, float*, int, int, int), dim3 threads, int tile,
                  bool down, cudaStream_t stream, Matrix a, Matrix b, ffi::Result<Matrix> d) {
  const int m = a.dimensions()[0], k = a.dimensions()[1], n = b.dimensions()[1];
  const unsigned rows = (m + tile - 1) / tile, cols = (n + tile - 1) / tile;
  kernel<<<down ? dim3(rows, cols) : dim3(cols, rows), threads, 0, stream>>>(
      a.typed_data(), b.typed_data(), d->typed_data(), m, n, k);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? ffi::Error::Success() : ffi::Error::Internal(cudaGetErrorString(error));
}

ffi::Error launch_naive(cudaStream_t stream, Matrix a, Matrix b, ffi::Result<Matrix> d) {
  return launch(naive, dim3(16, 16), 16, false, stream, a, b, d);
}
ffi::Error launch_coalesced(cudaStream_t stream, Matrix a, Matrix b, ffi::Result<Matrix> d) {
  return launch(coalesced, dim3(1024), 32, true, stream, a, b, d);
}
ffi::Error launch_tiled(cudaStream_t stream, Matrix a, Matrix b, ffi::Result<Matrix> d) {
  return launch(tiled, dim3(32, 32), 32, false, stream, a, b, d);
}

auto binding() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().Arg<Matrix>().Arg<Matrix>().Ret<Matrix>();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(textbook_naive, launch_naive, binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(textbook_coalesced, launch_coalesced, binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(textbook_tiled, launch_tiled, binding());
"""


def textbook(name: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """A product by the textbook's form of a kernel."""
    result = jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), jnp.float32)
    d: jax.Array = jax.ffi.ffi_call(f"textbook_{name}", result)(a, b)
    return d


def programs(case: Case) -> dict[str, Any]:
    """Everything that is timed together: ours, the textbook's, and XLA's product."""
    out: dict[str, Any] = {}
    for name in KERNELS:
        out[name] = functools.partial(case.ours, kernel=name)
        out[f"textbook {name}"] = functools.partial(textbook, name)
    out["xla"] = case.xla
    return {name: jax.jit(function).lower(*case.operands).compile() for name, function in out.items()}


def measure(runner: bench.Bench, size: int) -> list[dict[str, Any]]:
    """One row a kernel."""
    case = Case(size, size, size)
    ran = programs(case)
    copies = max(1, -(-3 * bench.cache_bytes(runner.limits) // case.operand_bytes))
    inputs, rows = make_inputs(case, copies, runner.seed), sample_rows(case, runner.seed)
    reference = reference_rows(case, *inputs[0], rows=rows)
    for name, program in ran.items():
        error = relative_error(take_rows(program(*inputs[0]), case, rows), reference)
        if not error <= TOLERANCE:
            raise RuntimeError(f"{name} at {size}: {error:.1e} from float64, expected at most {TOLERANCE:.0e}")
    times = runner.times(ran, inputs)
    return [
        {
            "n": size,
            "kernel": name,
            "us": times[name].us,
            "tflops": 1e-6 * case.flops / times[name].us,
            "textbook_us": times[f"textbook {name}"].us,
            "textbook_tflops": 1e-6 * case.flops / times[f"textbook {name}"].us,
            "ratio": times[f"textbook {name}"].us / times[name].us,
            "xla_us": times["xla"].us,
        }
        for name in KERNELS
    ]


def parse(
    description: str | None, arguments: Sequence[str] | None
) -> tuple[argparse.ArgumentParser, Path, bench.Bench]:
    """The parser of a benchmark that compiles CUDA kernels, for errors, the folder of its results, and a bench."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30, help="calls to take the median of, at most (default 30)")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each program's calls (default 0.3)")
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    options = parser.parse_args(arguments)
    runner = bench.on_default_device(repeats=options.repeats, budget_s=options.budget)
    if runner.device.platform != "gpu":
        parser.error(f"this measures CUDA kernels, and JAX's default device is {runner.device}")
    report.print_header(runner)
    return parser, options.results / slug(report.device_name(runner.device)), runner


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, measure, write and print."""
    parser, results, runner = parse(__doc__, arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            register(build(Path(folder), runner.device, SOURCE), [f"textbook_{name}" for name in KERNELS])
        except RuntimeError as error:
            parser.error(str(error))
        document = report.document(runner, [], suite="ladder_textbook")
        document["rows"] = [row for size in SIZES for row in measure(runner, size)]
    report.write(results / "ladder_textbook.json", document)
    lines = [
        [f"{r['kernel']} {r['n']}", f"{r['tflops']:.2f}", f"{r['textbook_tflops']:.2f}", f"{r['ratio']:.3f}"]
        for r in document["rows"]
    ]
    report.print_table("fp32, TFLOP/s", ["kernel", "ours", "textbook", "ratio"], lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
