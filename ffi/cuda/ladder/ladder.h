// The types of those rungs that do not take one of ../type_lists.h, and what rows name beside launch
// functions. Host code only.
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

// rows.cc declares the launch functions.
std::string unsupported_wmma(const GemmProblem&);
std::string unsupported_wgmma_tma(const GemmProblem&);
Status prepare_wgmma_tma(const GemmProblem&, int device);

}  // namespace jaxgemm::cuda
