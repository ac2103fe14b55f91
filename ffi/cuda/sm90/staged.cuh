// Where strips of 16-bit elements lie in shared memory for the copy engine.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda::sm90 {

// The offset of byte `byte_in_row` of row `row` in a strip of kCols columns. The copy engine's swizzle XORs
// the number of a 16-byte unit within 128 bytes with the number of these 128 bytes.
template <int kCols>
__device__ __forceinline__ uint32_t swizzled(int row, int byte_in_row) {
  const uint32_t byte = row * (2 * kCols) + byte_in_row;
  return byte ^ (byte >> 7 & (kCols / 8 - 1)) << 4;
}

// The offset of a lane's row in the four 8 x 8 matrices of ldmatrix and stmatrix, which make columns `column`
// to `column` + 15 of a strip: matrix i begins at row 8 (i % 2) and column 8 (i / 2). A transposed strip is
// stored by columns of 16 rows.
template <bool kTransposed, int kCols>
__device__ __forceinline__ uint32_t staged_matrix(int column, int lane) {
  const int matrix = lane / 8, line = lane % 8;
  return kTransposed ? swizzled<16>(column + matrix / 2 * 8 + line, matrix % 2 * 16)
                     : swizzled<kCols>(matrix % 2 * 8 + line, (column + matrix / 2 * 8) * 2);
}

// The same for any `column`, a multiple of 16, from `first`, the offset for column 0.
template <bool kTransposed>
__device__ __forceinline__ uint32_t next_matrix(uint32_t first, int column) {
  return kTransposed ? first + column * 32 : first ^ column * 2;
}

}  // namespace jaxgemm::cuda::sm90
