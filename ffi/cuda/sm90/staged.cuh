// Where strips of 16-bit elements lie in shared memory for the copy engine.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda::sm90 {

// Where a strip of kCols columns has this byte of a row: the 16-byte units of a line of 128 bytes are XORed
// with the line's number, as the copy engine does.
template <int kCols>
__device__ __forceinline__ uint32_t swizzled(int row, int byte_in_row) {
  const uint32_t byte = row * (2 * kCols) + byte_in_row;
  return byte ^ (byte >> 7 & (kCols / 8 - 1)) << 4;
}

// Where a lane finds or leaves its row of the four 8 x 8 matrices that make 16 columns from `column` on of a
// strip: matrix i of them is in rows 8 (i % 2), columns 8 (i / 2). A transposed strip has lines of 16 rows.
template <bool kTransposed, int kCols>
__device__ __forceinline__ uint32_t staged_matrix(int column, int lane) {
  const int matrix = lane / 8, line = lane % 8;
  return kTransposed ? swizzled<16>(column + matrix / 2 * 8 + line, matrix % 2 * 16)
                     : swizzled<kCols>(matrix % 2 * 8 + line, (column + matrix / 2 * 8) * 2);
}

// The same from where the first 16 columns are, for a multiple of 16.
template <bool kTransposed>
__device__ __forceinline__ uint32_t next_matrix(uint32_t first, int column) {
  return kTransposed ? first + column * 32 : first ^ column * 2;
}

}  // namespace jaxgemm::cuda::sm90
