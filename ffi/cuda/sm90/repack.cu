// A warp moves one stretch of a row. Destinations are 16-byte vectors; a source row may start at any element,
// so a lane reads the aligned vector that its own begins in and gets the next one from its neighbour: every
// aligned vector is loaded once, at full width, and shifted in registers.
#include <algorithm>

#include "../device/ptx.cuh"
#include "../device/shift.cuh"
#include "repack.cuh"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int kWarps = 8;
constexpr int kVectors = 4;              // of a lane, in flight together
constexpr int kStretch = 31 * kVectors;  // vectors a warp writes: the last lane only feeds its neighbour

struct RepackWork {
  RepackOperand x;
  uint32_t stretches = 0;  // of a line
  uint32_t tasks = 0;      // of a product; 64-bit divisions would take longer than the copy
};

// The aligned vector at `address`, element by element where it reaches out of the operand.
__device__ __forceinline__ uint4 load_vector(const uint8_t* address, const uint8_t* begin,
                                             const uint8_t* end) {
  if (address >= begin && address + 16 <= end) return __ldg(reinterpret_cast<const uint4*>(address));
  uint4 v = make_uint4(0, 0, 0, 0);
  uint32_t* words = reinterpret_cast<uint32_t*>(&v);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint8_t* p = address + 2 * i;
    if (p >= begin && p < end) {
      words[i / 2] |= uint32_t(__ldg(reinterpret_cast<const uint16_t*>(p))) << (i % 2 * 16);
    }
  }
  return v;
}

__device__ void repack_task(const RepackWork& work, uint32_t batch, uint32_t task, int lane) {
  const RepackOperand& x = work.x;
  const uint32_t line = task / work.stretches, stretch = task % work.stretches;
  const uint32_t inner_count = static_cast<uint32_t>(x.batch_inner);
  const uint32_t outer = batch / inner_count, inner = batch % inner_count;
  const uint8_t* row = static_cast<const uint8_t*>(x.from) +
                       2 * (outer * x.from_outer + inner * x.from_inner + line * x.from_pitch);
  const int64_t line_index = batch * x.lines + line;
  const uint8_t* end = row + 2 * x.length;
  const uint32_t shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row) % 16);
  const int64_t vectors = (x.length + 7) / 8;
  uint4* to = reinterpret_cast<uint4*>(static_cast<uint8_t*>(x.to) + 2 * line_index * x.to_pitch);

  uint4 v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t index = int64_t(stretch) * kStretch + i * 31 + lane;
    v[i] = load_vector(row - shift + 16 * index, row, end);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t index = int64_t(stretch) * kStretch + i * 31 + lane;
    uint4 next;
    next.x = __shfl_down_sync(0xffffffffu, v[i].x, 1);
    next.y = __shfl_down_sync(0xffffffffu, v[i].y, 1);
    next.z = __shfl_down_sync(0xffffffffu, v[i].z, 1);
    next.w = __shfl_down_sync(0xffffffffu, v[i].w, 1);
    if (lane < 31 && index < vectors) to[index] = shift_vector(v[i], next, shift);
  }
}

__global__ void __launch_bounds__(32 * kWarps) repack(RepackWork first, RepackWork second) {
  const int lane = threadIdx.x % 32;
  const uint32_t task = blockIdx.x * kWarps + uniform_warp();
  for (int64_t batch = blockIdx.y; batch < first.x.batch_outer * first.x.batch_inner; batch += gridDim.y) {
    if (task < first.tasks) repack_task(first, static_cast<uint32_t>(batch), task, lane);
  }
  for (int64_t batch = blockIdx.y; batch < second.x.batch_outer * second.x.batch_inner; batch += gridDim.y) {
    if (task >= first.tasks && task - first.tasks < second.tasks)
      repack_task(second, static_cast<uint32_t>(batch), task - first.tasks, lane);
  }
  // The product's blocks may come, and wait for the copies themselves.
  release_next_kernel();
}

RepackWork work_of(const RepackOperand& x) {
  RepackWork work{x};
  if (x.lines == 0) return work;
  work.stretches = static_cast<uint32_t>(((x.length + 7) / 8 + kStretch - 1) / kStretch);
  work.tasks = work.stretches * static_cast<uint32_t>(x.lines);
  return work;
}

}  // namespace

Status launch_repack(const RepackOperand& first, const RepackOperand& second, CUstream_st* stream) {
  const RepackWork a = work_of(first), b = work_of(second);
  if (a.x.lines > INT32_MAX / 2 / (a.stretches + 1) || b.x.lines > INT32_MAX / 2 / (b.stretches + 1)) {
    return {"kernel 'sm90': an unaligned operand has too many rows"};
  }
  const int64_t batch = std::max(a.x.batch_outer * a.x.batch_inner, b.x.batch_outer * b.x.batch_inner);
  const dim3 grid((a.tasks + b.tasks + kWarps - 1) / kWarps,
                  static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
  repack<<<grid, 32 * kWarps, 0, stream>>>(a, b);
  return launch_status("sm90 (repack)");
}

}  // namespace jaxgemm::cuda::sm90
