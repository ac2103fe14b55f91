// The simt kernels for f64: plain DFMA. Sound rather than fast, where the tensor cores have twice the rate.
#include "variants.cuh"

namespace jaxgemm::cuda::simt {

Variant find_f64(int tile, Load a, Load b) { return find_variant<F64Kind>(F64{}, tile, a, b); }

}  // namespace jaxgemm::cuda::simt
