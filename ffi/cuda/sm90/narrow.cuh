// 16-bit results, C and a bias. They have the operands' type; products of 8 bits have either, which the
// launch says.
#pragma once

#include "../device/pair.cuh"
#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

// Calls run.operator()<T>() with their type.
template <typename E, typename Run>
__device__ __forceinline__ auto with_narrow(const Output& out, Run&& run) {
  if constexpr (E::kElementBytes == 2)
    return run.template operator()<typename E::Product::X>();
  else
    return out.bf16 ? run.template operator()<__nv_bfloat16>() : run.template operator()<__half>();
}

template <typename E>
__device__ __forceinline__ uint32_t pack_narrow(const Output& out, float lo, float hi) {
  return with_narrow<E>(out, [&]<typename T>() { return pack<T>(lo, hi); });
}
template <typename E>
__device__ __forceinline__ float2 unpack_narrow(const Output& out, uint32_t pair) {
  return with_narrow<E>(out, [&]<typename T>() { return unpack<T>(pair); });
}

}  // namespace jaxgemm::cuda::sm90
