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

// And of fp32 operands, in planes of 16 bits; and of 8 bits, any pair of integers or of floats, whose sums
// may be added up in fp32.
constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr Arithmetic kOfFp32[] = {Arithmetic::kBf16, Arithmetic::kBf16X3, Arithmetic::kBf16X6,
                                  Arithmetic::kBf16X9, Arithmetic::kF16X3};
constexpr DType kIntegers8[] = {DType::kS8, DType::kU8}, kFloats8[] = {DType::kE4M3, DType::kE5M2};
template <typename Add>
constexpr void add_floats8(Add&& add) {
  for (const Arithmetic x : {Arithmetic::kPlain, Arithmetic::kPromoted}) {
    for (const DType a : kFloats8) {
      for (const DType b : kFloats8) {
        for (const DType d : kFloats) add(TypeRule{a, b, d, x});
      }
    }
  }
}

constexpr auto kTypes = [] {
  std::array<TypeRule, std::size(k16BitTypes) + std::size(kOfFp32) + 4 + 24> types{};
  size_t i = 0;
  const auto add = [&](const TypeRule& rule) { types[i++] = rule; };
  for (const TypeRule& rule : k16BitTypes) add(rule);
  for (const Arithmetic x : kOfFp32) add({DType::kF32, DType::kF32, DType::kF32, x});
  for (const DType a : kIntegers8) {
    for (const DType b : kIntegers8) add({a, b, DType::kS32});
  }
  add_floats8(add);
  return types;
}();
constexpr auto kScaledTypes = [] {
  std::array<TypeRule, 12 + 24> types{};
  size_t i = 0;
  const auto add = [&](const TypeRule& rule) { types[i++] = rule; };
  for (const DType a : kIntegers8) {
    for (const DType b : kIntegers8) {
      for (const DType d : kFloats) add({a, b, d});
    }
  }
  add_floats8(add);
  return types;
}();

constexpr KernelEntry kRows[] = {
    {.name = "sm90",
     .family = "sm90",
     .summary = "tensor cores of 16 and 8 bits, and fp32 in parts, by wgmma and TMA, for Hopper",
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
