// Many products of different shapes in as few launches as kernel parameters hold: the host's side. many.cuh
// is the other side.
#pragma once

#include <span>

#include "../../kernel.h"

namespace jaxgemm::cuda {

Status launch_many_sm90(std::span<const GemmProblem>, std::span<const GemmBuffers>, const Executor&);
Status prepare_many_sm90(std::span<const GemmProblem>, int device);

}  // namespace jaxgemm::cuda
