// What the host sides of several kernels ask of a problem, its buffers and its options. Needs no CUDA.
#pragma once

#include <cstdint>

#include "../kernel.h"
#include "device/major.h"

namespace jaxgemm::cuda {

// Multiprocessors of the chip that the cost models were fitted on. A plan that is made for this number on
// every chip gives the same results on every chip.
constexpr int kModelSms = 132;
// That chip, an H200, as cost models see it.
constexpr Machine kModelMachine{kModelSms, 4.814304e12};

inline bool aligned(const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// The value of an option, by its place in the kernel's row; 0 where the problem leaves it to the plan.
inline int64_t fixed(const GemmProblem& p, int option) {
  return option < static_cast<int>(p.config.size()) ? p.config[option] : 0;
}

// Whether lines of x, its runs of contiguous elements, begin at 16-byte boundaries if the first does, in all
// products of a batch.
inline bool lines_aligned(const Matrix& x, int64_t lines) {
  const int64_t wide = 16 / static_cast<int64_t>(dtype_bytes(x.dtype));
  return (lines <= 1 || x.ld % wide == 0) && x.batch_stride[0] % wide == 0 && x.batch_stride[1] % wide == 0;
}

inline Major major_a(const GemmProblem& p) { return p.a.transposed ? Major::kMN : Major::kK; }
inline Major major_b(const GemmProblem& p) { return p.b.transposed ? Major::kK : Major::kMN; }

// Calls run.operator()<first, second>(): majors known at run time become template arguments.
template <typename Run>
Status with_majors(Major first, Major second, Run&& run) {
  constexpr Major kK = Major::kK, kMN = Major::kMN;
  if (first == kK) {
    return second == kK ? run.template operator()<kK, kK>() : run.template operator()<kK, kMN>();
  }
  return second == kK ? run.template operator()<kMN, kK>() : run.template operator()<kMN, kMN>();
}

}  // namespace jaxgemm::cuda
