// The pass that copies operands of 8 bits to rows along k (copies.h).
#pragma once

#include "../../../kernel.h"

namespace jaxgemm::cuda::sm90 {

// An operand as rows x k, and its copy, whose rows are `pitch` bytes apart. The elements of a source row are
// k_stride apart; either stride is 1. Without rows there is nothing to copy.
struct ByteOperand {
  const uint8_t* from = nullptr;
  uint8_t* to = nullptr;
  int64_t rows = 0, k = 0;
  int64_t row_stride = 0, k_stride = 0;
  int64_t pitch = 0;
  int64_t batch_outer = 1, batch_inner = 1;
  int64_t outer_stride = 0, inner_stride = 0;  // of the source; copies are dense
};

Status launch_byte_copies(const ByteOperand (&operands)[2], CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm90
