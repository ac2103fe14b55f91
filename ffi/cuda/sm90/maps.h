// The tensor maps of one launch.
#pragma once

#include "engine.cuh"
#include "operands.h"
#include "plan.h"

namespace jaxgemm::cuda::sm90 {

// All tensor maps of a launch, and what else loading unaligned operands takes. The schedule and the output
// must be set.
Status make_maps(const Plan& plan, const GemmProblem& problem, const Operands& operands, AllParts* params);

// The maps of an entry of many products, whose `out` must be set. x and y are where its operands begin.
Status many_maps(const Plan& plan, const void* x, const void* y, const GemmProblem& problem,
                 ManyEntry* entry);

}  // namespace jaxgemm::cuda::sm90
