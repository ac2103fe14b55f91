// A product of fp32 operands as products of planes (planes.h), in slabs. The workspace holds the planes of
// one slab at a time. There are as many slabs as keep these planes within a limit, or as many as option
// `slabs` asks for. Slabs are pieces of k, and each adds to the result. In a grouped product slabs are pieces
// of B's columns, as A's planes stay in the workspace. Host code only; a pure function of the problem.
#pragma once

#include "planes.h"

namespace jaxgemm::cuda::sm90 {

constexpr size_t kGuardBytes = 256;  // of the workspace, so that the magnitudes behind the guard are aligned

struct Slabs {
  int64_t count = 0;  // 0: the planes of the smallest slab pass the limit
  int64_t each = 0;   // extent of each slab but the last, along k or columns: whole steps
  int64_t last = 0;   // extent of the last slab
  // Offsets in the workspace, in bytes: A's planes come first, then B's planes, then for scaled planes the
  // guard and the rows' largest magnitudes.
  size_t b_offset = 0, scales_offset = 0, bytes = 0;

  int64_t extent(int64_t index) const { return index == count - 1 ? last : each; }
};

Slabs slabs_of(const GemmProblem& problem);

// The arithmetic in which the problem's planes are multiplied: scaled planes are for single products only.
Arithmetic plane_arithmetic(const GemmProblem& problem);

// Slab number `index` as the engine multiplies it in `arithmetic`: the operands are planes. If each operand
// is a single plane, the slab is an ordinary product of 16 bits, but grouped products have tiles of planes
// all the same. Of slabs of k the first writes alpha A B + beta C, each other slab adds to the result, and
// the last slab adds the bias and applies the activation.
GemmProblem slab_problem(const GemmProblem& problem, const Slabs& slabs, int64_t index,
                         Arithmetic arithmetic);

}  // namespace jaxgemm::cuda::sm90
