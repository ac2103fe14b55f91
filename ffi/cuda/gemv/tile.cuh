// What one warp multiplies: the part of the matrix that its lanes load at 16 bytes each, times the vectors.
//
// Lane 4 g + t belongs to quad g. For a matrix with lines along k, quad g has lines g and g + 8, and its
// lanes have neighbouring 16-byte pieces of them. For lines across k, quad g has the results g * kWide and
// on, and lane t has four neighbouring k. 16-bit elements then form fragments of mma.sync, as loaded or after
// a byte permutation. Their k is permuted, which leaves the sum as it is because the vectors are permuted
// alike. The instruction multiplies eight vectors in the time of one, and no element is converted.
#pragma once

#include "../device/mma.cuh"
#include "plan.h"
#include "vectors.cuh"

namespace jaxgemm::cuda::gemv {

// Where a warp reads: the pointers are those of one product of the batch.
template <typename In>
struct Source {
  const In* matrix;
  int64_t ld, length;
  const In* vector;
  int64_t vector_stride, vector_k_stride;  // from one vector to the next, from one k to the next
  bool vector_wide;                        // each vector is made of aligned 16-byte pieces
  int vectors;                             // how many there are
  int64_t k, k_end;                        // where k ends: for the matrix, and for this block's part

  template <int kCount, bool kCut>
  __device__ __forceinline__ Packed<In, kCount> load(int which, int64_t at) const {
    Packed<In, kCount> y;
    const In* p = vector + which * vector_stride + at * vector_k_stride;
    if (which >= vectors || (kCut && at >= k_end)) {
      y.zero();
    } else if (vector_wide && (!kCut || at + kCount <= k_end)) {
      y.load_wide(p);
    } else {
      y.load_each(p, vector_k_stride, kCut ? k_end - at : kCount);
    }
    return y;
  }
};

// kVectors is the number of vectors that fp32 multiplies; 16-bit types always multiply 8.
template <typename In, bool kAlongK, bool kAligned, int kVectors>
class WarpTile {
  static constexpr bool kTensor = sizeof(In) == 2;
  static constexpr int kW = kWide<In>;
  static constexpr int kLoads = kAlongK ? 2 : 4;        // loads of the matrix that a lane makes in a step
  static constexpr int kK = kAlongK ? kW : 4;           // neighbouring values of k that a lane has
  static constexpr int kRows = kTensor ? 1 : kVectors;  // vectors that a lane loads
  // Steps that are loaded together: 8 loads in flight, or 4 where fp32's vectors take the registers.
  static constexpr int kBatch = (kTensor || kVectors + !kAligned <= 2 ? 8 : 4) / kLoads;

 public:
  static constexpr int kStep = 4 * kK;
  static constexpr int kLength = warp_length(kAlongK, sizeof(In));

