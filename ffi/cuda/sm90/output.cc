#include "output.h"

#include "../planning.h"
#include "plan.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// A gated product's two sums are multiplied on every path, so only its alignment matters.
StorePath store_path(const Output& out, const GemmProblem& p) {
  const bool alone = !p.has_c && !p.has_bias && p.activation == Activation::kNone;
  const bool plain = alone && out.alpha == 1.f;
  if (out.f32) {
    const bool fits = out.swap || (p.n % 2 == 0 && aligned(out.d, 8));
    return plain && fits && !p.gated ? StorePath::kFp32 : StorePath::kElements;
  }
  const bool whole = p.n % 8 == 0 && aligned(out.d, 16);  // all rows are whole vectors
  if (whole && (plain || p.gated)) return StorePath::kTma;
  if (p.gated || alone) return StorePath::kRows;
  // A bias is read in pairs.
  const bool paired = aligned(out.bias, 4) && (!p.grouped() || p.n % 2 == 0);
  if (!has_short_code(p.activation) || !paired) return StorePath::kElements;
  if (whole && aligned(out.c, 16)) return StorePath::kTmaFinished;
  return p.has_c ? StorePath::kElements : StorePath::kRowsFinished;
}

// Partial results of a split K, which another kernel adds and finishes.
void to_workspace(const Plan& plan, const GemmProblem& p, void* workspace, Output* out) {
  out->d = static_cast<uint8_t*>(workspace) + plan.partial_offset;
  out->pitch = plan.partial_pitch;
  out->batch_stride = p.m * out->pitch;
  out->split_stride = out->batch_stride * p.batch_count();
  out->alpha = 1.f;
  out->f32 = true;
  out->path = StorePath::kFp32;
  // The padding of a row may be written.
  if (!out->swap) out->cols = out->pitch;
}

}  // namespace

Output output_of(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers) {
  Output out{};
  out.rows = p.m;
  out.cols = p.n;
  out.swap = plan.config.swap;
  if (plan.config.partials() > 1) {
    to_workspace(plan, p, buffers.workspace, &out);
    return out;
  }
  out.d = buffers.d;
  out.c = buffers.c;
  out.bias = buffers.bias;
  // The results of every eighth row from each of the first eight on are a product of a batch of eight.
  const bool every_eighth = kTiles[plan.config.tile].every_eighth;
  out.pitch = every_eighth ? 8 * p.n : p.n;
  out.batch_stride = every_eighth ? p.n : p.m * p.n;
  out.alpha = static_cast<float>(p.alpha);
  out.beta = static_cast<float>(p.beta);
  out.activation = p.activation;
  out.f32 = p.d == DType::kF32;
  out.path = store_path(out, p);
  return out;
}

}  // namespace jaxgemm::cuda::sm90
