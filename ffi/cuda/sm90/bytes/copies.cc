#include "copies.h"

#include "../../../arithmetic.h"
#include "../planes/planes.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int64_t kAlign = 16;  // bytes that the copy engine's rows are aligned to

bool batched(const GemmProblem& p, const Matrix& x, int level) {
  return p.batch[level] > 1 && x.batch_stride[level] != 0;
}

// Whether the copy engine can load an operand in place. The operand has `lines` lines in memory.
bool loadable(const GemmProblem& p, const Matrix& x, int64_t lines) {
  if (lines > 1 && x.ld % kAlign != 0) return false;
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
  // An operand that is not K-major may be the engine's x (turned.cuh). If both are not K-major, x is the
  // operand that takes longer to copy.
  bool a_loads = loadable(p, p.a, p.a.transposed ? p.k : p.m),
       b_loads = loadable(p, p.b, p.b.transposed ? p.n : p.k);
  if (promoted(p)) {  // no tile adds up promoted sums with x from registers
    a_loads = a_loads && !p.a.transposed;
    b_loads = b_loads && p.b.transposed;
  }
  const bool a_turns = a_loads && p.a.transposed, b_turns = b_loads && !p.b.transposed;
  const bool a_first = copy_bytes(p, p.a, p.m) > copy_bytes(p, p.b, p.n);
  copies.a = !a_loads || (a_turns && b_turns && !a_first);
  copies.b = !b_loads || (a_turns && b_turns && a_first);
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
