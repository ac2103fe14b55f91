#include "operands.h"

namespace jaxgemm::cuda::sm90 {
namespace {

RepackOperand repack_of(const PlannedOperand& x, const Matrix& matrix, const void* from, void* workspace,
                        const GemmProblem& p) {
  RepackOperand r;
  r.from = from;
  r.to = static_cast<uint8_t*>(workspace) + x.workspace_offset;
  r.length = x.inner();
  r.lines = x.outer();
  r.from_pitch = matrix.ld;
  r.to_pitch = x.ld;
  r.from_outer = p.batch[0] > 1 ? matrix.batch_stride[0] : 0;
  r.from_inner = p.batch[1] > 1 ? matrix.batch_stride[1] : 0;
  r.batch_outer = r.from_outer ? p.batch[0] : 1;
  r.batch_inner = r.from_inner ? p.batch[1] : 1;
  return r;
}

}  // namespace

Operands operands_of(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers) {
  const auto base = [&](const PlannedOperand& x, const void* given) {
    return x.repack ? static_cast<const uint8_t*>(buffers.workspace) + x.workspace_offset : given;
  };
  // b_up is copied where b is.
  return {base(plan.a, buffers.a), base(plan.b, buffers.b), p.gated ? base(plan.b_up, buffers.b_up) : nullptr,
          plan.a.repack || plan.b.repack};
}

std::vector<RepackOperand> repacks_of(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers) {
  std::vector<RepackOperand> copies;
  const auto add = [&](const PlannedOperand& x, const Matrix& matrix, const void* from) {
    if (x.repack) copies.push_back(repack_of(x, matrix, from, buffers.workspace, p));
  };
  add(plan.a, p.a, buffers.a);
  add(plan.b, p.b, buffers.b);
  add(plan.b_up, p.b, buffers.b_up);
  return copies;
}

}  // namespace jaxgemm::cuda::sm90
