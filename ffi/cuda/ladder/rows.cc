// The rungs of the ladder, in the order in which docs/ladder.md climbs it.
#include "../rows.h"

#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

using Launch = Status (*)(const GemmProblem&, const GemmBuffers&, const Executor&);

// A rung. Each is deterministic, and adds up every element along k in one and the same order.
constexpr KernelEntry rung(const char* name, std::span<const TypeRule> types, Launch launch,
                           const char* summary) {
  return {.name = name,
          .family = "ladder",
          .summary = summary,
          .platform = Platform::kCuda,
          .min_arch = 80,
          .types = types,
          .deterministic = true,
          .batch_invariant = true,
          .launch = launch};
}

// WMMA's tile shapes; 0 is the default of the operands' type. Not every combination exists: unsupported_wmma
// knows those that do.
constexpr int64_t kWmmaTileMN[] = {0, 8, 16, 32}, kWmmaTileK[] = {0, 4, 8, 16};
constexpr Option kWmmaOptions[] = {{"tile_m", kWmmaTileMN}, {"tile_n", kWmmaTileMN}, {"tile_k", kWmmaTileK}};

constexpr KernelEntry wmma() {
  KernelEntry row = rung("wmma", kWmmaTypes, JAXGEMM_CUDA_FN(launch_wmma),
                         "one warp per WMMA tile, fragments from global memory, every WMMA type and shape");
  row.options = kWmmaOptions;
  row.unsupported = JAXGEMM_CUDA_FN(unsupported_wmma);
  return row;
}

constexpr KernelEntry wgmma_tma() {
  KernelEntry row = rung(
      "wgmma_tma", k16BitTypes, JAXGEMM_SM90_FN(launch_wgmma_tma),
      "wgmma 64 x 256 x 16 by two warpgroups, TMA copies by a warp, 128 x 256 x 64 tiles in four stages");
  row.min_arch = row.max_arch = 90;
  row.unsupported = JAXGEMM_SM90_FN(unsupported_wgmma_tma);
  row.prepare = JAXGEMM_SM90_FN(prepare_wgmma_tma);
  return row;
}

constexpr KernelEntry kRows[] = {
    rung("naive", kFloatTypes, JAXGEMM_CUDA_FN(launch_naive), "one thread per element, global memory only"),
    rung("coalesced", kFloatTypes, JAXGEMM_CUDA_FN(launch_coalesced),
         "a warp along n, so that accesses coalesce"),
    rung("tiled", kFloatTypes, JAXGEMM_CUDA_FN(launch_tiled), "32 x 32 tiles in padded shared memory"),
    rung("coarse_1d", kFloatTypes, JAXGEMM_CUDA_FN(launch_coarse_1d), "8 elements of a column a thread"),
    rung("register_blocked", kFloatTypes, JAXGEMM_CUDA_FN(launch_register_blocked),
         "64 x 64 x 16 tiles, 4 x 4 a thread"),
    rung("coarse_2d", kSingleTypes, JAXGEMM_CUDA_FN(launch_coarse_2d),
         "128 x 128 x 16 tiles, 8 x 8 a thread"),
    rung("coarse_2d_vec", kSingleTypes, JAXGEMM_CUDA_FN(launch_coarse_2d_vec),
         "coarse_2d in 128-bit accesses"),
    rung("vec4_global", kFloatTypes, JAXGEMM_CUDA_FN(launch_vec4_global),
         "4 x 4 a thread from float4 rows, no shared memory"),
    rung("vec4_shared", kSingleTypes, JAXGEMM_CUDA_FN(launch_vec4_shared),
         "8 x 8 a thread, row-major A in shared memory"),
    rung("vec4_shared_at", kSingleTypes, JAXGEMM_CUDA_FN(launch_vec4_shared_at),
         "A transposed on its way into shared memory"),
    rung("fragment_pipeline", kSingleTypes, JAXGEMM_CUDA_FN(launch_fragment_pipeline),
         "fragments loaded one step ahead"),
    rung("shared_pipeline", kSingleTypes, JAXGEMM_CUDA_FN(launch_shared_pipeline),
         "tiles loaded one step ahead too"),
    rung("warp_tiled", kSingleTypes, JAXGEMM_CUDA_FN(launch_warp_tiled),
         "warp tiles, double-buffered 128 x 128 x 8"),
    rung("outer_product", kSingleTypes, JAXGEMM_CUDA_FN(launch_outer_product),
         "C in shared memory, rank-1 updates from registers"),
    rung("wmma_tf32", kTf32Types, JAXGEMM_CUDA_FN(launch_wmma_tf32),
         "WMMA 16 x 16 x 8 in TF32, 64 x 64 x 8 tiles"),
    rung("wmma_f16", kHalfTypes, JAXGEMM_CUDA_FN(launch_wmma_f16),
         "WMMA 16 x 16 x 16, 64 x 64 x 16 tiles in padded shared memory"),
    wmma(),
    rung("mma_sync", k16BitTypes, JAXGEMM_CUDA_FN(launch_mma_sync),
         "mma.sync 16 x 8 x 16 from ldmatrix, 128 x 128 x 32 tiles in three swizzled cp.async stages"),
    wgmma_tma(),
};

}  // namespace

std::span<const KernelEntry> ladder_rows() { return kRows; }

}  // namespace jaxgemm::cuda
