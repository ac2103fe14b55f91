// How an operand's tile lies in shared memory, and how a warp takes its fragments from there.
//
// A tile keeps the operand's own major, so that copies are straight and ldmatrix does the transposing: rows
// along x (op(A)'s row or op(B)'s column) of kK elements, or rows along k of kX elements. Rows consist of
// 16-byte chunks. Reading eight rows at one chunk, as ldmatrix does, must touch all banks: a chunk's place is
// XORed with its row.
#pragma once

#include "../device/major.h"
#include "../device/mma.cuh"

namespace jaxgemm::cuda::sm80 {

// Byte offset of a chunk. Rows shorter than the 128 bytes of all banks share such a line, and the XOR takes
// the line's number.
template <int kChunks>
__device__ __forceinline__ constexpr uint32_t swizzled(int row, int chunk) {
  constexpr int kRowsPerLine = kChunks < 8 ? 8 / kChunks : 1;
  constexpr int kMask = (kChunks < 8 ? kChunks : 8) - 1;
  return static_cast<uint32_t>(row * kChunks + (chunk ^ (row / kRowsPerLine & kMask))) * 16;
}

template <Major kMajor, int kX, int kK>
struct SharedTile {
  static constexpr int kChunks = (kMajor == Major::kK ? kK : kX) / 8;  // of a row
  static constexpr int kBytes = kX * kK * 2;
};

enum class Factor : uint8_t { kA, kB };

// A warp's part of a tile, kWarpX of x, 16 of k at a time. A block of 16 x 16 arrives in the register order
// that mma wants, as its operands must lie in neighbouring registers. For A: x 0-7, x 8-15, both at k 0-7;
// then at k 8-15. For B: x 0-7 at k 0-7 and at k 8-15, which is one mma's operand; then x 8-15.
template <Factor kSide, Major kMajor, int kX, int kK, int kWarpX>
class FragmentReader {
  static constexpr int kChunks = SharedTile<kMajor, kX, kK>::kChunks;

 public:
  static constexpr int kBlocks = kWarpX / 16;
  static_assert(kWarpX == 16 || kWarpX == 32 || kWarpX == 64, "the XOR below needs aligned powers of two");

  __device__ __forceinline__ explicit FragmentReader(int warp_x) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int within = lane % 8, inner_half = lane / 8 % 2, outer_half = lane / 16;
    const int x_half = kSide == Factor::kA ? inner_half : outer_half;
    const int k_half = kSide == Factor::kA ? outer_half : inner_half;
    first_ = kMajor == Major::kK ? swizzled<kChunks>(warp_x + x_half * 8 + within, k_half)
                                 : swizzled<kChunks>(k_half * 8 + within, warp_x / 8 + x_half);
  }

  // Steps of 16 rows leave the XOR as it is, and steps of two chunks change bits that are 0 in the unswizzled
  // chunk, so both apply after it.
  __device__ __forceinline__ void load(uint32_t (&r)[kBlocks][4], uint32_t tile, int k_step) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int along = kMajor == Major::kK ? k_step : i;   // within rows
      const int across = kMajor == Major::kK ? i : k_step;  // over rows
      load_matrix_x4<kMajor == Major::kMN>(r[i], tile + (first_ ^ along * 32) + across * 16 * kChunks * 16);
    }
  }

 private:
  uint32_t first_;
};

}  // namespace jaxgemm::cuda::sm80
