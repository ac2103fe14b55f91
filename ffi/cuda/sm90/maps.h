// The tensor maps of one launch.
#pragma once

#include "engine.cuh"
#include "plan.h"

namespace jaxgemm::cuda::sm90 {

// The maps of both operands, which begin at x and y, and `lines` where one of them is unaligned and loaded in
// place. params->schedule must be set.
Status load_maps(const Plan& plan, const void* x, const void* y, const GemmProblem& problem,
                 EveryEighthParams* params);

// The map of the second weight of a gated product.
Status up_map(const Plan& plan, const void* b_up, const GemmProblem& problem, CUtensorMap* map);

// The maps of D and of C, where the copy engine writes the one and brings the other. params->out must be set.
Status result_maps(const Plan& plan, const GemmProblem& problem, EveryEighthParams* params);

// The maps of an entry, whose `out` must be set.
Status many_maps(const Plan& plan, const void* x, const void* y, const GemmProblem& problem,
                 ManyEntry* entry);

}  // namespace jaxgemm::cuda::sm90
