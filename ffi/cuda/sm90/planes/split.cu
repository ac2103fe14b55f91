// A block has pieces of 64 rows by 64 of k. A thread has 8 values along k of each of two rows, and stores the
// parts of 8 values as one vector for each plane. If rows are contiguous in memory along k, a thread loads
// its own values; else the block brings the values through shared memory, so that neighbouring lanes load
// neighbouring rows.
#include "../../device/ptx.cuh"
#include "../../device/types.cuh"
#include "../configs.h"
#include "../pieces.cuh"
#include "planes.h"
#include "scales.cuh"
#include "split.h"
#include "split_values.cuh"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int kSplitThreads = 256, kLanes = kStepK16 / kValuesEach;  // threads that share a row
constexpr int kRowsEach = 2, kRowsApart = kSplitThreads / kLanes;    // a thread's rows
constexpr int kSplitRows = kRowsEach * kRowsApart;
constexpr int kBlocksEach = 5;  // blocks of a multiprocessor
using Rows = Values[kRowsEach];

struct SplitTable {
  Pieces<float> pieces;
  int planes;
  int32_t* guard;
};

// Loads this thread's values of a row; zeros behind the row's last value.
__device__ __forceinline__ void load_along_k(const SplitOperand& x, const float* from, int row, int k,
                                             Values& value) {
  const float* const first = from + row * x.row_stride + k;
  if (row < x.rows && k + kValuesEach <= x.k && reinterpret_cast<uintptr_t>(first) % 16 == 0) {
    const float4 lo = __ldg(reinterpret_cast<const float4*>(first));
    const float4 hi = __ldg(reinterpret_cast<const float4*>(first) + 1);
    value[0] = lo.x, value[1] = lo.y, value[2] = lo.z, value[3] = lo.w;
    value[4] = hi.x, value[5] = hi.y, value[6] = hi.z, value[7] = hi.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < kValuesEach; ++i) value[i] = row < x.rows && k + i < x.k ? __ldg(first + i) : 0.f;
}

// Loads this thread's values of both rows by way of shared memory, if neighbours in memory are neighbouring
// rows.
__device__ __forceinline__ void load_along_rows(const SplitOperand& x, const float* from, int first_row,
                                                int first_k, Rows& value) {
  constexpr int kWarps = kSplitThreads / 32, kPitch = kSplitRows + 1;
  __shared__ float tile[kStepK16 * kPitch + 4];
  // Each lane reads 8 lines. The shift by 4 words puts lines from the 32nd on into other banks than the lines
  // before.
  const auto at = [](int line, int row) { return line * kPitch + line / 32 * 4 + row; };
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int row_of_lane = first_row + lane;
#pragma unroll
  for (int line = warp; line < kStepK16; line += kWarps) {
    const int k = first_k + line;
    const float* const source = from + row_of_lane + k * x.k_stride;
#pragma unroll
    for (int i = 0; i < kSplitRows; i += 32)
      tile[at(line, lane + i)] = row_of_lane + i < x.rows && k < x.k ? __ldg(source + i) : 0.f;
  }
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x / kLanes), k = threadIdx.x % kLanes * kValuesEach;
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
    for (int j = 0; j < kValuesEach; ++j) value[i][j] = tile[at(k + j, row + i * kRowsApart)];
  }
  __syncthreads();
}

// Calls run(operand, batch, row, k, values) for this thread's values of each row, in each piece of its block.
// A row may lie behind the last one.
template <typename Run>
__device__ __forceinline__ void for_values(const SplitTable& table, Run&& run) {
  for_pieces<kSplitRows, kStepK16>(table.pieces, [&](const SplitOperand& x, const float* from, uint32_t batch,
                                                     int first_row, int first_k) {
    const int row = first_row + static_cast<int>(threadIdx.x) / kLanes;
    const int k = first_k + static_cast<int>(threadIdx.x) % kLanes * kValuesEach;
    Rows value;
    if (x.k_stride == 1) {
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) load_along_k(x, from, row + i * kRowsApart, k, value[i]);
    } else {
      load_along_rows(x, from, first_row, first_k, value);
    }
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) run(x, int64_t(batch), row + i * kRowsApart, k, value[i]);
  });
}

__global__ void __launch_bounds__(kSplitThreads, kBlocksEach)
    find_largest(const __grid_constant__ SplitTable table) {
  for_values(table, [](const SplitOperand& x, int64_t, int row, int, const Values& value) {
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < kValuesEach; ++i) {
      const float magnitude = fabsf(value[i]);
      if (isfinite(magnitude)) most = fmaxf(most, magnitude);
    }
    for (int lanes = 1; lanes < kLanes; lanes *= 2)
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
    // Magnitudes compare as their bits do.
    if (threadIdx.x % kLanes == 0 && row < x.rows && most > 0.f)
      atomicMax(x.largest + row, __float_as_uint(most));
  });
}

template <bool kScaled>
__global__ void __launch_bounds__(kSplitThreads, kBlocksEach)
    split(const __grid_constant__ SplitTable table) {
  if (!kScaled && table.guard && !guarded(table.guard, 1)) return;
  for_values(table, [&table](const SplitOperand& x, int64_t batch, int row, int k, const Values& value) {
    if (row >= x.rows) return;
    uint16_t* const to =
        static_cast<uint16_t*>(x.to) + batch * x.rows * table.planes * x.pitch + row * x.row_pitch + k;
    const auto store = [&](int plane, const Part& part) {
      *reinterpret_cast<uint4*>(to + plane * x.plane_pitch) = {part[0], part[1], part[2], part[3]};
    };
    if constexpr (kScaled) {
      if (split_scaled(value, scale_exponent(x.largest[row]), store)) *table.guard = 1;
    } else {
      split_values(value, table.planes, store);
    }
  });
  // From here on the product's kernel may be launched: it waits for the planes itself.
  release_next_kernel();
}

Status launch(void (*kernel)(SplitTable), const SplitOperands& operands, int planes, int32_t* guard,
              CUstream_st* stream) {
  SplitTable table{};
  table.planes = planes;
  table.guard = guard;
  if (!make_pieces<kSplitRows, kStepK16>(operands, &table.pieces))
    return {"kernel 'sm90': an operand is too large to split into planes"};
  const unsigned grid = grid_of(table.pieces, kBlocksEach);
  kernel<<<grid, kSplitThreads, 0, stream>>>(table);
  return launch_status("sm90 (split)");
}

}  // namespace

Status launch_largest(const SplitOperands& operands, CUstream_st* stream) {
  return launch(find_largest, operands, 0, nullptr, stream);
}

Status launch_scaled_split(const SplitOperands& operands, int32_t* guard, CUstream_st* stream) {
  return launch(split<true>, operands, plane_scheme(Arithmetic::kF16X3).planes, guard, stream);
}

Status launch_split(const SplitOperands& operands, int planes, const int32_t* guard, CUstream_st* stream) {
  return launch(split<false>, operands, planes, const_cast<int32_t*>(guard), stream);
}

}  // namespace jaxgemm::cuda::sm90
