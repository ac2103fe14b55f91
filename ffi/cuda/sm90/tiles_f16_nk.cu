// The engine's kernels for f16 operands, x MN-major and y K-major.
#include "launch.cuh"

namespace jaxgemm::cuda::sm90 {
template Status launch_tiles<__half, Major::kMN, Major::kK>(const Params&, const Launch&);
}  // namespace jaxgemm::cuda::sm90
