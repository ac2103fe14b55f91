// The engine's kernels for gated products of bf16 operands.
#include "launch.cuh"

namespace jaxgemm::cuda::sm90 {
template Status launch_gated_tiles<__nv_bfloat16>(const GatedParams&, const Launch&);
}  // namespace jaxgemm::cuda::sm90
