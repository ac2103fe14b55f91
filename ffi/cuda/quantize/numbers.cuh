// The arithmetic of quantizing, IEEE's; jaxgemm/products/quantization.py has it in jnp.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "../device/types.cuh"

namespace jaxgemm::cuda {

// The largest value of type Value.
template <typename Value>
constexpr float kMost = std::is_same_v<Value, int8_t> ? 127.f
                        : std::is_same_v<Value, E4M3> ? 448.f
                                                      : 57344.f;

// What is known of some numbers: the bits of the largest finite magnitude, with the highest bit set if a
// number is not finite.
struct Largest {
  static constexpr uint32_t kNotFinite = 0x80000000u;
  uint32_t bits = 0;

  __device__ __forceinline__ void add(float x) {
    const uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
    *this = magnitude < 0x7f800000u ? with(magnitude) : Largest{bits | kNotFinite};
  }
  __device__ __forceinline__ Largest with(uint32_t other) const {
    return {max(bits & ~kNotFinite, other & ~kNotFinite) | ((bits | other) & kNotFinite)};
  }

  // The divisor of numbers whose largest magnitude this is.
  template <typename Value>
  __device__ __forceinline__ float divisor() const {
    const float largest = __uint_as_float(bits & ~kNotFinite);
    return largest == 0.f ? 1.f : fmaxf(__fdiv_rn(largest, kMost<Value>), 0x1p-126f);
  }
  // The scale that goes with the values. Integers have no NaN, so the scale of integers is NaN if a number is
  // not finite.
  template <typename Value>
  __device__ __forceinline__ float scale() const {
    const bool none = std::is_same_v<Value, int8_t> && (bits & kNotFinite) != 0;
    return none ? __uint_as_float(0x7fc00000u) : divisor<Value>();
  }
};

// The bits of the value that x becomes.
template <typename Value>
__device__ __forceinline__ uint8_t value_of(float x, float divisor) {
  const bool finite = (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u;
  if constexpr (std::is_same_v<Value, int8_t>) {
    const float value = finite ? rintf(__fdiv_rn(x, divisor)) : 0.f;
    return static_cast<uint8_t>(static_cast<int8_t>(fminf(fmaxf(value, -127.f), 127.f)));
  } else {
    constexpr bool kE4M3 = std::is_same_v<Value, E4M3>;
    // Finite numbers become no larger than the largest value: the machine's conversion saturates.
    if (finite)
      return __nv_cvt_float_to_fp8(__fdiv_rn(x, divisor), __NV_SATFINITE, kE4M3 ? __NV_E4M3 : __NV_E5M2);
    const uint32_t bits = __float_as_uint(x);
    const bool infinite = (bits & 0x7fffffffu) == 0x7f800000u;
    // E4M3 has NaN but no infinity.
    return static_cast<uint8_t>(bits >> 24 & 0x80u) | (kE4M3 ? 0x7fu : infinite ? 0x7cu : 0x7eu);
  }
}

// Neighbouring elements, loaded and stored together.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T)) Together {
  T at[kCount];
};

template <int kCount, typename T>
__device__ __forceinline__ Largest add_together(Largest found, const T* x) {
  const auto some = *reinterpret_cast<const Together<T, kCount>*>(x);
#pragma unroll
  for (int i = 0; i < kCount; ++i) found.add(convert<float>(some.at[i]));
  return found;
}
template <typename Value, int kCount, typename T>
__device__ __forceinline__ void quantize_together(const T* x, uint8_t* values, float divisor) {
  const auto some = *reinterpret_cast<const Together<T, kCount>*>(x);
  Together<uint8_t, kCount> out;
#pragma unroll
  for (int i = 0; i < kCount; ++i) out.at[i] = value_of<Value>(convert<float>(some.at[i]), divisor);
  *reinterpret_cast<Together<uint8_t, kCount>*>(values) = out;
}

// Calls run.operator()<T, Value>() with the types of numbers and of values. Kernels choose the types when
// they run, as there would be nine times as many kernels otherwise, and no kernel waits for the choice.
template <typename Run>
__device__ __forceinline__ void with_types(DType from, DType to, Run&& run) {
  const auto with_value = [&]<typename T>() {
    if (to == DType::kS8)
      run.template operator()<T, int8_t>();
    else if (to == DType::kE4M3)
      run.template operator()<T, E4M3>();
    else
      run.template operator()<T, E5M2>();
  };
  if (from == DType::kF32)
    with_value.template operator()<float>();
  else if (from == DType::kBF16)
    with_value.template operator()<__nv_bfloat16>();
  else
    with_value.template operator()<__half>();
}

}  // namespace jaxgemm::cuda
