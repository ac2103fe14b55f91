// The row `gemv` of the kernel table. Host code only.
//
// Options, in order, 0 meaning that the plan chooses: warps_k and splits; see plan.h.
#pragma once

#include "../../kernel.h"

namespace jaxgemm::cuda {

Status launch_gemv(const GemmProblem&, const GemmBuffers&, const Executor&);
std::vector<Candidate> candidates_gemv(const GemmProblem&, const Machine&);
std::string unsupported_gemv(const GemmProblem&);

}  // namespace jaxgemm::cuda
