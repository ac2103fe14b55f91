// The functions of the row `simt` of the kernel table, which is in row.cc. Host code only.
#pragma once

#include "../../kernel.h"

namespace jaxgemm::cuda {

Status launch_simt(const GemmProblem&, const GemmBuffers&, const Executor&);
Status prepare_simt(const GemmProblem&, int device);
size_t workspace_simt(const GemmProblem&);
std::string unsupported_simt(const GemmProblem&);
std::vector<Candidate> candidates_simt(const GemmProblem&, const Machine&);

}  // namespace jaxgemm::cuda
