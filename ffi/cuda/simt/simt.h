// The row `simt` of the kernel table. Host code only.
//
// Option tile: 0 for the model's choice, else the number of a tile of tiles.cuh, counted from 1.
#pragma once

#include "../../kernel.h"

namespace jaxgemm::cuda {

Status launch_simt(const GemmProblem&, const GemmBuffers&, const Executor&);
Status prepare_simt(const GemmProblem&, int device);
size_t workspace_simt(const GemmProblem&);
std::string unsupported_simt(const GemmProblem&);
std::vector<Candidate> candidates_simt(const GemmProblem&, const Machine&);

}  // namespace jaxgemm::cuda
