// What one problem becomes: operands in the engine's orientation, a configuration, and where things lie in
// the workspace. A pure function of the problem, so that the workspace asked for while tracing and the launch
// agree.
#pragma once

#include <initializer_list>
#include <string>

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
  int idle_stages = 0;  // stages of the ring that are left empty: see cost.h
  size_t workspace = 0;

  const PlannedOperand& x() const { return config.swap ? b : a; }
  const PlannedOperand& y() const { return config.swap ? a : b; }
};

// Plans a and b, and the places in the workspace of copies that they need. `workspace` counts the bytes
// taken so far. `a_in_place`, `b_in_place`: tiles load the operand where it lies, even if it is unaligned.
void plan_operands(const GemmProblem& problem, bool a_in_place, bool b_in_place, Plan* plan,
                   size_t* workspace);

// Why the copy engine, whose coordinates have 32 bits, cannot reach all of these extents; or an empty string.
std::string too_long(std::initializer_list<int64_t> extents);

// Whether operands' addresses are aligned is known only at the launch. XLA aligns buffers to 256 bytes, so
// a plan assumes that addresses are aligned to 16 bytes, and the launch refuses others.
Plan make_plan(const GemmProblem& problem);
// The same for a configuration that was chosen before.
Plan make_plan(const GemmProblem& problem, const Config& config);

}  // namespace jaxgemm::cuda::sm90
