// The pass that copies operands of 8 bits to rows along k (copies.h).
#pragma once

#include "../../../kernel.h"
#include "../copied.h"

namespace jaxgemm::cuda::sm90 {

using ByteOperand = CopiedOperand<uint8_t>;

Status launch_byte_copies(const ByteOperand (&operands)[2], CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm90
