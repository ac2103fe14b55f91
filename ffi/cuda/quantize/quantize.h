// Numbers as values of 8 bits and scales, whose products are about the numbers. Needs no CUDA.
#pragma once

#include <cstdint>

#include "../../kernel.h"

namespace jaxgemm::cuda {

// What has a scale of its own.
enum class Scaling : uint8_t { kTensor, kRow, kColumn };

struct QuantizeCall {
  const void* x;
  void* values;
  float* scales;
  DType from, to;
  int64_t batch, rows, columns;  // matrices of x, which lie one after the other
  Scaling scaling;
};

// What is wrong with the types of a call, or an empty string.
std::string unsupported_quantize(const QuantizeCall& call);

// Loads the kernel on the current device, which must not happen while XLA captures a launch.
Status prepare_quantize(const QuantizeCall& call);
// In one launch.
Status launch_quantize(const QuantizeCall& call, int device, CUstream_st* stream);

}  // namespace jaxgemm::cuda
