// Zeros for results of tokens that have no weights, and for the sums of groups that have no tokens.
#pragma once

#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

// Fills the part of a tile that a consumer warpgroup stores, which begins at `first`. Warps have rows of D in
// turn. Whole vectors are copied from the warp's staging buffers by the copy engine: few warps run, and their
// own stores would keep too little of the memory busy.
template <typename E>
__device__ __forceinline__ void store_zeros(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                            const Strip& first, int warp) {
  const Output& out = p.out;
  constexpr bool kSwap = E::kTokens == Axis::kColumns;
  constexpr int kRows = kSwap                      ? E::kResultN
                        : E::kGated == Axis::kRows ? E::kWarpgroupRows / 2
                                                   : E::kWarpgroupRows;
  constexpr int kCols =
      kSwap ? (E::kGated == Axis::kRows ? E::kWarpgroupRows / 2 : E::kWarpgroupRows) : E::kResultN;
  static_assert(4 * kCols <= E::kStagingBytes);
  const int64_t row = kSwap ? first.col : first.row, col = kSwap ? first.row : first.col;
  const int64_t row_end = min(row + kRows, E::kTokens == Axis::kK ? out.rows : int64_t(first.end));
  const int64_t bytes = out.f32 ? 4 : 2, pitch = out.pitch * bytes;
  const int length = static_cast<int>(min(int64_t(kCols), out.cols - col) * bytes);
  if (length <= 0) return;  // in a cluster that reaches beyond the result
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint8_t* d = static_cast<uint8_t*>(out.d) + (first.batch * out.batch_stride + col) * bytes +
               (row + warp % 4) * pitch;
  if ((reinterpret_cast<uintptr_t>(d) | pitch | length) % 16 == 0) {
    const uint32_t zeros = shared.staging + warp * E::kStagingBytes;
    if (lane == 0) tma_store_wait_read<0>();
    __syncwarp();
    for (int i = 16 * lane; i < length; i += 16 * 32) store_shared(zeros + i, uint4{});
    fence_shared_to_async();
    __syncwarp();
    if (lane == 0) {
      for (int64_t at = row + warp % 4; at < row_end; at += 4, d += 4 * pitch) bulk_store(d, zeros, length);
      tma_store_commit();
      tma_store_wait_read<0>();
    }
    __syncwarp();
    return;
  }
#pragma unroll 1
  for (int64_t at = row + warp % 4; at < row_end; at += 4, d += 4 * pitch) {
    for (int i = 2 * lane; i < length; i += 2 * 32) *reinterpret_cast<uint16_t*>(d + i) = 0;
  }
}

}  // namespace jaxgemm::cuda::sm90
