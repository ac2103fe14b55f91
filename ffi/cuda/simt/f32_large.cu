// The simt kernels for f32 with wide tiles.
#include "variants.cuh"

namespace jaxgemm::cuda::simt {

Variant find_f32_large(int tile, Load a, Load b) { return find_variant<F32Kind>(F32Large{}, tile, a, b); }

}  // namespace jaxgemm::cuda::simt
