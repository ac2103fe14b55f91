// A tile's scales, in the registers of the warp that applies them: what sums of operands of 8 bits are
// multiplied by.
#pragma once

#include "../engine.cuh"
#include "../staged.cuh"

namespace jaxgemm::cuda::sm90 {

// Stands for scales where there are none.
struct NoScales {};

// A lane's scales of one strip: of its two rows, and of each of its columns.
template <int kCols>
struct LaneScales {
  float row[2], col[kCols / 4];

  // Of value number e in the order of the accumulators.
  __device__ __forceinline__ float operator()(int e) const { return row[e / 2 % 2] * col[e / 4 * 2 + e % 2]; }
};

// A scale of the operand whose rows, of which there are `count`, are the engine's rows or columns; 1 if it
// has none.
__device__ __forceinline__ float scale_at(const float* scale, bool lines, int64_t index, int64_t count) {
  return scale ? __ldg(scale + (lines ? min(index, count - 1) : 0)) : 1.f;
}
__device__ __forceinline__ float row_scale(const Output& out, int64_t row) {
  return scale_at(out.x_scale, out.x_lines, row, out.swap ? out.cols : out.rows);
}
__device__ __forceinline__ float column_scale(const Output& out, int64_t col) {
  return scale_at(out.y_scale, out.y_lines, col, out.swap ? out.rows : out.cols);
}

// A lane holds those of its two rows in each block of 64, and of every 32nd column. All are loaded before the
// main loop, so that no strip waits for them.
template <typename E>
class TileScales {
  static constexpr int kCols = E::kStripColumns, kStrips = E::kStrips;
  static constexpr int kEach = kCols < 32 ? 1 : kCols / 32;  // columns of a strip that a lane holds
  static constexpr int kRows = 2 * E::kBlocksM, kHeld = kStrips * kEach;

 public:
  __device__ __forceinline__ void load(const Output& out, const Strip& first, int lane) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      rows_[i] = row_scale(out, first.row + i / 2 * 64 + row_of_line<false>(i % 2, lane / 4));
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      cols_[i] = column_scale(out, first.col + strip_column<E>(i / kEach) + i % kEach * 32 + lane);
  }

  // Of strip number `strip`.
  __device__ __forceinline__ LaneScales<kCols> of(const Output&, const Strip&, int strip, int lane) const {
    LaneScales<kCols> scales;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i / 2 == strip / kStrips) scales.row[i % 2] = rows_[i];
    }
    float held[kEach] = {};
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      held[i % kEach] = strip % kStrips == i / kEach ? cols_[i] : held[i % kEach];
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) {
      const int col = i / 2 * 8 + lane % 4 * 2 + i % 2;
      scales.col[i] = __shfl_sync(0xffffffffu, held[i / 2 * 8 / 32], col % 32);
    }
    return scales;
  }

 private:
  float rows_[kRows] = {}, cols_[kHeld] = {};
};

// The same with fragments of x, which leave no registers: each strip loads its own.
template <typename E>
class StripScales {
  static constexpr int kCols = E::kStripColumns;

 public:
  __device__ __forceinline__ void load(const Output&, const Strip&, int) {}
  __device__ __forceinline__ LaneScales<kCols> of(const Output& out, const Strip& s, int, int lane) const {
    LaneScales<kCols> scales;
#pragma unroll
    for (int i = 0; i < 2; ++i) scales.row[i] = row_scale(out, s.row + row_of_line<true>(i, lane / 4));
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i)
      scales.col[i] = column_scale(out, s.col + i / 2 * 8 + lane % 4 * 2 + i % 2);
    return scales;
  }
};

}  // namespace jaxgemm::cuda::sm90
