// Operands of 8 bits. From shared memory the tensor core takes them K-major alone, and an MN-major x from
// registers (turned.cuh): the second of two MN-major operands, and those whose rows begin anywhere, are
// copied to rows along k in the workspace first. Host code only; a pure function of the problem.
#pragma once

#include "../configs.h"

namespace jaxgemm::cuda::sm90 {

constexpr bool of_bytes(const GemmProblem& p) { return dtype_bytes(p.a.dtype) == 1; }

struct ByteCopies {
  bool a = false, b = false;  // whether they are copied
  size_t b_offset = 0, bytes = 0;
};

ByteCopies byte_copies(const GemmProblem& problem);

// The problem of what is multiplied: of copies where there are any.
GemmProblem copied_problem(const GemmProblem& problem, const ByteCopies& copies);

}  // namespace jaxgemm::cuda::sm90
