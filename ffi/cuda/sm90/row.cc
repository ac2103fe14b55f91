// The row `sm90` of the kernel table.
#include <algorithm>
#include <array>

#include "../rows.h"
#include "many.h"
#include "options.h"
#include "plan_many.h"
#include "sm90.h"

namespace jaxgemm::cuda {
namespace {

using sm90::kOptionCount;

struct RowOptions {
  Option list[kOptionCount];
};
constexpr RowOptions kRowOptions = [] {
  RowOptions options{};
  for (int i = 0; i < kOptionCount; ++i) options.list[i] = {sm90::kOptions[i].name, sm90::kOptions[i].values};
  return options;
}();
// The sums of a row have one order for every m as long as K is not split and its steps begin at the same
// places. In what order the tiles are computed changes no sum, nor does how unaligned rows are loaded.
constexpr Pin kPins[] = {{"split_k", 1},      {"walk_height", 0}, {"unaligned", 0},
                         {"every_eighth", 1}, {"tail", 1},        {"slabs", 1}};

// And of fp32 operands, in planes of 16 bits; and of 8 bits.
constexpr TypeRule fp32_rule(Arithmetic arithmetic) {
  return {DType::kF32, DType::kF32, DType::kF32, arithmetic};
}
constexpr auto kTypes = [] {
  constexpr size_t kIntegers = 4, kFloats = 4 * 3;  // of 8 bits
  std::array<TypeRule, std::size(k16BitTypes) + 5 + kIntegers + kFloats> types{};
  std::ranges::copy(k16BitTypes, types.begin());
  size_t i = std::size(k16BitTypes);
  for (const Arithmetic x :
       {Arithmetic::kBf16, Arithmetic::kBf16X3, Arithmetic::kBf16X6, Arithmetic::kBf16X9, Arithmetic::kF16X3})
    types[i++] = fp32_rule(x);
  for (const DType a : {DType::kS8, DType::kU8}) {
    for (const DType b : {DType::kS8, DType::kU8}) types[i++] = {a, b, DType::kS32};
  }
  for (const DType a : {DType::kE4M3, DType::kE5M2}) {
    for (const DType b : {DType::kE4M3, DType::kE5M2}) {
      for (const DType d : {DType::kBF16, DType::kF16, DType::kF32}) types[i++] = {a, b, d};
    }
  }
  return types;
}();

// Of 8 bits with scales, any pair of integers or of floats.
constexpr auto kScaledTypes = [] {
  std::array<TypeRule, 2 * 4 * 3> types{};
  size_t i = 0;
  const auto add = [&](DType x, DType y) {
    for (const DType a : {x, y}) {
      for (const DType b : {x, y}) {
        for (const DType d : {DType::kBF16, DType::kF16, DType::kF32}) types[i++] = {a, b, d};
      }
    }
  };
  add(DType::kS8, DType::kU8);
  add(DType::kE4M3, DType::kE5M2);
  return types;
}();

constexpr KernelEntry kRows[] = {
    {.name = "sm90",
     .family = "sm90",
     .summary = "16-bit tensor cores by wgmma and TMA, warp-specialised and persistent, for Hopper",
     .platform = Platform::kCuda,
     .min_arch = 90,
     .max_arch = 90,
     .types = kTypes,
     .options = kRowOptions.list,
     .scaled_types = kScaledTypes,
     .gated = true,
     .grouped = true,
     .many = true,
     .deterministic = true,
     .pins = kPins,
     .unsupported = JAXGEMM_SM90_FN(unsupported_sm90),
     .candidates = JAXGEMM_SM90_FN(candidates_sm90),
     .workspace = JAXGEMM_SM90_FN(workspace_sm90),
     .prepare = JAXGEMM_SM90_FN(prepare_sm90),
     .launch = JAXGEMM_SM90_FN(launch_sm90),
     .unsupported_many = JAXGEMM_SM90_FN(unsupported_many_sm90),
     .workspace_many = JAXGEMM_SM90_FN(workspace_many_sm90),
     .prepare_many = JAXGEMM_SM90_FN(prepare_many_sm90),
     .launch_many = JAXGEMM_SM90_FN(launch_many_sm90)},
};

}  // namespace

std::span<const KernelEntry> sm90_rows() { return kRows; }

}  // namespace jaxgemm::cuda
