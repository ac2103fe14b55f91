// Reads a call's attributes into a GemmProblem, or says what is wrong with them.
//
// The handler and the Python module both use these functions: a problem that Python accepts while tracing is
// one that the handler accepts, and neither relies on the other's check.
#pragma once

#include <bit>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernel.h"

namespace jaxgemm {

// Concatenates the parts; numbers become decimal.
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

// The attributes of a call as they travel. jaxgemm/wire.py is the other end: it writes what this reads.
struct Attributes {
  std::string_view kernel;
  std::span<const int64_t> dims;  // m, n, k, outer batch, inner batch
  std::span<const int64_t> a, b;  // transposed, ld, outer batch stride, inner batch stride
  double alpha = 1.0, beta = 0.0;
  std::string_view activation;
  std::span<const int64_t> config;  // values of the kernel's options, or nothing
  bool has_bias = false;
  std::span<const int64_t> groups;  // of grouped calls only: form (1 rows, 2 sums), sizes, sizes batched
};

// Reads every attribute by read(name, field), which looks it up (in XLA's dictionary for the handler, in
// Python's for the module) and returns what is wrong with it, or an empty string. `given` is the number of
// attributes that the call has: one that is not read here is an error. Returns the first thing that is wrong,
// or an empty string.
template <typename Read>
std::string read_attributes(Attributes& to, size_t given, bool grouped, Read&& read) {
  std::string wrong;
  size_t count = 0;
  const auto each = [&](const char* name, auto& field) {
    ++count;
    if (std::string why = wrong.empty() ? read(name, field) : std::string(); !why.empty())
      wrong = join("attribute '", name, "': ", why);
  };
  each("kernel", to.kernel);
  each("dims", to.dims);
  each("a", to.a);
  each("b", to.b);
  each("alpha", to.alpha);
  each("beta", to.beta);
  each("activation", to.activation);
  each("config", to.config);
  each("has_bias", to.has_bias);
  if (grouped) each("groups", to.groups);
  if (wrong.empty() && given != count) wrong = join("expected ", count, " attributes, got ", given);
  return wrong;
}

// A call that is not decoded: its attributes, the element types of its buffers, and whether it is of a gated
// or a grouped product, for which there are handlers of their own.
struct CallSpec {
  Attributes attributes;
  DType a = DType::kF32, b = DType::kF32, d = DType::kF32;
  bool gated = false, grouped = false;
};

// Whether x is 0, also on threads that take subnormal numbers for 0 (XLA's CPU threads do).
inline bool is_zero(double x) { return std::bit_cast<uint64_t>(x) << 1 == 0; }

// Fills `problem` and `entry`, or returns what is wrong. Does not ask whether the kernel supports the
// problem.
Status decode_call(const CallSpec& spec, GemmProblem& problem, const KernelEntry*& entry);

// How many elements a buffer needs so that every element of the operand lies in it.
int64_t required_elements(const Matrix& x, int64_t rows, int64_t cols, const int64_t (&batch)[2]);

Status check_elements(const char* argument, int64_t got, int64_t expected);

}  // namespace jaxgemm
