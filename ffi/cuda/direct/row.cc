// The row `direct` of the kernel table.
#include "../rows.h"
#include "direct.h"

namespace jaxgemm::cuda {
namespace {

// See configs.h.
constexpr int64_t kTiles[] = {0, 1, 2};
constexpr Option kOptions[] = {{"tile", kTiles}, {"warps", kUpTo8}};
// The warps of a block share K, so their number decides the order of the sums; the tile does not.
constexpr Pin kPins[] = {{"warps", 8}};

constexpr KernelEntry kRows[] = {
    {.name = "direct",
     .family = "direct",
     .summary = "small 16-bit products: from memory into tensor cores' registers, rows of any alignment",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = k16BitTypes,
     .options = kOptions,
     .deterministic = true,
     .pins = kPins,
     .unsupported = JAXGEMM_CUDA_FN(unsupported_direct),
     .candidates = JAXGEMM_CUDA_FN(candidates_direct),
     .prepare = JAXGEMM_CUDA_FN(prepare_direct),
     .launch = JAXGEMM_CUDA_FN(launch_direct)},
};

}  // namespace

std::span<const KernelEntry> direct_rows() { return kRows; }

}  // namespace jaxgemm::cuda
