// Launches of a product of fp32 operands (planes.h).
#pragma once

#include "../parameters.cuh"
#include "planes.h"

namespace jaxgemm::cuda::sm90 {

// Of scaled planes: the bits of the largest magnitudes of A's rows and B's columns; and where there is a
// guard, what it must be for the kernel to run.
struct PlaneScales {
  const uint32_t *a_largest = nullptr, *b_largest = nullptr;
  const int32_t* guard = nullptr;
  int32_t runs_if = 0;
  bool behind_pass = false;  // a pass that makes planes is launched before
};

// The part of the parameters that is about planes. `problem`: a slab's. `swap`: x is B.
void set_plane_part(const GemmProblem& problem, bool swap, const PlaneScales& scales, AllParts* params);

// Splits and multiplies, slab by slab.
Status launch_planes(const GemmProblem& problem, const GemmBuffers& buffers, const Executor& executor);

}  // namespace jaxgemm::cuda::sm90
