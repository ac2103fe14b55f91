// Launches of a product of operands of 8 bits.
#pragma once

#include "../../../kernel.h"

namespace jaxgemm::cuda::sm90 {

// Copies operands that are not K-major or not aligned (copies.h), and multiplies.
Status launch_bytes(const GemmProblem& problem, const GemmBuffers& buffers, const Executor& executor);

}  // namespace jaxgemm::cuda::sm90
