// From a plan to a launch. Each source file that includes this instantiates one operand type, so that they
// compile side by side.
#pragma once

#include <algorithm>
#include <bit>

#include "../planning.h"
#include "kernel.cuh"
#include "launch.h"

namespace jaxgemm::cuda::gemv {

// Whether every one of the operand's lines, in every product, starts with an aligned 16-byte vector.
inline bool starts_aligned(const Matrix& x, const void* data, int64_t lines) {
  return aligned(data, 16) && lines_aligned(x, lines);
}

template <typename T, bool kAlongK, bool kAligned, int kVectors>
Status launch_kernel(const GemmProblem& p, const GemmBuffers& b, const Plan& plan, CUstream_st* stream) {
  using In = typename T::A;
  const Operand<In> op_a(b.a, p.a, p), op_b(b.b, p.b, p);
  const Matrix& vector = plan.swapped ? p.b : p.a;
  // A vector is a column of op(B) or a row of op(A). Lines of one element each, with a pitch of 1, form one
  // contiguous vector.
  const bool contiguous = vector.transposed == plan.swapped || vector.ld == 1;
  constexpr int64_t kStep = WarpTile<In, kAlongK, kAligned, kVectors>::kStep;
  const int64_t vectors = std::min(p.m, p.n);
  const int panel = static_cast<int>(std::min<int64_t>(vectors, max_vectors(p.a.dtype)));
  const int64_t steps = (p.k + kStep - 1) / kStep;
  const Params<T> params{
      .matrix = plan.swapped ? op_a : op_b,
      .vector = plan.swapped ? op_b : op_a,
      .vector_stride = contiguous ? vector.ld : 1,
      .vector_k_stride = contiguous ? 1 : vector.ld,
      .length = plan.length,
      .k = p.k,
      .batch = p.batch_count(),
      .split_k = (steps + plan.splits - 1) / plan.splits * kStep,
      .vectors = vectors,
      .panel = panel,
      .panels = static_cast<int>((vectors + panel - 1) / panel),
      .warps_k = plan.warps_k,
      .splits = plan.splits,
      .tile_shift = std::countr_zero(static_cast<unsigned>(plan.tile_length)),
      .vector_wide = contiguous && starts_aligned(vector, plan.swapped ? b.b : b.a, std::min(p.m, p.n)),
      .swapped = plan.swapped,
      .epilogue = Epilogue<T>(p, b)};
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(plan.splits), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.tiles * plan.splits),
                        static_cast<unsigned>(std::min<int64_t>(params.batch * params.panels, 65535)));
  config.blockDim = dim3(kThreads);
  // A sum for each result and each warp along k, and in a cluster the block's own sums.
  config.dynamicSmemBytes = sizeof(float) * static_cast<size_t>((plan.warps_k + (plan.splits > 1)) *
                                                                params.panel * plan.tile_length);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = plan.splits > 1 ? 1 : 0;
  cudaLaunchKernelEx(&config, gemv<T, kAlongK, kAligned, kVectors>, params);
  return launch_status("gemv");
}

template <typename T, int kVectors>
Status launch(const GemmProblem& p, const GemmBuffers& b, const Plan& plan, CUstream_st* stream) {
  const int64_t lines = plan.along_k ? plan.length : p.k;
  const bool wide = plan.swapped ? starts_aligned(p.a, b.a, lines) : starts_aligned(p.b, b.b, lines);
  if (plan.along_k) {
    return wide ? launch_kernel<T, true, true, kVectors>(p, b, plan, stream)
                : launch_kernel<T, true, false, kVectors>(p, b, plan, stream);
  }
  return wide ? launch_kernel<T, false, true, kVectors>(p, b, plan, stream)
              : launch_kernel<T, false, false, kVectors>(p, b, plan, stream);
}

}  // namespace jaxgemm::cuda::gemv
