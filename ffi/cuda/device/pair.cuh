// Two neighbouring 16-bit values in one register, and as floats.
#pragma once

#include <type_traits>

#include "types.cuh"

namespace jaxgemm::cuda {

template <typename In>
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  if constexpr (std::is_same_v<In, __half>)
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  else
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}

template <typename In>
__device__ __forceinline__ uint32_t pack(float lo, float hi) {
  if constexpr (std::is_same_v<In, __half>) {
    const __half2 x = __floats2half2_rn(lo, hi);
    return reinterpret_cast<const uint32_t&>(x);
  } else {
    const __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);
    return reinterpret_cast<const uint32_t&>(x);
  }
}

}  // namespace jaxgemm::cuda
