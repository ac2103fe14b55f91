// The matrix product a kernel is asked for, in plain C++: no XLA types, no CUDA types.
//
//   D = activation(alpha * op(A) * op(B) + beta * C + bias)
//
// op(A) is m x k, op(B) is k x n, C and D are m x n, bias has n elements and is added to every row.
// There are batch[0] * batch[1] independent products. Two batch levels, each with its own stride, let
// operands such as (batch, sequence, head, feature) be read where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dtype.h"

namespace jaxgemm {

constexpr size_t kMaxOptions = 13;  // of one kernel

// kGelu is the tanh form (jax.nn.gelu's default), kGeluErf the exact one.
enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluErf, kSilu, kTanh, kSigmoid };

// Element (row, col) of op(X) in batch (i, j) lies at
//   i * batch_stride[0] + j * batch_stride[1] + (transposed ? col * ld + row : row * ld + col).
// All strides count elements. A batch stride of 0 broadcasts the operand.
struct Matrix {
  DType dtype = DType::kF32;
  bool transposed = false;
  int64_t ld = 0;
  int64_t batch_stride[2] = {0, 0};
};

struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch[2] = {1, 1};
  Matrix a, b;
  DType d = DType::kF32;  // D, C and bias share a type; C and D are dense, row-major, batch-major.
  double alpha = 1.0, beta = 0.0;
  bool has_c = false;  // false exactly when beta is 0: C is then never read.
  bool has_bias = false;
  Activation activation = Activation::kNone;
  // D = activation(A * B) * (A * B_up) instead. B_up has the type and layout of B; alpha is 1, and there is
  // neither C nor bias.
  bool gated = false;
  std::span<const int64_t> config;  // values of the kernel's options, in the order its row names them

  int64_t batch_count() const { return batch[0] * batch[1]; }
  bool output_empty() const { return m == 0 || n == 0 || batch_count() == 0; }
};

struct GemmBuffers {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* b_up = nullptr;  // null unless problem.gated
  const void* c = nullptr;     // null unless problem.has_c
  const void* bias = nullptr;  // null unless problem.has_bias
  void* d = nullptr;
  void* workspace = nullptr;  // KernelEntry::workspace(problem) bytes, 256-byte aligned, not initialised
};

}  // namespace jaxgemm
