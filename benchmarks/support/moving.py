"""A kernel that reads two operands and writes a result, and does nothing else: what moving bytes takes."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import jax
from nvcc import build, register

#: The name under which XLA finds it.
TARGET = "floor_move"
#: Every thread reads four vectors of 16 bytes; results are as many whole vectors as the product's.
SOURCE = r"""
#include <cuda_runtime.h>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
constexpr int kThreads = 256, kEach = 4;

__device__ unsigned mixed(uint4 x) { return x.x ^ x.y ^ x.z ^ x.w; }

__global__ void __launch_bounds__(kThreads)
    move(const uint4* a, const uint4* b, uint4* d, long of_a, long of_all, long of_d) {
  const long first = long(blockIdx.x) * kThreads * kEach + threadIdx.x, threads = long(gridDim.x) * kThreads;
  uint4 x[kEach] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const long at = first + i * kThreads;
    if (at < of_all) x[i] = __ldcs(at < of_a ? a + at : b + (at - of_a));
  }
  unsigned sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum ^= mixed(x[i]);
  // Every result depends on what was read; threads that have none write where no reading ends.
  for (long at = long(blockIdx.x) * kThreads + threadIdx.x; at < of_d; at += threads) {
    d[at] = make_uint4(sum, x[0].x, x[1].y, x[2].z);
  }
  if (long(blockIdx.x) * kThreads >= of_d && sum == 0x9e3779b9u) d[0] = x[3];
}

ffi::Error launch(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> d) {
  const long of_a = a.size_bytes() / 16, of_all = of_a + b.size_bytes() / 16, of_d = d->size_bytes() / 16;
  const long blocks = (of_all + kThreads * kEach - 1) / (kThreads * kEach);
  move<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(a.untyped_data()),
                                        static_cast<const uint4*>(b.untyped_data()),
                                        static_cast<uint4*>(d->untyped_data()), of_a, of_all, of_d);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? ffi::Error::Success() : ffi::Error::Internal(cudaGetErrorString(error));
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(floor_move, launch,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
"""


@cache
def ready(device: jax.Device) -> str:
    """``TARGET``, compiled for the device.

    Raises:
        RuntimeError: there is no compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        register(build(Path(folder), device, SOURCE), [TARGET])
    return TARGET
