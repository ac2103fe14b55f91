// The row `sm90` of the kernel table. Host code only.
//
// Options, in order, 0 meaning that the model chooses: tile_m, tile_n, schedule (1 cooperative, 2 ping-pong),
// cluster_m, cluster_n, split_k, swap (1 no, 2 yes), group, grid (1 resident, 2 tiles), reduction (1
// workspace, 2 cluster), blocks (of a multiprocessor: 1, 2), unaligned (1 copied, 2 shifted on its way) and
// every_eighth (1 no, 2 yes); configs.h says what they mean. The tile of a gated product counts both weights.
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
