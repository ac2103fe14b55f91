// The functions of the row `sm80` of the kernel table, which is in row.cc. Host code only.
#pragma once

#include "../../kernel.h"

namespace jaxgemm::cuda {

Status launch_sm80(const GemmProblem&, const GemmBuffers&, const Executor&);
Status prepare_sm80(const GemmProblem&, int device);
size_t workspace_sm80(const GemmProblem&);

}  // namespace jaxgemm::cuda
