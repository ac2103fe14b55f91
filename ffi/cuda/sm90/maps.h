// The tensor maps of one launch.
#pragma once

#include "engine.cuh"
#include "plan.h"

namespace jaxgemm::cuda::sm90 {

// Those of both operands, which begin at x and y, and what else it takes to load them.
Status load_maps(const Plan& plan, const void* x, const void* y, const GemmProblem& problem,
                 EighthsParams* params);

// That of the second weight of a gated product.
Status up_map(const Plan& plan, const void* b_up, const GemmProblem& problem, CUtensorMap* map);

// Those of D, and of C, where the copy engine writes the one and brings the other.
Status result_maps(const Plan& plan, const GemmProblem& problem, EighthsParams* params);

}  // namespace jaxgemm::cuda::sm90
