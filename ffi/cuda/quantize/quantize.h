// Quantizing: numbers become values of 8 bits and scales, and value times scale is about the number. Needs no
// CUDA.
#pragma once

#include <cstdint>

#include "../../kernel.h"

namespace jaxgemm::cuda {

// Which numbers share a scale: all, or those of a row, or those of a column.
enum class Scaling : uint8_t { kTensor, kRow, kColumn };

struct QuantizeCall {
  const void* x;
  void* values;
  float* scales;
  DType from, to;
  int64_t batch, rows, columns;  // matrices of x, which lie one after the other
  Scaling scaling;
};

// What is wrong with the types or the size of a call, or an empty string.
std::string unsupported_quantize(const QuantizeCall& call);

// Loads the kernel on the current device, which must not happen while XLA captures a launch.
Status prepare_quantize(const QuantizeCall& call);
// Quantizes in one launch.
Status launch_quantize(const QuantizeCall& call, int device, CUstream_st* stream);

}  // namespace jaxgemm::cuda
