// The functions of the row `gemv` of the kernel table, which is in row.cc. Host code only.
#pragma once

#include "../../kernel.h"

namespace jaxgemm::cuda {

Status launch_gemv(const GemmProblem&, const GemmBuffers&, const Executor&);
std::vector<Candidate> candidates_gemv(const GemmProblem&, const Machine&);
std::string unsupported_gemv(const GemmProblem&);

}  // namespace jaxgemm::cuda
