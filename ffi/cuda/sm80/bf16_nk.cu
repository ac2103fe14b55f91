// The kernels for bf16 operands, A M-major and B K-major.
#include "launch.cuh"

namespace jaxgemm::cuda::sm80 {
template Status launch_tiles<__nv_bfloat16, Major::kMN, Major::kK>(const Params&, const Launch&);
}  // namespace jaxgemm::cuda::sm80
