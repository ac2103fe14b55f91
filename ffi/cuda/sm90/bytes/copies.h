// Operands of 8 bits. The tensor core takes operands of 8 bits from shared memory only if they are K-major,
// and an MN-major x from registers (turned.cuh). The second of two MN-major operands, and operands whose rows
// begin anywhere, are first copied to rows along k in the workspace. Host code only; a pure function of the
// problem.
#pragma once

#include "../configs.h"

namespace jaxgemm::cuda::sm90 {

constexpr bool of_bytes(const GemmProblem& p) { return dtype_bytes(p.a.dtype) == 1; }

struct ByteCopies {
  bool a = false, b = false;  // whether the operand is copied
  size_t b_offset = 0, bytes = 0;
};

ByteCopies byte_copies(const GemmProblem& problem);

// The problem that is multiplied: with the copies in place of the operands that are copied.
GemmProblem copied_problem(const GemmProblem& problem, const ByteCopies& copies);

}  // namespace jaxgemm::cuda::sm90
