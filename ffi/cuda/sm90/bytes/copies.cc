#include "copies.h"

#include "../../../arithmetic.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int64_t kAlign = 16;  // bytes, of the copy engine's rows

bool batched(const GemmProblem& p, const Matrix& x, int level) {
  return p.batch[level] > 1 && x.batch_stride[level] != 0;
}

// Whether the copy engine can load an operand of so many rows where it lies.
bool loadable(const GemmProblem& p, const Matrix& x, int64_t rows, bool k_major) {
  if (!k_major || (rows > 1 && x.ld % kAlign != 0)) return false;
  for (int i = 0; i < 2; ++i) {
    if (batched(p, x, i) && x.batch_stride[i] % kAlign != 0) return false;
  }
  return true;
}

int64_t copy_bytes(const GemmProblem& p, const Matrix& x, int64_t rows) {
  return (batched(p, x, 0) ? p.batch[0] : 1) * (batched(p, x, 1) ? p.batch[1] : 1) * rows *
         round_up(p.k, kLineBytes);
}

Matrix copy_of(const GemmProblem& p, const Matrix& x, int64_t rows, bool is_b) {
  Matrix out{.dtype = x.dtype, .transposed = is_b, .ld = round_up(p.k, kLineBytes)};
  if (batched(p, x, 1)) out.batch_stride[1] = rows * out.ld;
  if (batched(p, x, 0)) out.batch_stride[0] = rows * out.ld * (batched(p, x, 1) ? p.batch[1] : 1);
  return out;
}

}  // namespace

ByteCopies byte_copies(const GemmProblem& p) {
  ByteCopies copies;
  if (p.k == 0) return copies;
  copies.a = !loadable(p, p.a, p.m, !p.a.transposed);
  copies.b = !loadable(p, p.b, p.n, p.b.transposed);
  copies.b_offset = copies.a ? static_cast<size_t>(round_up(copy_bytes(p, p.a, p.m), 256)) : 0;
  copies.bytes = copies.b_offset + (copies.b ? round_up(copy_bytes(p, p.b, p.n), 256) : 0);
  return copies;
}

GemmProblem copied_problem(const GemmProblem& p, const ByteCopies& copies) {
  GemmProblem out = p;
  if (copies.a) out.a = copy_of(p, p.a, p.m, false);
  if (copies.b) out.b = copy_of(p, p.b, p.n, true);
  return out;
}

}  // namespace jaxgemm::cuda::sm90
