// The row `simt` of the kernel table.
#include "../rows.h"
#include "simt.h"

namespace jaxgemm::cuda {
namespace {

// 0 for the cost model's choice, else the number of a tile in tiles.cuh, counted from 1. How many there are
// depends on the type, so that unsupported_simt checks it.
constexpr Option kOptions[] = {{"tile", {}}};

constexpr KernelEntry kRows[] = {
    {.name = "simt",
     .family = "simt",
     .summary = "production FMA: cp.async stages, warp tiles, split-K, tiles by a cost model",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = kFloatTypes,
     .options = kOptions,
     .deterministic = true,
     .unsupported = JAXGEMM_CUDA_FN(unsupported_simt),
     .candidates = JAXGEMM_CUDA_FN(candidates_simt),
     .workspace = JAXGEMM_CUDA_FN(workspace_simt),
     .prepare = JAXGEMM_CUDA_FN(prepare_simt),
     .launch = JAXGEMM_CUDA_FN(launch_simt)},
};

}  // namespace

std::span<const KernelEntry> simt_rows() { return kRows; }

}  // namespace jaxgemm::cuda
