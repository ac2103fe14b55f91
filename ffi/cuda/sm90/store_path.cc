#include "../planning.h"
#include "output.h"

namespace jaxgemm::cuda::sm90 {

StorePath store_path(const GemmProblem& p, bool swap, bool partial, ResultAlignment aligned) {
  if (partial) return StorePath::kFp32;
  const bool alone = !p.has_c && !p.has_bias && p.activation == Activation::kNone;
  const bool plain = alone && static_cast<float>(p.alpha) == 1.f;
  if (dtype_bytes(p.d) == 4) {
    const bool fits = swap || (p.n % 2 == 0 && p.result_pitch() % 2 == 0 && aligned.d >= 8);
    return plain && fits && !p.gated ? StorePath::kFp32 : StorePath::kElements;
  }
  const bool whole = p.n % 8 == 0 && aligned.d >= 16;  // all rows are whole vectors
  // A gated product's two sums are multiplied on every path, so only its alignment matters.
  if (whole && (plain || p.gated)) return StorePath::kTma;
  if (p.gated || alone) return StorePath::kByWarp;
  // A bias is read in pairs.
  const bool paired = !p.has_bias || (aligned.bias >= 4 && (!p.grouped() || p.n % 2 == 0));
  if (!has_short_code(p.activation) || !paired) return StorePath::kElements;
  if (whole && (!p.has_c || aligned.c >= 16)) return StorePath::kTmaFinished;
  return p.has_c ? StorePath::kElements : StorePath::kByWarpFinished;
}

}  // namespace jaxgemm::cuda::sm90
