// Copies unaligned operands to aligned rows.
#pragma once

#include <span>

#include "../../device/types.cuh"

namespace jaxgemm::cuda::sm90 {

// An operand of 16-bit elements and its copy: `lines` rows of `length` elements in each of batch_outer *
// batch_inner products. In the copy, zeros fill each row up to a multiple of 8 elements.
struct RepackOperand {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t length = 0, lines = 0;
  int64_t from_pitch = 0, to_pitch = 0;  // elements; to_pitch is a multiple of 8
  int64_t batch_outer = 0, batch_inner = 0;
  int64_t from_outer = 0, from_inner = 0;  // batch strides; the copies are dense
};

// Copies all in as few launches as kernel parameters hold.
Status launch_repack(std::span<const RepackOperand> operands, CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm90
