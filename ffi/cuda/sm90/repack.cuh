// Copies operands whose rows the copy engine cannot address to rows that it can, at memory speed.
#pragma once

#include "../device/types.cuh"

namespace jaxgemm::cuda::sm90 {

// Rows of 16-bit elements, `lines` of them in each of batch_outer * batch_inner products. Zeros follow each
// of the copies up to the next multiple of 8 elements.
struct RepackOperand {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t length = 0, lines = 0;
  int64_t from_pitch = 0, to_pitch = 0;  // elements; the latter a multiple of 8
  int64_t batch_outer = 0, batch_inner = 0;
  int64_t from_outer = 0, from_inner = 0;  // batch strides; the copies are dense
};

// Either may have no lines.
Status launch_repack(const RepackOperand& first, const RepackOperand& second, CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm90
