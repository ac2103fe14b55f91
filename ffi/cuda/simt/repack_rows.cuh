// Copies operands to what the kernel reads best: x contiguous, x being op(A)'s row or op(B)'s column, and
// rows of whole 16-byte vectors. Where each element is used often enough, this costs less than that every
// block tile copies single elements of rows along k, or of rows that are not made of vectors.
#pragma once

#include "../device/types.cuh"

namespace jaxgemm::cuda::simt {

// op(X) of every distinct product of a batch; one without elements is no work.
struct RepackOperand {
  const void* from = nullptr;
  void* to = nullptr;  // [product][k][pitch]; zeros between extent and pitch
  int64_t extent = 0, k = 0;
  bool along_k = false;  // k is contiguous in `from`, else x is
  int64_t ld = 0, pitch = 0;
  int64_t batch[2] = {0, 0}, batch_stride[2] = {0, 0};
};

// Repacks both operands in one launch. Their elements have 4 or 8 bytes.
void launch_repack(const RepackOperand& a, const RepackOperand& b, size_t element_bytes, cudaStream_t stream);

}  // namespace jaxgemm::cuda::simt
