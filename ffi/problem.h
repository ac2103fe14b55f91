// The matrix product a kernel is asked for, in plain C++: no XLA types, no CUDA types.
//
//   D = activation(alpha * op(A) * op(B) + beta * C + bias)
//
// Operands of 8 bits may have scales, which multiply op(A) * op(B) before alpha does.
// op(A) is m x k, op(B) is k x n, C and D are m x n, bias has n elements and is added to every row.
// There are batch[0] * batch[1] independent products. Two batch levels, each with its own stride, let
// operands such as (batch, sequence, head, feature) be read where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "activation.h"
#include "dtype.h"

namespace jaxgemm {

constexpr size_t kMaxOptions = 24;  // of one kernel: a call has room for so many values

// Element (row, col) of op(X) in batch (i, j) lies at
//   i * batch_stride[0] + j * batch_stride[1] + (transposed ? col * ld + row : row * ld + col).
// All strides count elements. A batch stride of 0 broadcasts the operand.
struct Matrix {
  DType dtype = DType::kF32;
  bool transposed = false;
  int64_t ld = 0;
  int64_t batch_stride[2] = {0, 0};
};

// What a grouped product does with its groups, which are rows of A that follow each other.
enum class Form : uint8_t {
  kNone,  // the product is not grouped
  kRows,  // each row of A is multiplied by its group's B, and rows without a group give zeros
  kSums,  // each group has a result of its own, the sum over its rows, which are columns of op(A)
};

// Groups of a grouped product. Only the device knows how many rows each has, and which is the first with a B.
struct Groups {
  Form form = Form::kNone;
  int64_t count = 0;           // of sizes
  bool sizes_batched = false;  // each product of the batch has sizes of its own
};

// What multiplies the sums of products for an operand of 8 bits, in fp32: nothing, one number, or a number
// for each row of op(A) or column of op(B). The numbers are the same for every product of a batch.
enum class Scale : uint8_t { kNone, kWhole, kLines };

struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch[2] = {1, 1};
  Matrix a, b;
  // C and D are dense, row-major, batch-major. C or bias, if there is none, has D's type.
  DType d = DType::kF32, c = DType::kF32, bias = DType::kF32;
  int64_t d_pitch = 0;  // elements from row to row of D, if D is a part of wider rows; 0: n
  Arithmetic arithmetic = Arithmetic::kPlain;
  double alpha = 1.0, beta = 0.0;
  bool has_c = false;  // false exactly when beta is 0: C is then never read.
  bool has_bias = false;
  Activation activation = Activation::kNone;
  // D = activation(A * B) * (A * B_up) instead. B_up has the type and layout of B; alpha is 1, and there is
  // neither C nor bias.
  bool gated = false;
  // In a grouped product, batch[1] counts groups: those that have a B (kRows) or a result (kSums). Only B
  // (kRows) or D (kSums) has this level of the batch; all other matrices have none. There is no C, and
  // alpha is 1.
  Groups groups;
  Scale a_scale = Scale::kNone, b_scale = Scale::kNone;
  std::span<const int64_t> config;  // values of the kernel's options, in the order its row names them

  int64_t result_pitch() const { return d_pitch ? d_pitch : n; }
  int64_t batch_count() const { return batch[0] * batch[1]; }
  bool grouped() const { return groups.form != Form::kNone; }
  bool scaled() const { return a_scale != Scale::kNone || b_scale != Scale::kNone; }
  // How many matrices D has.
  int64_t results() const { return groups.form == Form::kRows ? batch[0] : batch_count(); }
  bool output_empty() const { return m == 0 || n == 0 || results() == 0; }
};

struct GemmBuffers {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* b_up = nullptr;  // null unless problem.gated
  // Null unless the product is grouped: how many rows each group has, and the group that the first B or the
  // first result is of.
  const int32_t *sizes = nullptr, *offset = nullptr;
  const void* c = nullptr;     // null unless problem.has_c
  const void* bias = nullptr;  // null unless problem.has_bias; a row for each group that has a B
  const float *a_scale = nullptr, *b_scale = nullptr;  // null without such a scale
  void* d = nullptr;
  void* workspace = nullptr;  // KernelEntry::workspace(problem) bytes, 256-byte aligned, not initialised
};

}  // namespace jaxgemm
