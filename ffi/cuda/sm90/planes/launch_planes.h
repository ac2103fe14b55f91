// Launches of a product of fp32 operands (planes.h).
#pragma once

#include "../parameters.cuh"
#include "planes.h"

namespace jaxgemm::cuda::sm90 {

// For scaled planes: the bits of the largest magnitudes of A's rows and B's columns. If there is a guard, the
// kernel runs only if *guard is `runs_if`.
struct PlaneScales {
  const uint32_t *a_largest = nullptr, *b_largest = nullptr;
  const int32_t* guard = nullptr;
  int32_t runs_if = 0;
  bool behind_pass = false;  // a pass that makes planes is launched before the product
};

// Sets the part of the parameters that is about planes. `problem` is a slab's problem. `swap`: x is B.
void set_plane_part(const GemmProblem& problem, bool swap, const PlaneScales& scales, AllParts* params);

// Splits the operands into planes and multiplies the planes, slab by slab.
Status launch_planes(const GemmProblem& problem, const GemmBuffers& buffers, const Executor& executor);

}  // namespace jaxgemm::cuda::sm90
