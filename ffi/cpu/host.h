// The CPU kernel of the table.
#pragma once

#include "../kernel.h"

namespace jaxgemm::cpu {

Status launch_host(const GemmProblem& problem, const GemmBuffers& buffers, const Executor& executor);

}  // namespace jaxgemm::cpu
