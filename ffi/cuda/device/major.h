// Which index of an operand is contiguous in memory. Host and device.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda {

// k, or the row (of A) or column (of B).
enum class Major : uint8_t { kK = 0, kMN = 1 };

}  // namespace jaxgemm::cuda
