// The passes that split fp32 operands into planes (planes.h).
#pragma once

#include "../../../kernel.h"
#include "../copied.h"

namespace jaxgemm::cuda::sm90 {

// The operand's planes are zeros behind k.
using SplitOperand = CopiedOperand<float>;
using SplitOperands = SplitOperand[2];

// Finds the largest finite magnitudes of both operands' rows. The memory for the magnitudes must hold zeros
// before.
Status launch_largest(const SplitOperands& operands, CUstream_st* stream);

// Splits both operands into planes of fp16, and raises the guard if the planes lose too much of a number.
Status launch_scaled_split(const SplitOperands& operands, int32_t* guard, CUstream_st* stream);

// Splits both operands into `planes` planes of bf16; if there is a guard, only if the guard is up.
Status launch_split(const SplitOperands& operands, int planes, const int32_t* guard, CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm90
