// The row `sm80` of the kernel table.
#include "../rows.h"
#include "sm80.h"

namespace jaxgemm::cuda {
namespace {

// Tiles: 1 is 128 x 256, 2 is 128 x 128, 3 is 64 x 128, 4 is 64 x 64, 5 is 16 x 128.
constexpr int64_t kTiles[] = {0, 1, 2, 3, 4, 5};
constexpr Option kOptions[] = {{"tile", kTiles}, {"split_k", {}}};
// A split of K, or a tile with other steps of k, gives another order of the sums.
constexpr Pin kPins[] = {{"tile", 2}, {"split_k", 1}};

constexpr KernelEntry kRows[] = {
    {.name = "sm80",
     .family = "sm80",
     .summary = "16-bit tensor cores by mma.sync, for every chip since Ampere",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = k16BitTypes,
     .options = kOptions,
     .deterministic = true,
     .pins = kPins,
     .workspace = JAXGEMM_CUDA_FN(workspace_sm80),
     .prepare = JAXGEMM_CUDA_FN(prepare_sm80),
     .launch = JAXGEMM_CUDA_FN(launch_sm80)},
};

}  // namespace

std::span<const KernelEntry> sm80_rows() { return kRows; }

}  // namespace jaxgemm::cuda
