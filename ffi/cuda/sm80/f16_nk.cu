// The kernels for f16 operands, A M-major and B K-major.
#include "launch.cuh"

namespace jaxgemm::cuda::sm80 {
template Status launch_tiles<__half, Major::kMN, Major::kK>(const Params&, const Launch&);
}  // namespace jaxgemm::cuda::sm80
