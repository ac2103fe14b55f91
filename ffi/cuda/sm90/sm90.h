// The row `sm90` of the kernel table. Host code only.
#pragma once

#include "../../kernel.h"

namespace jaxgemm::cuda {

Status launch_sm90(const GemmProblem&, const GemmBuffers&, const Executor&);
Status prepare_sm90(const GemmProblem&, int device);
std::vector<Candidate> candidates_sm90(const GemmProblem&, const Machine&);
size_t workspace_sm90(const GemmProblem&);
std::string unsupported_sm90(const GemmProblem&);

}  // namespace jaxgemm::cuda
