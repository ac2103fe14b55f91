// The simt kernels for f16 and bf16 operands with f32 accumulation: for those who ask for plain FMA by name.
#include "variants.cuh"

namespace jaxgemm::cuda::simt {

Variant find_half(DType operands, DType d, int tile) {
  constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;
  constexpr Load kLoad = Load::kConvert;
  if (operands == kF16) {
    return d == kF32 ? find_variant<Types<kF16, kF16, kF32, kF32>>(Half{}, tile, kLoad, kLoad)
                     : find_variant<Types<kF16, kF16, kF16, kF32>>(Half{}, tile, kLoad, kLoad);
  }
  return d == kF32 ? find_variant<Types<kBF16, kBF16, kF32, kF32>>(Half{}, tile, kLoad, kLoad)
                   : find_variant<Types<kBF16, kBF16, kBF16, kF32>>(Half{}, tile, kLoad, kLoad);
}

}  // namespace jaxgemm::cuda::simt
