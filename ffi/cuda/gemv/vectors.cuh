// Loads: 16 bytes at a time from the matrix, whose lines may have any alignment, and a few neighbouring k of
// the vectors, which may be strided.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "../device/shift.cuh"

namespace jaxgemm::cuda::gemv {

template <typename T>
constexpr int kWide = 16 / sizeof(T);

// Loads of the matrix, which is read once, bypass L1, which serves the vectors.
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}

// The aligned vector that p lies in, or zero if that vector begins behind the line. An aligned vector that
// holds a byte of the line does not reach into memory that is not mapped.
__device__ __forceinline__ uint4 load_around(const void* p, const void* line_end) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p) / 16 * 16;
  return at < reinterpret_cast<uintptr_t>(line_end) ? load_once(reinterpret_cast<const void*>(at))
                                                    : make_uint4(0, 0, 0, 0);
}

// The 16 bytes that begin `shift` bytes into x. Lane + kStep has the 16 bytes that follow x's; `last` lanes,
// which have no such neighbour, pass them as `next`.
template <int kStep>
__device__ __forceinline__ uint4 realign(uint4 x, uint4 next, bool last, uint32_t shift) {
  uint4 hi;
  hi.x = __shfl_down_sync(0xffffffffu, x.x, kStep);
  hi.y = __shfl_down_sync(0xffffffffu, x.y, kStep);
  hi.z = __shfl_down_sync(0xffffffffu, x.z, kStep);
  hi.w = __shfl_down_sync(0xffffffffu, x.w, kStep);
  return shift_vector(x, last ? next : hi, shift);
}

__device__ __forceinline__ uint32_t bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ uint32_t bits(__half x) { return __half_as_ushort(x); }
__device__ __forceinline__ uint32_t bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }

// kCount neighbouring values of k of a vector, packed; zero from `left` on.
template <typename T, int kCount>
struct Packed {
  static constexpr int kWords = kCount * static_cast<int>(sizeof(T)) / 4;
  uint32_t w[kWords];

  __device__ __forceinline__ void zero() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) w[i] = 0;
  }
  __device__ __forceinline__ void load_wide(const T* p) {
    static_assert(kWords == 2 || kWords == 4);
    if constexpr (kWords == 4) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(p));
      w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else {
      const uint2 v = __ldg(reinterpret_cast<const uint2*>(p));
      w[0] = v.x, w[1] = v.y;
    }
  }
  __device__ __forceinline__ void load_each(const T* p, int64_t stride, int64_t left) {
    zero();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < left) w[i * sizeof(T) / 4] |= bits(__ldg(p + i * stride)) << (sizeof(T) == 2 && i % 2 ? 16 : 0);
    }
  }
};

}  // namespace jaxgemm::cuda::gemv
