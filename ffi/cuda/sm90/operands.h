// Where a product's operands lie once unaligned ones have been copied.
#pragma once

#include <vector>

#include "../planning.h"
#include "plan.h"
#include "unaligned/repack.cuh"

namespace jaxgemm::cuda::sm90 {

// Where the operands of the product begin: where they were given, or their copies.
struct Operands {
  const void *a, *b, *b_up;
  bool repacked;  // one of them at least

  bool aligned() const { return cuda::aligned(a, 16) && cuda::aligned(b, 16) && cuda::aligned(b_up, 16); }
};

Operands operands_of(const Plan& plan, const GemmProblem& problem, const GemmBuffers& buffers);

// The copies of a product's unaligned operands.
std::vector<RepackOperand> repacks_of(const Plan& plan, const GemmProblem& problem,
                                      const GemmBuffers& buffers);

}  // namespace jaxgemm::cuda::sm90
