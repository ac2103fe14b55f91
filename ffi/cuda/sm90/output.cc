#include "output.h"

#include <bit>

#include "../planning.h"
#include "plan.h"

namespace jaxgemm::cuda::sm90 {

namespace {

// Up to 16; of null too.
int alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p) | 16;
  return static_cast<int>(address & -address);
}

// A factor of sums, in their type: of integers its bits.
float factor(const GemmProblem& p, double value) {
  return p.d == DType::kS32 ? std::bit_cast<float>(static_cast<int32_t>(value)) : static_cast<float>(value);
}

// Partial results of a split K, which another kernel adds and finishes. If there are scales, sums of integers
// become fp32 here, and that kernel applies the scales.
void to_workspace(const Plan& plan, const GemmProblem& p, void* workspace, Output* out) {
  out->d = static_cast<uint8_t*>(workspace) + plan.partial_offset;
  out->pitch = plan.partial_pitch;
  out->batch_stride = p.m * out->pitch;
  out->split_stride = out->batch_stride * p.batch_count();
  out->alpha = factor(p, 1.0);
  out->f32 = true;
  out->x_scale = out->y_scale = nullptr;
  // The padding of a row may be written.
  if (!out->swap) out->cols = out->pitch;
}

}  // namespace

Output output_of(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers) {
  const bool partial = plan.config.partials() > 1;
  Output out{};
  out.bf16 = p.d == DType::kBF16;
  out.rows = p.m;
  out.cols = p.n;
  out.swap = plan.config.swap;
  const auto lines = [](Scale scale) { return scale == Scale::kLines; };
  out.x_scale = out.swap ? buffers.b_scale : buffers.a_scale;
  out.y_scale = out.swap ? buffers.a_scale : buffers.b_scale;
  out.scaled = p.scaled();
  out.x_lines = lines(out.swap ? p.b_scale : p.a_scale);
  out.y_lines = lines(out.swap ? p.a_scale : p.b_scale);
  out.path = store_path(p, out.swap, partial,
                        {alignment_of(buffers.d), alignment_of(buffers.c), alignment_of(buffers.bias)});
  if (partial) {
    to_workspace(plan, p, buffers.workspace, &out);
    return out;
  }
  out.d = buffers.d;
  out.c = buffers.c;
  out.bias = buffers.bias;
  // The results of every eighth row from each of the first eight on are a product of a batch of eight.
  const bool every_eighth = kTiles[plan.config.tile].every_eighth;
  out.pitch = every_eighth ? 8 * p.n : p.result_pitch();
  out.batch_stride = every_eighth ? p.n : p.m * out.pitch;
  out.alpha = factor(p, p.alpha);
  out.beta = static_cast<float>(p.beta);
  out.activation = p.activation;
  out.f32 = dtype_bytes(p.d) == 4;
  return out;
}

}  // namespace jaxgemm::cuda::sm90
