// gemv: a matrix times at most four vectors. Host side of the row.
#include "gemv.h"
#include "launch.h"

namespace jaxgemm::cuda {

std::string unsupported_gemv(const GemmProblem& p) {
  if (p.output_empty()) return {};
  std::string reason;
  (void)gemv::make_plan(p, true, &reason);
  return reason;
}

std::vector<Candidate> candidates_gemv(const GemmProblem& p, const Machine&) {
  if (p.output_empty()) return {};
  std::string reason;
  const gemv::Plan plan = gemv::make_plan(p, true, &reason);
  if (!reason.empty()) return {};
  return {{{plan.warps_k, plan.splits}, plan.microseconds}};
}

Status launch_gemv(const GemmProblem& p, const GemmBuffers& b, const Executor& executor) {
  if (p.output_empty()) return {};
  std::string reason;
  const gemv::Plan plan = gemv::make_plan(p, gemv::has_clusters(), &reason);
  if (!reason.empty()) return {"kernel 'gemv': " + reason};
  switch (p.a.dtype) {
    case DType::kF16:
      return gemv::launch_f16(p, b, plan, executor.stream);
    case DType::kBF16:
      return gemv::launch_bf16(p, b, plan, executor.stream);
    default:
      return gemv::launch_f32(p, b, plan, executor.stream);
  }
}

}  // namespace jaxgemm::cuda
