// The types that several kernels take. A kernel's row and its code are both made from such a list, so that
// they cannot disagree: device/types.cuh turns one into the instantiations that a launch chooses from.
#pragma once

#include "../kernel.h"

namespace jaxgemm::cuda {

inline constexpr TypeRule kFloatTypes[] = {
    {DType::kF32, DType::kF32, DType::kF32},    {DType::kF64, DType::kF64, DType::kF64},
    {DType::kF16, DType::kF16, DType::kF16},    {DType::kF16, DType::kF16, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kBF16, DType::kF32},
};

// kFloatTypes without fp64: for kernels whose registers or shared memory have no room for its sums.
inline constexpr TypeRule kSingleTypes[] = {
    {DType::kF32, DType::kF32, DType::kF32},   {DType::kF16, DType::kF16, DType::kF16},
    {DType::kF16, DType::kF16, DType::kF32},   {DType::kBF16, DType::kBF16, DType::kBF16},
    {DType::kBF16, DType::kBF16, DType::kF32},
};

// For the tensor cores' 16-bit instructions.
inline constexpr TypeRule k16BitTypes[] = {
    {DType::kF16, DType::kF16, DType::kF16},
    {DType::kF16, DType::kF16, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kBF16},
    {DType::kBF16, DType::kBF16, DType::kF32},
};

}  // namespace jaxgemm::cuda
