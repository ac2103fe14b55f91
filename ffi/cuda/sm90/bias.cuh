// A tile's bias, in the registers of the warp that adds it.
#pragma once

#include "engine.cuh"
#include "narrow.cuh"
#include "staged.cuh"

namespace jaxgemm::cuda::sm90 {

// What a lane adds to its values of one strip: a value for each of its columns, or for its two rows when
// operands are swapped.
template <bool kSwap, int kValues>
struct LaneBias {
  float value[kSwap ? 2 : kValues / 2];

  __device__ __forceinline__ float of(int e) const { return value[kSwap ? e / 2 % 2 : e / 4 * 2 + e % 2]; }
};

// The bias of a whole tile, in the operands' type and aligned to pairs. A lane holds a pair of columns of
// every strip; when operands are swapped, the values of the two rows that the lane has in each block of 64.
// All of it is loaded before the main loop, so that no strip waits for it.
template <typename E>
class TileBias {
  static constexpr int kCols = E::kStripColumns, kStrips = E::kStrips;

 public:
  __device__ __forceinline__ void load(const Output& out, const Strip& first, int lane) {
    if (!out.bias) return;
    const uint16_t* const bias = static_cast<const uint16_t*>(out.bias) + first.group * out.cols;
    const int cols = static_cast<int>(out.cols);
    if (out.swap) {
#pragma unroll
      for (int i = 0; i < 2 * E::kBlocksM; ++i) {
        const int row = static_cast<int>(first.row) + i / 2 * 64 + row_of_line<E::kTurned>(i % 2, lane / 4);
        if (row < cols) raw_[i] = load_ahead_u16(bias + row);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kStrips; ++i) {
        const int col = static_cast<int>(first.col) + strip_column<E>(i) + 2 * lane;
        if (col + 1 < cols)
          raw_[i] = load_ahead_u32(bias + col);
        else if (col < cols)
          raw_[i] = load_ahead_u16(bias + col);
      }
    }
  }

  template <bool kSwap>
  __device__ __forceinline__ LaneBias<kSwap, kCols / 2> of_strip(const Output& out, int strip,
                                                                 int lane) const {
    LaneBias<kSwap, kCols / 2> bias{};
    if (!out.bias) return bias;
    if constexpr (kSwap) {
#pragma unroll
      for (int i = 0; i < 2 * E::kBlocksM; ++i) {
        if (i / 2 == strip / kStrips) bias.value[i % 2] = unpack_narrow<E>(out, as_loaded(raw_[i])).x;
      }
    } else {
      uint32_t pair = as_loaded(raw_[0]);
#pragma unroll
      for (int i = 1; i < kStrips; ++i) pair = strip % kStrips == i ? as_loaded(raw_[i]) : pair;
#pragma unroll
      for (int i = 0; i < kCols / 8; ++i) {
        const float2 x = unpack_narrow<E>(out, __shfl_sync(0xffffffffu, pair, 4 * i + lane % 4));
        bias.value[2 * i] = x.x;
        bias.value[2 * i + 1] = x.y;
      }
    }
    return bias;
  }

 private:
  uint32_t raw_[kStrips > 2 * E::kBlocksM ? kStrips : 2 * E::kBlocksM] = {};
};

}  // namespace jaxgemm::cuda::sm90
