// What one problem becomes: operands in the engine's orientation, a configuration, and where things lie in
// the workspace. A pure function of the problem, so that the workspace asked for while tracing and the launch
// agree.
#pragma once

#include "../device/major.h"
#include "configs.h"

namespace jaxgemm::cuda::sm90 {

// One operand seen as rows x k: rows of op(A), or columns of op(B).
struct PlannedOperand {
  int64_t rows = 0, k = 0, ld = 0;
  Major major = Major::kK;
  int64_t batch_stride[2] = {0, 0};
  bool repack = false;          // it is copied to aligned rows first, which ld and batch_stride describe
  size_t workspace_offset = 0;  // of the copy

  int64_t inner() const { return major == Major::kK ? k : rows; }
  int64_t outer() const { return major == Major::kK ? rows : k; }
};

struct Plan {
  bool found = false;
  Config config;
  PlannedOperand a, b, b_up;  // b_up has no rows unless the problem is gated
  size_t partial_offset = 0;  // of the splits' partial results, fp32
  int64_t partial_pitch = 0;
  int idle_stages = 0;  // of the ring, which are left empty: see cost.h
  size_t workspace = 0;

  const PlannedOperand& x() const { return config.swap ? b : a; }
  const PlannedOperand& y() const { return config.swap ? a : b; }
};

// An operand of a product, and its copy's place in the workspace if it needs one: `workspace` is what of it
// has been taken. `in_place`: tiles load it where it lies though it may be unaligned.
PlannedOperand plan_operand(const Matrix& matrix, int64_t rows, bool k_major, const GemmProblem& problem,
                            bool in_place, size_t* workspace);

// Whether the bases are aligned is known only at the launch. XLA aligns buffers to 256 bytes, so they are
// assumed to be aligned to 16 and the launch refuses others.
Plan make_plan(const GemmProblem& problem);

}  // namespace jaxgemm::cuda::sm90
