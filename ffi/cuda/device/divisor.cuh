// Fast division on the device. Host and device.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda {

// Division by a constant of the launch. A division takes about a hundred cycles, and a block needs several
// before it can ask for its first byte. Exact for numerators below 2^31.
struct Divisor {
  uint32_t divisor = 1, multiplier = uint32_t(1) << 31, shift = 31;

  Divisor() = default;
  explicit Divisor(uint32_t d) : divisor(d) {
    uint32_t bits = 0;
    while ((uint64_t(1) << bits) < d) ++bits;
    shift = 31 + bits;
    multiplier = static_cast<uint32_t>(((uint64_t(1) << shift) + d - 1) / d);
  }
  __device__ __forceinline__ uint32_t operator()(uint32_t n) const {
    return static_cast<uint32_t>((uint64_t(n) * multiplier) >> shift);
  }
};

}  // namespace jaxgemm::cuda
