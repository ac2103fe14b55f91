// The element types of the CPU kernel and the conversions between them, without branches so that a loop over
// them vectorises on any x86-64. Nothing here computes on a subnormal float: XLA runs its CPU programs with
// subnormals flushed to zero, and a subnormal half is an ordinary number.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "../dtype.h"

namespace jaxgemm::cpu {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <DType>
struct TypeOf;
#define JAXGEMM_TYPE_OF(enumerator, name, bytes, accumulator, xla, host, device) \
  template <>                                                                    \
  struct TypeOf<DType::enumerator> {                                             \
    using type = host;                                                           \
  };
JAXGEMM_ELEMENT_TYPES(JAXGEMM_TYPE_OF)
#undef JAXGEMM_TYPE_OF

[[gnu::always_inline]] inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(uint32_t(x.bits) << 16);
}

[[gnu::always_inline]] inline float to_float(Half x) {
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16;
  constexpr uint32_t kRebias = (127 - 15) << 23;
  // Adding the rebias twice maps half's largest exponent, that of Inf and NaN, to float's.
  const uint32_t normal = (magnitude << 13) + (magnitude >= 0x7c00u ? 2 * kRebias : kRebias);
  const uint32_t subnormal = std::bit_cast<uint32_t>(float(int32_t(magnitude)) * 0x1p-24f);
  return std::bit_cast<float>((magnitude < 0x400u ? subnormal : normal) | sign);
}

// to_bfloat16 and to_half round to nearest even. NaN stays NaN: it is made quiet, so that dropping low bits
// cannot turn it into Inf.
[[gnu::always_inline]] inline BFloat16 to_bfloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return {uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

[[gnu::always_inline]] inline Half to_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kRebias = (127 - 15) << 23;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - kRebias) >> 13;
  // Below 2^-14 halves are 2^-24 apart, like floats in [0.5, 1): adding 0.5 rounds to that spacing.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
  result = magnitude >= (143u << 23) ? 0x7c00u : result;  // 2^16 and more; 65520 and more round there anyway
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return {uint16_t(result | ((bits >> 16) & 0x8000u))};
}

template <typename To, typename From>
[[gnu::always_inline]] inline To convert(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<To, Half>)
    return to_half(x);
  else if constexpr (std::is_same_v<To, BFloat16>)
    return to_bfloat16(x);
  else if constexpr (std::is_arithmetic_v<From>)
    return static_cast<To>(x);
  else
    return to_float(x);
}

}  // namespace jaxgemm::cpu
