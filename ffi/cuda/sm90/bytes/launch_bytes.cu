#include "../../../recall.h"
#include "../../planning.h"
#include "../product.h"
#include "copies.h"
#include "copy.h"
#include "launch_bytes.h"

namespace jaxgemm::cuda::sm90 {
namespace {

ByteOperand byte_operand(const GemmProblem& p, const Matrix& x, const Matrix& copy, const void* from,
                         void* to, int64_t rows, bool k_contiguous) {
  ByteOperand o;
  o.from = static_cast<const uint8_t*>(from);
  o.to = to;
  o.rows = rows;
  o.k = p.k;
  o.row_stride = k_contiguous ? x.ld : 1;
  o.k_stride = k_contiguous ? 1 : x.ld;
  o.pitch = copy.ld;
  if (copy.batch_stride[0]) o.batch_outer = p.batch[0], o.outer_stride = x.batch_stride[0];
  if (copy.batch_stride[1]) o.batch_inner = p.batch[1], o.inner_stride = x.batch_stride[1];
  return o;
}

}  // namespace

Status launch_bytes(const GemmProblem& given, const GemmBuffers& buffers, const Executor& executor) {
  if (given.k == 0) return launch_empty_sum(given, buffers, executor.stream);
  const ByteCopies copies = byte_copies(given);
  const GemmProblem p = copied_problem(given, copies);
  GemmBuffers of = buffers;
  if (copies.a || copies.b) {
    uint8_t* const workspace = static_cast<uint8_t*>(buffers.workspace);
    ByteOperand operands[2];
    if (copies.a) {
      operands[0] = byte_operand(given, given.a, p.a, buffers.a, workspace, p.m, !given.a.transposed);
      of.a = workspace;
    }
    if (copies.b) {
      uint8_t* const to = workspace + copies.b_offset;
      operands[1] = byte_operand(given, given.b, p.b, buffers.b, to, p.n, given.b.transposed);
      of.b = to;
    }
    of.workspace = workspace + copies.bytes;
    if (Status s = launch_byte_copies(operands, executor.stream); !s.ok()) return s;
  }
  static thread_local Recall<Plan> recall;
  const Plan plan = recall(key_of(p, 0, 0), [&] { return make_plan(p); });
  AllParts params{};
  if (Status s = launch_product(p, plan, of, executor, {.behind_pass = copies.bytes > 0}, &params); !s.ok())
    return s;
  return add_partials(p, plan, of, executor.stream);
}

}  // namespace jaxgemm::cuda::sm90
