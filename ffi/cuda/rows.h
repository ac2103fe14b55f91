// The rows of the CUDA kernels, by family, and how a row names its functions. Needs no CUDA: rows are
// compiled into every build.
#pragma once

#include "../kernel.h"
#include "type_lists.h"

// A kernel's function, or null in a build that does not have the kernel.
#ifdef JAXGEMM_CUDA
  #define JAXGEMM_CUDA_FN(function) function
#else
  #define JAXGEMM_CUDA_FN(function) nullptr
#endif
#ifdef JAXGEMM_SM90
  #define JAXGEMM_SM90_FN(function) function
#else
  #define JAXGEMM_SM90_FN(function) nullptr
#endif

namespace jaxgemm::cuda {

std::span<const KernelEntry> ladder_rows();
std::span<const KernelEntry> gemv_rows();
std::span<const KernelEntry> direct_rows();
std::span<const KernelEntry> simt_rows();
std::span<const KernelEntry> sm80_rows();
std::span<const KernelEntry> sm90_rows();

// The values of options that several kernels have; 0 leaves an option to the kernel's cost model.
inline constexpr int64_t kUpTo2[] = {0, 1, 2}, kUpTo4[] = {0, 1, 2, 4}, kUpTo8[] = {0, 1, 2, 4, 8};

}  // namespace jaxgemm::cuda
