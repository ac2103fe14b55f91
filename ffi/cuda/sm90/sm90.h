// The row `sm90` of the kernel table. Host code only.
#pragma once

#include <span>

#include "../../kernel.h"

namespace jaxgemm::cuda {

Status launch_sm90(const GemmProblem&, const GemmBuffers&, const Executor&);
Status prepare_sm90(const GemmProblem&, int device);
std::vector<Candidate> candidates_sm90(const GemmProblem&, const Machine&);
size_t workspace_sm90(const GemmProblem&);
std::string unsupported_sm90(const GemmProblem&);

// Many products: see many.h.
Status launch_many_sm90(std::span<const GemmProblem>, std::span<const GemmBuffers>, const Executor&);
Status prepare_many_sm90(std::span<const GemmProblem>, int device);
size_t workspace_many_sm90(std::span<const GemmProblem>);
std::string unsupported_many_sm90(std::span<const GemmProblem>);

}  // namespace jaxgemm::cuda
