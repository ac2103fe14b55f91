// Copies of one operand's tiles from global to shared memory, one tile of kK along k after another.
//
// Elements outside of the matrix become zero and are not read: along k because every result sums over them,
// along x because a tile of 64 or 128 rows over 16 of them should not cost four or eight times the traffic.
#pragma once

#include "../device/cp_async.cuh"
#include "shared_tile.cuh"

namespace jaxgemm::cuda::sm80 {

// One operand, op(A) or the transpose of op(B): x times k.
struct Side {
  const char* data;
  int64_t pitch;            // bytes from one line of contiguous elements to the next
  int64_t batch_stride[2];  // bytes
  int64_t extent;           // of x
  bool async;               // narrow copies only: every pair of elements is 4-byte aligned and within a row
};

// Copies of 16-byte chunks. Each of kThreads threads keeps to one chunk of a row, and they pass over the
// tile's rows together.
template <Major kMajor, int kX, int kK, int kThreads>
class WideCopy {
  static constexpr int kChunks = SharedTile<kMajor, kX, kK>::kChunks;
  static constexpr int kPassRows = kThreads / kChunks;
  static constexpr int kPasses = (kMajor == Major::kK ? kX : kK) / kPassRows;
  static_assert(kThreads % kChunks == 0 && kPasses >= 1);
  static_assert(kPassRows % 8 == 0 || (kChunks >= 8 && 8 % kPassRows == 0), "see to()");

 public:
  WideCopy() = default;
  __device__ __forceinline__ WideCopy(const Side& side, const char* data, int64_t x0, int64_t k0) {
    const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
    to_ = swizzled<kChunks>(row, chunk);
    pass_ = kPassRows * side.pitch;
    if constexpr (kMajor == Major::kK) {
      from_ = data + (x0 + row) * side.pitch + (k0 + chunk * 8) * 2;
      k_ = chunk * 8;
      const int64_t rows = side.extent - (x0 + row);
      passes_ = rows <= 0 ? 0 : rows >= kX ? kPasses : (static_cast<int>(rows) + kPassRows - 1) / kPassRows;
    } else {
      from_ = data + (k0 + row) * side.pitch + (x0 + chunk * 8) * 2;
      k_ = row;
      passes_ = x0 + chunk * 8 < side.extent ? kPasses : 0;
    }
  }

  // Starts to copy the next tile, in which `valid` values of k exist.
  __device__ __forceinline__ void begin(uint32_t tile, int valid) {
    const char* from = from_;
    if constexpr (kMajor == Major::kK) {
      const int passes = k_ < valid ? passes_ : 0;
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        cp_async_or_zero<16>(tile + to(i), from, i < passes);
        from += pass_;
      }
      from_ += kK * 2;
    } else {
      const int limit = passes_ ? valid - k_ : 0;
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        cp_async_or_zero<16>(tile + to(i), from, i * kPassRows < limit);
        from += pass_;
      }
      from_ = from;
    }
  }
  __device__ __forceinline__ void finish(uint32_t) {}

 private:
  // The swizzle repeats every eight rows, so passes of eight rows leave the XOR as it is. Shorter passes
  // change bits of it that are 0 in this thread's first row.
  __device__ __forceinline__ uint32_t to(int pass) const {
    return (to_ ^ (pass * kPassRows % 8) << 4) + pass * kPassRows * kChunks * 16;
  }

  const char* from_;
  int64_t pass_;  // bytes
  uint32_t to_;
  int k_, passes_;
};

// Copies of operands with any pitch and base. Threads move pairs of elements: by 4-byte copies where pairs
// are aligned, otherwise through registers, as no asynchronous copy moves 2 bytes.
template <Major kMajor, int kX, int kK, int kThreads>
class NarrowCopy {
  static constexpr int kChunks = SharedTile<kMajor, kX, kK>::kChunks;
  static constexpr int kPairs = kChunks * 4;  // of a row
  static constexpr int kPassRows = kThreads / kPairs;
  static constexpr int kPasses = (kMajor == Major::kK ? kX : kK) / kPassRows;
  static_assert(kThreads % kPairs == 0 && kPasses >= 1);

 public:
  NarrowCopy() = default;
  __device__ __forceinline__ NarrowCopy(const Side& side, const char* data, int64_t x0, int64_t k0) {
    row_ = static_cast<int>(threadIdx.x) / kPairs;
    pair_ = static_cast<int>(threadIdx.x) % kPairs;
    pitch_ = side.pitch;
    async_ = side.async;
    const int64_t row0 = kMajor == Major::kK ? x0 : k0, col0 = kMajor == Major::kK ? k0 : x0;
    from_ = data + (row0 + row_) * pitch_ + (col0 + pair_ * 2) * 2;
    x_left_ = static_cast<int>(side.extent - x0 < kX ? side.extent - x0 : kX);
  }

  __device__ __forceinline__ void begin(uint32_t tile, int valid) {
    // Rows and columns of the tile that exist, from this thread's first element on.
    const int rows = (kMajor == Major::kK ? x_left_ : valid) - row_;
    const int cols = (kMajor == Major::kK ? valid : x_left_) - pair_ * 2;
    const char* from = from_;
    if (async_) {
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        cp_async_or_zero<4>(tile + to(i), from, i * kPassRows < rows && cols > 0);
        from += kPassRows * pitch_;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const uint16_t* at = reinterpret_cast<const uint16_t*>(from);
        const bool row_exists = i * kPassRows < rows;
        low_[i] = row_exists && cols > 0 ? __ldg(at) : uint16_t(0);
        high_[i] = row_exists && cols > 1 ? __ldg(at + 1) : uint16_t(0);
        from += kPassRows * pitch_;
      }
    }
    from_ += kMajor == Major::kK ? int64_t(kK * 2) : kK * pitch_;
  }

  // Stores the pairs that begin left in registers, before the barrier that publishes the tile.
  __device__ __forceinline__ void finish(uint32_t tile) {
    if (async_) return;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + to(i)),
                   "r"(uint32_t(low_[i]) | uint32_t(high_[i]) << 16)
                   : "memory");
    }
  }

 private:
  __device__ __forceinline__ uint32_t to(int pass) const {
    return swizzled<kChunks>(row_ + pass * kPassRows, pair_ / 4) + pair_ % 4 * 4;
  }

  const char* from_;
  int64_t pitch_;
  int row_, pair_, x_left_;
  bool async_;
  uint16_t low_[kPasses], high_[kPasses];
};

}  // namespace jaxgemm::cuda::sm80
