// The steps of a launch, which products of planes take one by one (planes/launch_planes.cu).
#pragma once

#include "parameters.cuh"
#include "plan.h"
#include "planes/launch_planes.h"

namespace jaxgemm::cuda::sm90 {

// Copies unaligned operands and multiplies. What the kernel was told is left in `params`.
Status launch_product(const GemmProblem& problem, const Plan& plan, const GemmBuffers& buffers,
                      const Executor& executor, const PlaneScales& scales, AllParts* params);
// Adds the partial results of a split K, if there are any.
Status add_partials(const GemmProblem& problem, const Plan& plan, const GemmBuffers& buffers,
                    CUstream_st* stream);
// k is 0, so there is nothing to multiply: the second kernel of a split K finishes sums of no partial
// results.
Status launch_empty_sum(const GemmProblem& problem, const GemmBuffers& buffers, CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm90
