// The simt kernels for f16 and bf16 operands with f32 accumulation: for those who ask for plain FMA by name.
#include "variants.cuh"

namespace jaxgemm::cuda::simt {

Variant find_half(int tile) { return find_variant<HalfKind>(Half{}, tile, Load::kConvert, Load::kConvert); }

}  // namespace jaxgemm::cuda::simt
