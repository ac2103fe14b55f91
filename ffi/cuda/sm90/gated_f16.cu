// The engine's kernels for gated products of f16 operands.
#include "launch.cuh"

namespace jaxgemm::cuda::sm90 {
template Status launch_gated_tiles<__half>(const GatedParams&, const Launch&);
}  // namespace jaxgemm::cuda::sm90
