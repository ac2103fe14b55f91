// The kernels by operand type, each in a source file of its own.
#pragma once

#include "../../kernel.h"
#include "plan.h"

namespace jaxgemm::cuda::gemv {

Status launch_f32(const GemmProblem&, const GemmBuffers&, const Plan&, CUstream_st*);
Status launch_f16(const GemmProblem&, const GemmBuffers&, const Plan&, CUstream_st*);
Status launch_bf16(const GemmProblem&, const GemmBuffers&, const Plan&, CUstream_st*);
// Whether the code that the driver loaded for this device can share K among a cluster's blocks.
bool has_clusters();

}  // namespace jaxgemm::cuda::gemv
