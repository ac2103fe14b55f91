// A product of fp32 operands as products of planes (planes.h), in slabs: as many as keep the planes, of which
// the workspace holds one slab's, within a limit, or as many as option `slabs` asks for. Slabs are pieces of
// k, each of which adds to the result; or, of a grouped product, of B's columns, as A's planes stay. Host
// code only; a pure function of the problem.
#pragma once

#include "planes.h"

namespace jaxgemm::cuda::sm90 {

constexpr size_t kGuardBytes = 256;  // of the workspace, so that what follows is aligned

struct Slabs {
  int64_t count = 0;  // 0: the planes of the smallest slab pass the limit
  int64_t each = 0;   // of k, or of columns, of each slab but the last: whole steps
  int64_t last = 0;   // of the last one
  // In the workspace: A's planes, B's planes, and of scaled planes the guard and the rows' largest
  // magnitudes.
  size_t b_offset = 0, scales_offset = 0, bytes = 0;

  int64_t extent(int64_t index) const { return index == count - 1 ? last : each; }
};

Slabs slabs_of(const GemmProblem& problem);

// The arithmetic in which the problem's planes are multiplied: scaled ones are of single products.
Arithmetic plane_arithmetic(const GemmProblem& problem);

// Slab number `index` as the engine multiplies it in this arithmetic: operands are planes; where each is one,
// an ordinary product of 16 bits, whose groups have tiles of planes all the same. Of slabs of k the first
// writes alpha A B + beta C, each other one adds to that, and the last adds the bias and applies the
// activation.
GemmProblem slab_problem(const GemmProblem& problem, const Slabs& slabs, int64_t index,
                         Arithmetic arithmetic);

}  // namespace jaxgemm::cuda::sm90
