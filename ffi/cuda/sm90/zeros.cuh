// Zeros for results of tokens that have no weights, and for the sums of groups that have no tokens.
#pragma once

#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

// Fills the part of a tile that a consumer warpgroup stores, which begins at `first`. Warps have rows of D in
// turn.
template <typename E>
__device__ __forceinline__ void store_zeros(const Output& out, const Strip& first, int warp) {
  constexpr bool kSwap = E::kGrouped == Grouped::kColumns;
  constexpr int kRows = kSwap ? E::kResultN : E::kGated == Gated::kRows ? E::kGroupRows / 2 : E::kGroupRows;
  constexpr int kCols = kSwap ? (E::kGated == Gated::kRows ? E::kGroupRows / 2 : E::kGroupRows) : E::kResultN;
  const int64_t row = kSwap ? first.col : first.row, col = kSwap ? first.row : first.col;
  const int64_t row_end = min(row + kRows, E::kGrouped == Grouped::kSums ? out.rows : int64_t(first.end));
  const int64_t bytes = out.f32 ? 4 : 2, length = min(int64_t(kCols), out.cols - col) * bytes;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int64_t at = row + warp; at < row_end; at += 4) {
    uint8_t* const d =
        static_cast<uint8_t*>(out.d) + (first.batch * out.batch_stride + at * out.pitch + col) * bytes;
    if ((reinterpret_cast<uintptr_t>(d) | length) % 16 == 0) {
      for (int64_t i = 16 * lane; i < length; i += 16 * 32) *reinterpret_cast<uint4*>(d + i) = uint4{};
    } else {
      for (int64_t i = 2 * lane; i < length; i += 2 * 32) *reinterpret_cast<uint16_t*>(d + i) = 0;
    }
  }
}

}  // namespace jaxgemm::cuda::sm90
