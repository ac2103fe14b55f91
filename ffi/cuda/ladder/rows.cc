// The rungs of the ladder, in the order in which docs/ladder.md climbs it.
#include "../rows.h"

#include "ladder.h"

namespace jaxgemm::cuda {

using Launch = Status (*)(const GemmProblem&, const GemmBuffers&, const Executor&);

// A rung. Each is deterministic, and adds up every element along k in one and the same order.
static constexpr KernelEntry rung(const char* name, std::span<const TypeRule> types, const char* summary,
                                  Launch launch) {
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

// launch_<name>, declared here and defined in the rung's file: `built` is JAXGEMM_CUDA_FN or JAXGEMM_SM90_FN.
// In an unnamed namespace it would be another function, so what uses this is static instead.
#define JAXGEMM_LAUNCH(built, name)                                                \
  [] {                                                                             \
    Status launch_##name(const GemmProblem&, const GemmBuffers&, const Executor&); \
    return Launch{built(launch_##name)};                                           \
  }()

// The rung of the file <name>.cu.
#define JAXGEMM_RUNG(name, types, summary) rung(#name, types, summary, JAXGEMM_LAUNCH(JAXGEMM_CUDA_FN, name))

// WMMA's tile shapes; 0 is the default of the operands' type. Not every combination exists: unsupported_wmma
// knows those that do.
constexpr int64_t kWmmaTileMN[] = {0, 8, 16, 32}, kWmmaTileK[] = {0, 4, 8, 16};
constexpr Option kWmmaOptions[] = {{"tile_m", kWmmaTileMN}, {"tile_n", kWmmaTileMN}, {"tile_k", kWmmaTileK}};

static constexpr KernelEntry wmma() {
  KernelEntry row = JAXGEMM_RUNG(
      wmma, kWmmaTypes, "one warp per WMMA tile, fragments from global memory, every WMMA type and shape");
  row.options = kWmmaOptions;
  row.unsupported = JAXGEMM_CUDA_FN(unsupported_wmma);
  return row;
}

static constexpr KernelEntry wgmma_tma() {
  KernelEntry row =
      rung("wgmma_tma", k16BitTypes,
           "wgmma 64 x 256 x 16 by two warpgroups, TMA copies by a warp, 128 x 256 x 64 tiles in four stages",
           JAXGEMM_LAUNCH(JAXGEMM_SM90_FN, wgmma_tma));
  row.min_arch = row.max_arch = 90;
  row.unsupported = JAXGEMM_SM90_FN(unsupported_wgmma_tma);
  row.prepare = JAXGEMM_SM90_FN(prepare_wgmma_tma);
  return row;
}

constexpr KernelEntry kRows[] = {
    JAXGEMM_RUNG(naive, kFloatTypes, "one thread per element, global memory only"),
    JAXGEMM_RUNG(coalesced, kFloatTypes, "a warp along n, so that accesses coalesce"),
    JAXGEMM_RUNG(tiled, kFloatTypes, "32 x 32 tiles in padded shared memory"),
    JAXGEMM_RUNG(coarse_1d, kFloatTypes, "8 elements of a column a thread"),
    JAXGEMM_RUNG(register_blocked, kFloatTypes, "64 x 64 x 16 tiles, 4 x 4 a thread"),
    JAXGEMM_RUNG(coarse_2d, kSingleTypes, "128 x 128 x 16 tiles, 8 x 8 a thread"),
    JAXGEMM_RUNG(coarse_2d_vec, kSingleTypes, "coarse_2d in 128-bit accesses"),
    JAXGEMM_RUNG(vec4_global, kFloatTypes, "4 x 4 a thread from float4 rows, no shared memory"),
    JAXGEMM_RUNG(vec4_shared, kSingleTypes, "8 x 8 a thread, row-major A in shared memory"),
    JAXGEMM_RUNG(vec4_shared_at, kSingleTypes, "A transposed on its way into shared memory"),
    JAXGEMM_RUNG(fragment_pipeline, kSingleTypes, "fragments loaded one step ahead"),
    JAXGEMM_RUNG(shared_pipeline, kSingleTypes, "tiles loaded one step ahead too"),
    JAXGEMM_RUNG(warp_tiled, kSingleTypes, "warp tiles, double-buffered 128 x 128 x 8"),
    JAXGEMM_RUNG(outer_product, kSingleTypes, "C in shared memory, rank-1 updates from registers"),
    JAXGEMM_RUNG(wmma_tf32, kTf32Types, "WMMA 16 x 16 x 8 in TF32, 64 x 64 x 8 tiles"),
    JAXGEMM_RUNG(wmma_f16, kHalfTypes, "WMMA 16 x 16 x 16, 64 x 64 x 16 tiles in padded shared memory"),
    wmma(),
    JAXGEMM_RUNG(
        mma_sync, k16BitTypes,
        "mma.sync 16 x 8 x 16 from ldmatrix, 128 x 128 x 32 tiles in three swizzled cp.async stages"),
    wgmma_tma(),
};

std::span<const KernelEntry> ladder_rows() { return kRows; }

}  // namespace jaxgemm::cuda
