// The passes that split fp32 operands into planes (planes.h).
#pragma once

#include "../../../kernel.h"
#include "../copied.h"

namespace jaxgemm::cuda::sm90 {

// Its planes are zeros behind k.
using SplitOperand = CopiedOperand<float>;
using SplitOperands = SplitOperand[2];

// Finds the largest finite magnitudes of both operands' rows. What is there must be zeros.
Status launch_largest(const SplitOperands& operands, CUstream_st* stream);

// Splits both operands into planes of fp16, and raises the guard where these lose too much.
Status launch_scaled_split(const SplitOperands& operands, int32_t* guard, CUstream_st* stream);

// Splits both operands into `planes` planes of bf16; where there is a guard, only if that is up.
Status launch_split(const SplitOperands& operands, int planes, const int32_t* guard, CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm90
