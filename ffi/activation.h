// The activations, a row each: its name, and how much code it is on a device. activation.inc has what each
// computes, cuda/device/activation.cuh the device's forms of those that have short code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace jaxgemm {

// kGelu is the tanh form (jax.nn.gelu's default), kGeluErf the exact one.
enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluErf, kSilu, kTanh, kSigmoid };

enum class CodeLength : uint8_t {
  kTrivial,  // as few instructions as a bias
  kShort,    // few, and no loop: kernels have code for these and the trivial ones apart from the others
  kLong,
};

struct ActivationRow {
  Activation activation;
  const char* name;  // as calls name it
  CodeLength code;
};

inline constexpr ActivationRow kActivations[] = {
    {Activation::kNone, "none", CodeLength::kTrivial},
    {Activation::kRelu, "relu", CodeLength::kTrivial},
    {Activation::kGelu, "gelu", CodeLength::kShort},
    {Activation::kGeluErf, "gelu_erf", CodeLength::kLong},
    {Activation::kSilu, "silu", CodeLength::kShort},
    {Activation::kTanh, "tanh", CodeLength::kLong},
    {Activation::kSigmoid, "sigmoid", CodeLength::kLong},
};
inline constexpr size_t kActivationCount = std::size(kActivations);

constexpr const ActivationRow& row_of(Activation activation) {
  return kActivations[static_cast<size_t>(activation)];
}

// Whether row i is that of the i-th activation.
constexpr bool activations_in_order() {
  for (size_t i = 0; i < kActivationCount; ++i) {
    if (static_cast<size_t>(kActivations[i].activation) != i) return false;
  }
  return true;
}
static_assert(activations_in_order());

constexpr size_t count_of(CodeLength code) {
  size_t count = 0;
  for (const ActivationRow& row : kActivations) count += row.code == code;
  return count;
}

constexpr bool is_trivial(Activation activation) { return row_of(activation).code == CodeLength::kTrivial; }
constexpr bool has_short_code(Activation activation) { return row_of(activation).code != CodeLength::kLong; }

}  // namespace jaxgemm
