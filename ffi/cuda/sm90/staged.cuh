// Where strips of results lie in registers, and in shared memory for the copy engine.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda::sm90 {

// The row in a strip of 16 of row `line` of the instruction's first or second eight (half 0 or 1). With x
// from registers (bytes/turned.cuh) these are the even rows and the odd ones. A lane has values of line lane
// / 4.
template <bool kTurned>
__device__ __forceinline__ int row_of_line(int half, int line) {
  return kTurned ? 2 * line + half : 8 * half + line;
}

// The offset of byte `byte_in_row` of row `row` in a strip of kCols columns. The copy engine's swizzle XORs
// the number of a 16-byte unit within 128 bytes with the number of these 128 bytes.
template <int kCols>
__device__ __forceinline__ uint32_t swizzled(int row, int byte_in_row) {
  const uint32_t byte = row * (2 * kCols) + byte_in_row;
  return byte ^ (byte >> 7 & (kCols / 8 - 1)) << 4;
}

// The offset of a lane's row in the four 8 x 8 matrices of ldmatrix and stmatrix, which make columns `column`
// to `column` + 15 of a strip: matrix i has rows of half i % 2 and begins at column 8 (i / 2). A transposed
// strip is stored by columns of 16 rows. If the halves are even and odd rows, such a column has two
// neighbours from each lane: the offset then is that of the lane's pair in its first column (PairedColumns).
template <bool kTransposed, int kCols, bool kTurned>
__device__ __forceinline__ uint32_t staged_matrix(int column, int lane) {
  const int matrix = lane / 8, line = lane % 8;
  if constexpr (kTransposed && kTurned) return swizzled<16>(column + lane % 4 * 2, lane / 4 * 4);
  return kTransposed ? swizzled<16>(column + matrix / 2 * 8 + line, matrix % 2 * 16)
                     : swizzled<kCols>(row_of_line<kTurned>(matrix % 2, line), (column + matrix / 2 * 8) * 2);
}

// Pairs of even and odd rows in a transposed strip: a lane has two in every 8 columns, 32 bytes apart. Half
// of the lanes take the second first, so that all lie in different banks.
struct PairedColumns {
  static constexpr int kColumns = 8;  // to the lane's next pairs
  int later;

  __device__ explicit PairedColumns(int lane) : later(lane % 4 / 2) {}
  // The offsets, from the lane's in the first column, of what is taken first and second in columns from
  // `column` on.
  __device__ __forceinline__ uint32_t first(int column) const { return column * 32 + later * 32; }
  __device__ __forceinline__ uint32_t second(int column) const { return column * 32 + 32 - later * 32; }
  // Brings the pairs of both columns in the order in which they are taken, or back.
  __device__ __forceinline__ void order(uint32_t& a, uint32_t& b) const {
    const uint32_t x = a;
    a = later ? b : a;
    b = later ? x : b;
  }
};

// The same for any `column`, a multiple of 16, from `first`, the offset for column 0.
template <bool kTransposed>
__device__ __forceinline__ uint32_t next_matrix(uint32_t first, int column) {
  return kTransposed ? first + column * 32 : first ^ column * 2;
}

}  // namespace jaxgemm::cuda::sm90
