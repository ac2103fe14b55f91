// The passes that split fp32 operands into planes (planes.h).
#pragma once

#include "../../../kernel.h"

namespace jaxgemm::cuda::sm90 {

// An operand as rows x k, and its planes, whose rows are along k. The elements of a source row are k_stride
// apart; either stride is 1. (In sums over the rows of groups these are its rows, and k is the other axis.)
struct SplitOperand {
  const float* from = nullptr;
  void* to = nullptr;
  uint32_t* largest = nullptr;  // of scaled planes: the bits of each row's largest finite magnitude
  int64_t rows = 0, k = 0;
  int64_t row_stride = 0, k_stride = 0;
  int64_t pitch = 0;                       // of a plane's row: k, filled up with zeros to whole steps
  int64_t row_pitch = 0, plane_pitch = 0;  // elements from row to row, and from plane to plane
  int64_t batch_outer = 1, batch_inner = 1;
  int64_t outer_stride = 0, inner_stride = 0;  // of the source; the planes are dense
};

using SplitOperands = SplitOperand[2];

// Finds the largest finite magnitudes of both operands' rows. What is there must be zeros.
Status launch_largest(const SplitOperands& operands, CUstream_st* stream);

// Splits both operands into planes of fp16, and raises the guard where these lose too much.
Status launch_scaled_split(const SplitOperands& operands, int32_t* guard, CUstream_st* stream);

// Splits both operands into `planes` planes of bf16; where there is a guard, only if that is up.
Status launch_split(const SplitOperands& operands, int planes, const int32_t* guard, CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm90
