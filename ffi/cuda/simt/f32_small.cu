// The simt kernels for f32 with small, flat and tall tiles.
#include "variants.cuh"

namespace jaxgemm::cuda::simt {

Variant find_f32_small(int tile, Load a, Load b) { return find_variant<F32Kind>(F32Small{}, tile, a, b); }

}  // namespace jaxgemm::cuda::simt
