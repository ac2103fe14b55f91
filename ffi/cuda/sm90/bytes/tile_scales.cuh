// A tile's scales, the factors of sums of operands of 8 bits, in the registers of the warp that applies the
// scales.
#pragma once

#include "../engine.cuh"
#include "../staged.cuh"

namespace jaxgemm::cuda::sm90 {

// Stands for the scales of tiles that have no scales.
struct NoScales {};

// A lane's scales of one strip: of its two rows and of each of its columns.
template <int kCols>
struct LaneScales {
  float row[2], col[kCols / 4];

  // The scale of value number e in the order of the accumulators.
  __device__ __forceinline__ float operator()(int e) const { return row[e / 2 % 2] * col[e / 4 * 2 + e % 2]; }
};

// The scale of row `index` of an operand of `count` rows, which are the engine's rows or columns; 1 if the
// operand has no scale. `lines`: each row has a scale of its own.
__device__ __forceinline__ float scale_at(const float* scale, bool lines, int64_t index, int64_t count) {
  return scale ? __ldg(scale + (lines ? min(index, count - 1) : 0)) : 1.f;
}
__device__ __forceinline__ float row_scale(const Output& out, int64_t row) {
  return scale_at(out.x_scale, out.x_lines, row, out.swap ? out.cols : out.rows);
}
__device__ __forceinline__ float column_scale(const Output& out, int64_t col) {
  return scale_at(out.y_scale, out.y_lines, col, out.swap ? out.rows : out.cols);
}

// A lane holds the scales of its two rows in each block of 64 rows, and of every 32nd column. All scales are
// loaded before the main loop, so that no strip waits for scales.
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

  // The lane's scales of strip number `strip`.
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

// TileScales for tiles with fragments of x, which leave no registers for scales: each strip loads its own
// scales.
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
