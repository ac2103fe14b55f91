// The parts of a thread's numbers (planes.h), packed as they are stored: two in a register, the first one in
// the low half.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "planes.h"
#include "scales.cuh"

namespace jaxgemm::cuda::sm90 {

constexpr int kValuesEach = 8, kPairs = kValuesEach / 2;
using Values = float[kValuesEach];
using Part = uint32_t[kPairs];

__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}
__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}

// The bits of the least magnitude of the 16-bit numbers in x.
__device__ __forceinline__ uint32_t least_magnitude(const Part& x) {
  uint32_t least = 0x7fff7fffu;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) asm("min.u16x2 %0, %0, %1;" : "+r"(least) : "r"(x[i] & 0x7fff7fffu));
  return min(least & 0xffffu, least >> 16);
}

// If a packed bf16 is 0 but its number in x is not, the packed bf16 becomes the smallest bf16.
__device__ __forceinline__ void keep_from_zero(const Values& x, Part* part) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (((*part)[i] & 0x7fffu) == 0 && x[2 * i] != 0.f) (*part)[i] |= 1u;
    if (((*part)[i] & 0x7fff0000u) == 0 && x[2 * i + 1] != 0.f) (*part)[i] |= 0x10000u;
  }
}

// Returns x, or the largest bf16 if x is finite and beyond it.
__device__ __forceinline__ float keep_finite(float x) {
  constexpr uint32_t kLargest = 0x7f7f0000u, kBeyond = 0x10000u;  // kBeyond numbers are finite and beyond
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x7fffffffu) - kLargest < kBeyond ? __uint_as_float(bits & 0xffff0000u) : x;
}

// Splits x into parts and calls store(plane, part) for each part. A single part is the bf16 nearest to x.
// Several parts are parts of x/2: each is the bf16 nearest to the rest that the parts before it leave, times
// 2^8 for each part before it. A first part that would be 0 for a number that is not 0 is the smallest bf16,
// so that infinity times it is infinity. A single part that would be infinity for a finite number is the
// largest bf16. Later parts of a number that is not finite are NaN (multiply_planes.cuh leaves out the sums
// they spoil).
template <typename Store>
__device__ __forceinline__ void split_values(const Values& x, int planes, Store&& store) {
  Values left;
  Part part;
#pragma unroll
  for (int i = 0; i < kValuesEach; ++i) left[i] = planes > 1 ? 0.5f * x[i] : keep_finite(x[i]);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) part[i] = pack_bf16(left[2 * i], left[2 * i + 1]);
  if (least_magnitude(part) == 0) keep_from_zero(x, &part);
  store(0, part);
#pragma unroll
  for (int plane = 1; plane < kMostPlanes; ++plane) {
    if (plane >= planes) return;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      left[2 * i] = (left[2 * i] - __uint_as_float(part[i] << 16)) * 256.f;
      left[2 * i + 1] = (left[2 * i + 1] - __uint_as_float(part[i] & 0xffff0000u)) * 256.f;
      part[i] = pack_bf16(left[2 * i], left[2 * i + 1]);
    }
    store(plane, part);
  }
}

// 2^exponent, of a normal number.
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// Splits x, scaled by 2^exponent, into two parts in fp16, which it stores as split_values() does. Returns
// whether the parts lose too much: whether a number is not 0 and so small that they have fewer than 13 bits
// of it.
template <typename Store>
__device__ __forceinline__ bool split_scaled(const Values& x, int exponent, Store&& store) {
  constexpr float kSmallest = 0x1p-23f;  // 2^-38 of a row's largest, which is below 2^15
  constexpr uint32_t kSmallestBits = 2;  // kSmallest as the bits of an fp16
  // The scale is applied as two factors, as exponents are between -113 and 163. A number that the first
  // factor takes below fp32's normal numbers is too small.
  const float first = power_of_two(exponent / 2), second = power_of_two(exponent - exponent / 2);
  Values scaled;
  Part high, low;
#pragma unroll
  for (int i = 0; i < kValuesEach; ++i) scaled[i] = x[i] * first * second;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) high[i] = pack_f16(scaled[2 * i], scaled[2 * i + 1]);
  bool loses = false;
  if (least_magnitude(high) <= kSmallestBits) {
#pragma unroll
    for (int i = 0; i < kValuesEach; ++i) loses |= x[i] != 0.f && fabsf(scaled[i]) < kSmallest;
  }
  store(0, high);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float2 value = __half22float2(reinterpret_cast<const __half2&>(high[i]));
    low[i] = pack_f16((scaled[2 * i] - value.x) * 2048.f, (scaled[2 * i + 1] - value.y) * 2048.f);
  }
  store(1, low);
  return loses;
}

}  // namespace jaxgemm::cuda::sm90
