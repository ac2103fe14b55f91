// The engine's kernels for bf16 operands, x K-major and y K-major.
#include "launch.cuh"

namespace jaxgemm::cuda::sm90 {
template Status launch_tiles<__nv_bfloat16, Major::kK, Major::kK>(const Params&, const Launch&);
}  // namespace jaxgemm::cuda::sm90
