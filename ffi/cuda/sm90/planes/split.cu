// A block has pieces of 32 rows by 64 of k, a thread 8 values of k of one row, whose parts it stores as one
// vector for each plane. Where rows are contiguous in memory along k a thread loads its own values; elsewhere
// the block brings them through shared memory, so that neighbouring lanes load neighbouring rows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "../../../arithmetic.h"
#include "../../device/divisor.cuh"
#include "../../device/ptx.cuh"
#include "../../device/types.cuh"
#include "../../planning.h"
#include "../configs.h"
#include "planes.h"
#include "scales.cuh"
#include "split.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int kSplitThreads = 256, kSplitRows = 32, kValuesEach = 8;
constexpr int kBlocksEach = 6;  // of a multiprocessor
static_assert(kSplitThreads / kSplitRows * kValuesEach == kTileK);

struct SplitWork {
  SplitOperand x;
  Divisor steps, blocks;    // pieces of k, and of one product
  uint32_t blocks_end = 0;  // where the pieces of its batch end, and those of the next operand begin
};

struct SplitTable {
  SplitWork work[2];
  int planes;
  int32_t* guard;
};

// The parts of x/2, each the nearest bf16 to what the ones before it leave, times 2^8 for each of these. A
// number whose first part would be 0 gets the smallest one there is, so that infinity times it is infinity.
__device__ __forceinline__ void split_value(float x, uint16_t (&parts)[kMostPlanes]) {
  const float half = 0.5f * x;
  const uint16_t nearest = __bfloat16_as_ushort(__float2bfloat16_rn(half));
  parts[0] = (nearest & 0x7fff) == 0 && x != 0.f ? nearest | 1 : nearest;
  float left = isfinite(x) ? half - __bfloat162float(__ushort_as_bfloat16(parts[0])) : 0.f;
#pragma unroll
  for (int i = 1; i < kMostPlanes; ++i) {
    left *= 256.f;
    const __nv_bfloat16 part = __float2bfloat16_rn(left);
    parts[i] = __bfloat16_as_ushort(part);
    left -= __bfloat162float(part);
  }
}

// The two parts in fp16 of x, scaled by 2^exponent. Whether they lose too much: x is not 0, and so small that
// they have fewer than 13 bits of it.
__device__ __forceinline__ bool split_scaled(float x, int exponent, uint16_t (&parts)[kMostPlanes]) {
  constexpr float kSmallest = 0x1p-23f;  // 2^-38 of a row's largest, which is below 2^15
  const float scaled = ldexpf(x, exponent);
  const __half high = __float2half_rn(scaled);
  const float left = isfinite(x) ? (scaled - __half2float(high)) * 2048.f : 0.f;
  parts[0] = __half_as_ushort(high);
  parts[1] = __half_as_ushort(__float2half_rn(left));
  parts[2] = 0;
  return x != 0.f && fabsf(scaled) < kSmallest;
}

