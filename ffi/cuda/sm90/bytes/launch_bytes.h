// Launches of a product of operands of 8 bits.
#pragma once

#include "../../../kernel.h"

namespace jaxgemm::cuda::sm90 {

// Copies operands that have to be K-major or aligned and are not (copies.h), and multiplies.
Status launch_bytes(const GemmProblem& problem, const GemmBuffers& buffers, const Executor& executor);

}  // namespace jaxgemm::cuda::sm90
