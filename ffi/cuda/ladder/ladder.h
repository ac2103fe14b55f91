// The launch functions of the ladder, in the order in which docs/ladder.md climbs it, and the types of those
// rungs that do not take one of ../type_lists.h. Host code only.
#pragma once

#include <string>

#include "../../kernel.h"

namespace jaxgemm::cuda {

inline constexpr TypeRule kTf32Types[] = {{DType::kF32, DType::kF32, DType::kF32, Arithmetic::kTf32}};
inline constexpr TypeRule kHalfTypes[] = {{DType::kF16, DType::kF16, DType::kF32},
                                          {DType::kF16, DType::kF16, DType::kF16}};
inline constexpr TypeRule kWmmaTypes[] = {
    {DType::kF16, DType::kF16, DType::kF32},   {DType::kF16, DType::kF16, DType::kF16},
    {DType::kBF16, DType::kBF16, DType::kF32}, {DType::kU8, DType::kU8, DType::kS32},
    {DType::kS8, DType::kS8, DType::kS32},     {DType::kF32, DType::kF32, DType::kF32, Arithmetic::kTf32},
    {DType::kF64, DType::kF64, DType::kF64},
};

// One thread, one element, straight from global memory.
Status launch_naive(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_coalesced(const GemmProblem&, const GemmBuffers&, const Executor&);
// Shared memory, then more and more results a thread.
Status launch_tiled(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_coarse_1d(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_register_blocked(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_coarse_2d(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_coarse_2d_vec(const GemmProblem&, const GemmBuffers&, const Executor&);
// Four-element accesses: without shared memory, with it, with A transposed into it, and pipelined.
Status launch_vec4_global(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_vec4_shared(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_vec4_shared_at(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_fragment_pipeline(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_shared_pipeline(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_warp_tiled(const GemmProblem&, const GemmBuffers&, const Executor&);
// D's tile in shared memory instead of those of A and B.
Status launch_outer_product(const GemmProblem&, const GemmBuffers&, const Executor&);
// Tensor cores through WMMA.
Status launch_wmma_tf32(const GemmProblem&, const GemmBuffers&, const Executor&);
Status launch_wmma_f16(const GemmProblem&, const GemmBuffers&, const Executor&);
// Option values, in order: tile_m, tile_n, tile_k, where 0 stands for the default.
Status launch_wmma(const GemmProblem&, const GemmBuffers&, const Executor&);
std::string unsupported_wmma(const GemmProblem&);
// Tensor cores without WMMA: Ampere's instructions, then Hopper's.
Status launch_mma_sync(const GemmProblem&, const GemmBuffers&, const Executor&);
std::string unsupported_wgmma_tma(const GemmProblem&);
Status prepare_wgmma_tma(const GemmProblem&, int device);
Status launch_wgmma_tma(const GemmProblem&, const GemmBuffers&, const Executor&);

}  // namespace jaxgemm::cuda
