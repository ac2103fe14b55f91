// Realigning and cutting 16-byte vectors in registers.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda {

// Bytes [shift, shift + 16) of the 32 bytes lo, hi; shift is even and below 16.
__device__ __forceinline__ uint4 shift_vector(uint4 lo, uint4 hi, uint32_t shift) {
  uint32_t w[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
  const uint32_t bits = shift % 4 * 8;
  return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                    __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
}

// The first `count` elements, zero behind them.
template <typename T>
__device__ __forceinline__ uint4 keep_first(uint4 v, int count) {
  uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      if (i >= count) w[i] = 0;
    } else {
      if (2 * i >= count) w[i] = 0;
      if (2 * i + 1 == count) w[i] &= 0xffff;
    }
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// The 16-bit elements from number `begin` on, zero before them.
__device__ __forceinline__ uint4 keep_from(uint4 v, int begin) {
  uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (2 * i + 1 < begin) w[i] = 0;
    if (2 * i + 1 == begin) w[i] &= 0xffff0000;
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

}  // namespace jaxgemm::cuda
