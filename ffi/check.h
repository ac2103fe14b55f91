// Turns the attributes of a call into a GemmProblem, and says what is wrong with a call that has none.
//
// The handler and the Python module both come through here, so that a problem that Python accepts while
// tracing is one that the handler accepts, and so that neither trusts the other.
#pragma once

#include <bit>
#include <span>
#include <string>
#include <string_view>

#include "kernel.h"

namespace jaxgemm {

// The attributes as they travel: see jaxgemm/primitive.py for the other end.
struct CallSpec {
  std::string_view kernel;
  std::span<const int64_t> dims;  // m, n, k, outer batch, inner batch
  std::span<const int64_t> a, b;  // transposed, ld, outer batch stride, inner batch stride
  double alpha = 1.0, beta = 0.0;
  std::string_view activation;
  std::span<const int64_t> config;
  DType a_type = DType::kF32, b_type = DType::kF32, d_type = DType::kF32;
  bool has_c = false, has_bias = false;
  bool gated = false;
};

// Whether x is 0, also on threads that take subnormal numbers for 0 (XLA's CPU threads do).
inline bool is_zero(double x) { return std::bit_cast<uint64_t>(x) << 1 == 0; }

// Fills `problem` and `entry`, or returns what is wrong. Does not ask whether the kernel supports the
// problem.
Status decode_call(const CallSpec& spec, GemmProblem& problem, const KernelEntry*& entry);

// Elements that the operand must hold for the problem to stay inside of it.
int64_t required_elements(const Matrix& x, int64_t rows, int64_t cols, const int64_t (&batch)[2]);

Status check_elements(const char* argument, int64_t got, int64_t expected);

// "none", "relu", ...; null when there is no such activation.
const Activation* find_activation(std::string_view name);
std::string activation_names();

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::string out;
  auto append = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
      out += std::to_string(part);
    else
      out += part;
  };
  (append(parts), ...);
  return out;
}

}  // namespace jaxgemm
