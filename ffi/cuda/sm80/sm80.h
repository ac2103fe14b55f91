// The row `sm80` of the kernel table. Host code only.
//
// Options, in order, 0 meaning that the model chooses: tile (1 128x256, 2 128x128, 3 64x128, 4 64x64,
// 5 16x128), split_k.
#pragma once

#include "../../kernel.h"

namespace jaxgemm::cuda {

Status launch_sm80(const GemmProblem&, const GemmBuffers&, const Executor&);
Status prepare_sm80(const GemmProblem&, int device);
size_t workspace_sm80(const GemmProblem&);

}  // namespace jaxgemm::cuda
