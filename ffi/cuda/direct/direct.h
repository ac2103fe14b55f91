// The functions of the row `direct` of the kernel table, which is in row.cc. Host code only.
#pragma once

#include "../../kernel.h"

namespace jaxgemm::cuda {

std::string unsupported_direct(const GemmProblem&);
std::vector<Candidate> candidates_direct(const GemmProblem&, const Machine&);
Status prepare_direct(const GemmProblem&, int device);
Status launch_direct(const GemmProblem&, const GemmBuffers&, const Executor&);

}  // namespace jaxgemm::cuda