  __device__ __forceinline__ WarpTile(const Source<In>& source, int64_t first)
      : s_(source), g_(static_cast<int>(threadIdx.x) % 32 / 4), t_(static_cast<int>(threadIdx.x) % 4) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Lines that do not exist are read as the last one; their results go nowhere.
        const int64_t line = min(first + g_ + 8 * i, s_.length - 1);
        line_[i] = s_.matrix + line * s_.ld;
      }
    } else {
      column_ = first + g_ * kW;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) acc_[i][j] = 0.f;
  }

  // Adds the steps at k, k + stride, ... below k_end.
  __device__ __forceinline__ void run(int64_t k, int64_t stride) {
    for (; k + (kBatch - 1) * stride + kStep <= s_.k_end; k += kBatch * stride) batch<false>(k, stride);
    for (; k < s_.k_end; k += kBatch * stride) batch<true>(k, stride);
  }

  // Writes this warp's sums, one vector after another, `pitch` apart.
  __device__ __forceinline__ void write(float* to, int pitch) {
    if constexpr (kTensor) {
      // Columns 2 t and 2 t + 1 of an instruction's result are vectors.
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int vector = 2 * t_ + j;
        if (vector >= s_.vectors) break;
        if constexpr (kAlongK) {
          to[vector * pitch + g_] = acc_[0][j] + acc_[1][j];
          to[vector * pitch + g_ + 8] = acc_[0][j + 2] + acc_[1][j + 2];
        } else {
#pragma unroll
          for (int f = 0; f < 4; ++f) {
            *reinterpret_cast<float2*>(to + vector * pitch + g_ * kW + 2 * f) =
                make_float2(acc_[f][j], acc_[f][j + 2]);
          }
        }
      }
    } else {
      // The four lanes of a quad hold parts of the same results.
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < (kAlongK ? 2 : 4); ++i) {
          float sum = acc_[v][i];
          sum += __shfl_xor_sync(0xffffffffu, sum, 1);
          sum += __shfl_xor_sync(0xffffffffu, sum, 2);
          if (v < s_.vectors && t_ == 0) to[v * pitch + (kAlongK ? g_ + 8 * i : g_ * kW + i)] = sum;
        }
      }
    }
  }

 private:
  template <bool kCut>
  __device__ __forceinline__ void batch(int64_t k, int64_t stride) {
    uint4 x[kBatch][kLoads], next[kAligned ? 1 : kBatch][kAligned ? 1 : kLoads];
    Packed<In, kK> y[kBatch][kRows];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = k + i * stride + t_ * kK;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const In* const p = address(at, j);
        const In* const end = kAlongK ? line_[j % 2] + s_.k : p - column_ + s_.length;
        const bool inside = !kCut || (kAlongK ? at : at + j) < s_.k_end;
        if constexpr (kAligned) {
          x[i][j] = inside && (kAlongK || column_ < s_.length) ? load_once(p) : make_uint4(0, 0, 0, 0);
        } else {
          x[i][j] = next[i][j] = make_uint4(0, 0, 0, 0);
          // Along k a lane behind k_end loads as well: the lane before it may need these bytes.
          if (kAlongK || inside) x[i][j] = load_around(p, end);
          if (last() && (kAlongK || inside)) next[i][j] = load_around(p + kW, end);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = k + i * stride + t_ * kK;
#pragma unroll
      for (int v = 0; v < kRows; ++v) y[i][v] = s_.template load<kK, kCut>(kTensor ? g_ : v, at);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = k + i * stride + t_ * kK;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        if constexpr (!kAligned) {
          const uint32_t shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address(at, j))) % 16;
          x[i][j] = realign<kAlongK ? 1 : 4>(x[i][j], next[i][j], last(), shift);
        }
        if (kCut && kAlongK && at + kW > s_.k_end)
          x[i][j] = keep_first<In>(x[i][j], static_cast<int>(s_.k_end - at));
      }
      multiply(x[i], y[i]);
    }
  }

  // The address of this lane's 16 bytes of line j of a step, whether or not they exist.
  __device__ __forceinline__ const In* address(int64_t at, int j) const {
    if constexpr (kAlongK)
      return line_[j] + at;
    else
      return s_.matrix + (at + j) * s_.ld + column_;
  }
  // Whether no other lane loads the 16 bytes that follow this lane's.
  __device__ __forceinline__ bool last() const { return kAlongK ? t_ == 3 : g_ == 7; }

  static __device__ __forceinline__ uint32_t word(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }

  __device__ __forceinline__ void multiply(const uint4 (&x)[kLoads], const Packed<In, kK> (&y)[kRows]) {
    if constexpr (kTensor && kAlongK) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t a[4] = {word(x[0], 2 * half), word(x[1], 2 * half), word(x[0], 2 * half + 1),
                               word(x[1], 2 * half + 1)};
        mma_16x8x16<In>(acc_[half], a, y[0].w[2 * half], y[0].w[2 * half + 1]);
      }
    } else if constexpr (kTensor) {
      // Word f of a line holds results 2 f and 2 f + 1 for one k; a fragment's register holds two
      // neighbouring k of one result.
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        const uint32_t a[4] = {__byte_perm(word(x[0], f), word(x[1], f), 0x5410),
                               __byte_perm(word(x[0], f), word(x[1], f), 0x7632),
                               __byte_perm(word(x[2], f), word(x[3], f), 0x5410),
                               __byte_perm(word(x[2], f), word(x[3], f), 0x7632)};
        mma_16x8x16<In>(acc_[f], a, y[0].w[0], y[0].w[1]);
      }
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float& sum = acc_[v][kAlongK ? j : e];
            sum += __uint_as_float(word(x[j], e)) * __uint_as_float(y[v].w[kAlongK ? e : j]);
          }
        }
      }
    }
  }

  const Source<In>& s_;
  int g_, t_;
  const In* line_[2];
  int64_t column_ = 0;
  float acc_[4][4];
};

}  // namespace jaxgemm::cuda::gemv
