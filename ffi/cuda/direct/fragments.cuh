// One operand's fragments, from global memory into the registers that tensor cores read.
//
// A chunk is 32 values of k. A sum may visit them in any order, as long as both operands use the same one.
// The kernel uses the order in which 16-byte vectors arrive: in step s of a chunk, lane t of each
// quad holds k = 8 t + 4 s + 2 half and the next k in register `half` of a fragment. Vectors of an operand
// that is contiguous along k are then fragments as loaded. For an operand that is contiguous along m or n,
// lanes load the lines of those k, and movmatrix makes fragments of them; this permutes each 32 rows or
// columns (line_of). A B that is contiguous along k is loaded in the same permuted order: a lane's
// accumulators of a row are then eight neighbours.
#pragma once

#include "../device/major.h"
#include "../device/shift.cuh"
#include "configs.h"

namespace jaxgemm::cuda::direct {

__device__ __forceinline__ uint4 load_if(bool on, const void* from) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred on;\nsetp.ne.u32 on, %4, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@on ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%5];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "r"(uint32_t{on}), "l"(from));
  return v;
}

__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// The vectors that a lane has loaded of a chunk: of unaligned lines, the two aligned vectors around each one.
template <int kVectors, bool kAligned>
struct Loaded {
  uint4 lo[kVectors], hi[kAligned ? 1 : kVectors];
};

template <int kLines>
struct Fragments {
  uint32_t v[kLines / 8][4];  // for each 8 lines: the two halves of step 0, then of step 1
};

// The line that row `row` of fragment block `block` holds.
template <bool kPermuted>
__device__ __forceinline__ int line_of(int block, int row) {
  return kPermuted ? 32 * (block / 4) + 8 * (row / 2) + block % 4 * 2 + row % 2 : 8 * block + row;
}

// Loads kLines lines (rows of op(A) or columns of op(B)), every `stride`th chunk of them. kAligned: the
// operand is made of aligned vectors that lie in it as a whole.
template <Major kMajor, int kLines, bool kAligned, bool kPermuted>
class Source {
  static constexpr bool kAlongK = kMajor == Major::kK;
  static constexpr int kVectors = kLines / 8;
  static_assert(kLines % 32 == 0 || !kPermuted);
  static_assert(kAlongK || kPermuted, "a transposition permutes lines");

 public:
  using Chunk = Loaded<kVectors, kAligned>;

  // Loads `extent` lines from `first` on, and k values of each. Elements outside of the operand become zero,
  // except in a line along m or n that crosses the operand's end: they may be anything, since the results
  // that they reach are not stored.
  __device__ __forceinline__ Source(const void* data, int pitch, int extent, int k, int first, int chunk,
                                    int stride)
      : stride_(stride) {
    const int lane = static_cast<int>(threadIdx.x % 32), quad = lane / 4, t = lane % 4;
    const int row = kAlongK ? first + line_of<kPermuted>(0, quad) : chunk * kChunk + line_of<true>(0, quad);
    const int col = (kAlongK ? chunk * kChunk : first) + 8 * t;
    from_ = static_cast<const char*>(data) + 2 * (int64_t(row) * pitch + col);
    pitch_ = 2 * int64_t(pitch);
    step_ = 2 * kChunk * int64_t(stride) * (kAlongK ? 1 : pitch);
    rows_ = (kAlongK ? extent : k) - row;
    cols_ = (kAlongK ? k : extent) - col;
  }

  // Starts to load the next chunk.
  __device__ __forceinline__ void load(Chunk& chunk) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int left = cols_ - across(i);
      const bool on = down(i) < rows_ && left > 0;
      const char* const from = this->from(i);
      if constexpr (kAligned) {
        chunk.lo[i] = load_if(on, from);
      } else {
        const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16);
        chunk.lo[i] = load_if(on, from - shift);
        chunk.hi[i] = load_if(on && shift > 0 && 2 * left > 16 - shift, from - shift + 16);
      }
    }
    from_ += step_;
    (kAlongK ? cols_ : rows_) -= kChunk * stride_;
  }

  // Makes fragments of a chunk; `later` loads were started after the chunk's own.
  __device__ __forceinline__ void take(const Chunk& chunk, int later, Fragments<kLines>& to) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      uint4 x = chunk.lo[i];
      if constexpr (!kAligned) {
        // Chunks are a multiple of 16 bytes apart, so all vectors of a line have the same shift.
        x = shift_vector(x, chunk.hi[i], static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from(i)) % 16));
        if constexpr (kAlongK) {
          const int left = cols_ + later * kChunk * stride_;
          if (left < 8) x = keep_first<uint16_t>(x, left);
        }
      }
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (kAlongK)
          to.v[i][j] = words[j];
        else
          to.v[i / 4 * 4 + j][i % 4] = transposed(words[j]);
      }
    }
  }

 private:
  // Where a lane's vector i lies, from its first one: lines down, and elements across.
  static __device__ __forceinline__ int down(int i) {
    return kPermuted ? (kAlongK ? 32 * (i / 4) : 0) + i % 4 * 2 : 8 * i;
  }
  static __device__ __forceinline__ int across(int i) { return kAlongK ? 0 : i / 4 * 32; }
  __device__ __forceinline__ const char* from(int i) const {
    return from_ + down(i) * pitch_ + 2 * across(i);
  }

  const char* from_;
  int64_t pitch_, step_;  // bytes
  int stride_;
  int rows_, cols_;  // lines and elements that exist, from the lane's first element on
};

}  // namespace jaxgemm::cuda::direct
