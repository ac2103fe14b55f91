// The row `gemv` of the kernel table.
#include "../rows.h"
#include "gemv.h"

namespace jaxgemm::cuda {
namespace {

// See plan.h.
constexpr Option kOptions[] = {{"warps_k", kUpTo8}, {"splits", kUpTo8}};

constexpr KernelEntry kRows[] = {
    {.name = "gemv",
     .family = "gemv",
     .summary = "few rows or columns: the larger operand read once",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = kSingleTypes,
     .options = kOptions,
     .deterministic = true,
     .unsupported = JAXGEMM_CUDA_FN(unsupported_gemv),
     .candidates = JAXGEMM_CUDA_FN(candidates_gemv),
     .launch = JAXGEMM_CUDA_FN(launch_gemv)},
};

}  // namespace

std::span<const KernelEntry> gemv_rows() { return kRows; }

}  // namespace jaxgemm::cuda
