// The kernels for f16 operands, A K-major and B N-major.
#include "launch.cuh"

namespace jaxgemm::cuda::sm80 {
template Status launch_tiles<__half, Major::kK, Major::kMN>(const Params&, const Launch&);
}  // namespace jaxgemm::cuda::sm80
