// The kernels for f32 operands.
#include "launch.cuh"

namespace jaxgemm::cuda::gemv {
namespace {

using F32 = Types<DType::kF32, DType::kF32, DType::kF32, DType::kF32>;

}  // namespace

Status launch_f32(const GemmProblem& p, const GemmBuffers& b, const Plan& plan, CUstream_st* stream) {
  const int64_t vectors = p.m < p.n ? p.m : p.n;
  if (vectors == 1) return launch<F32, 1>(p, b, plan, stream);
  if (vectors == 2) return launch<F32, 2>(p, b, plan, stream);
  return launch<F32, 4>(p, b, plan, stream);
}

bool has_clusters() {
  cudaFuncAttributes attributes;
  // Code for an older architecture has no cluster instructions, even on a chip that has clusters.
  return cudaFuncGetAttributes(&attributes, gemv<F32, true, true, 1>) == cudaSuccess &&
         attributes.ptxVersion >= 90;
}

}  // namespace jaxgemm::cuda::gemv
