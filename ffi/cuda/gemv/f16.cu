// The kernels for f16 operands.
#include "launch.cuh"

namespace jaxgemm::cuda::gemv {

Status launch_f16(const GemmProblem& p, const GemmBuffers& b, const Plan& plan, CUstream_st* stream) {
  if (p.d == DType::kF32) {
    return launch<Types<DType::kF16, DType::kF16, DType::kF32, DType::kF32>, 8>(p, b, plan, stream);
  }
  return launch<Types<DType::kF16, DType::kF16, DType::kF16, DType::kF32>, 8>(p, b, plan, stream);
}

}  // namespace jaxgemm::cuda::gemv