// This thread's values of k, zeros behind the last.
__device__ __forceinline__ void load_along_k(const SplitOperand& x, const float* from, int64_t row, int64_t k,
                                             float (&value)[kValuesEach]) {
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

// The same by way of shared memory, where a source's neighbours are along the rows.
__device__ __forceinline__ void load_along_rows(const SplitOperand& x, const float* from, int64_t first_row,
                                                int64_t first_k, float (&value)[kValuesEach]) {
  constexpr int kWarps = kSplitThreads / 32;
  __shared__ float tile[kTileK][kSplitRows + 1];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t row = first_row + lane;
#pragma unroll
  for (int line = warp; line < kTileK; line += kWarps) {
    const int64_t k = first_k + line;
    tile[line][lane] = row < x.rows && k < x.k ? __ldg(from + row + k * x.k_stride) : 0.f;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kValuesEach; ++i) value[i] = tile[threadIdx.x % 8 * kValuesEach + i][threadIdx.x / 8];
  __syncthreads();
}

// Calls run(operand, batch, row, k, values) for this thread's values of each piece that its block has.
template <typename Run>
__device__ __forceinline__ void for_values(const SplitTable& table, Run&& run) {
  for (uint32_t index = blockIdx.x; index < table.work[1].blocks_end; index += gridDim.x) {
    const bool second = index >= table.work[0].blocks_end;
    const SplitWork& work = table.work[second];
    const SplitOperand& x = work.x;
    const uint32_t piece = index - (second ? table.work[0].blocks_end : 0);
    const uint32_t batch = work.blocks(piece), block = piece - batch * work.blocks.divisor;
    const uint32_t rows = work.steps(block);
    const int64_t first_row = int64_t(rows) * kSplitRows,
                  first_k = int64_t(block - rows * work.steps.divisor) * kTileK;
    const int64_t row = first_row + threadIdx.x / 8, k = first_k + threadIdx.x % 8 * kValuesEach;
    const float* const from =
        x.from + batch / x.batch_inner * x.outer_stride + batch % x.batch_inner * x.inner_stride;
    float value[kValuesEach];
    if (x.k_stride == 1)
      load_along_k(x, from, row, k, value);
    else
      load_along_rows(x, from, first_row, first_k, value);
    run(x, int64_t(batch), row, k, value);
  }
}

__global__ void __launch_bounds__(kSplitThreads, kBlocksEach)
    find_largest(const __grid_constant__ SplitTable table) {
  for_values(table,
             [](const SplitOperand& x, int64_t, int64_t row, int64_t, const float (&value)[kValuesEach]) {
               float most = 0.f;
#pragma unroll
               for (int i = 0; i < kValuesEach; ++i) {
                 const float magnitude = fabsf(value[i]);
                 if (isfinite(magnitude)) most = fmaxf(most, magnitude);
               }
               for (int lanes = 1; lanes < 8; lanes *= 2)
                 most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
               // Magnitudes have the order of their bits.
               if (threadIdx.x % 8 == 0 && row < x.rows && most > 0.f)
                 atomicMax(x.largest + row, __float_as_uint(most));
             });
}

template <bool kScaled>
__global__ void __launch_bounds__(kSplitThreads, kBlocksEach)
    split(const __grid_constant__ SplitTable table) {
  if (!kScaled && table.guard && !guarded(table.guard, 1)) return;
  for_values(table, [&table](const SplitOperand& x, int64_t batch, int64_t row, int64_t k,
                             const float (&value)[kValuesEach]) {
    if (row >= x.rows) return;
    const int exponent = kScaled ? scale_exponent(x.largest[row]) : 0;
    bool loses = false;
    alignas(16) uint16_t parts[kMostPlanes][kValuesEach];
#pragma unroll
    for (int i = 0; i < kValuesEach; ++i) {
      uint16_t of_value[kMostPlanes];
      if constexpr (kScaled)
        loses |= split_scaled(value[i], exponent, of_value);
      else
        split_value(value[i], of_value);
#pragma unroll
      for (int plane = 0; plane < kMostPlanes; ++plane) parts[plane][i] = of_value[plane];
    }
    if (kScaled && loses) *table.guard = 1;
    uint16_t* const to = static_cast<uint16_t*>(x.to) + (batch * x.rows + row) * table.planes * x.pitch + k;
#pragma unroll
    for (int plane = 0; plane < kMostPlanes; ++plane) {
      if (plane < table.planes)
        *reinterpret_cast<uint4*>(to + plane * x.pitch) = *reinterpret_cast<const uint4*>(parts[plane]);
    }
  });
  // The product's kernel may be launched now, and waits for the planes itself.
  release_next_kernel();
}

Status launch(void (*kernel)(SplitTable), const SplitOperands& operands, int planes, int32_t* guard,
              CUstream_st* stream) {
  SplitTable table{};
  table.planes = planes;
  table.guard = guard;
  int64_t blocks = 0;
  for (int i = 0; i < 2; ++i) {
    const SplitOperand& x = operands[i];
    const int64_t steps = ceil_div(x.k, kTileK), own = steps * ceil_div(x.rows, kSplitRows);
    blocks += own * x.batch_outer * x.batch_inner;
    if (blocks > INT32_MAX / 2) return {"kernel 'sm90': an operand is too large to split into planes"};
    table.work[i] = {x, Divisor(static_cast<uint32_t>(steps)), Divisor(static_cast<uint32_t>(own)),
                     static_cast<uint32_t>(blocks)};
  }
  // No more than run at a time: with a guard that is down all of them end at once.
  const auto grid = static_cast<unsigned>(std::min<int64_t>(blocks, kBlocksEach * kModelSms));
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
