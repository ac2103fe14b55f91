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
  std::string_view arithmetic;
  std::span<const int64_t> scales;  // of scaled calls only: what a and b have, as Scale counts them
  std::span<const int64_t> groups;  // of grouped calls only: form (1 rows, 2 sums), sizes, sizes batched
};

// Reads attributes by read(name, field), which looks one up (in XLA's dictionary for the handler, in Python's
// for the module) and returns what is wrong with it, or an empty string. Keeps the first thing that is wrong.
template <typename Read>
class AttributeReader {
 public:
  explicit AttributeReader(Read& read) : read_(read) {}

  template <typename Field>
  void operator()(const char* name, Field& field) {
    ++count_;
    if (std::string why = wrong_.empty() ? read_(name, field) : std::string(); !why.empty())
      wrong_ = join("attribute '", name, "': ", why);
  }
  // What is wrong, or an empty string. `given` is the number of attributes that the call has: one that was
  // not read is an error.
  std::string wrong(size_t given) const {
    if (!wrong_.empty() || given == count_) return wrong_;
    return join("expected ", count_, " attributes, got ", given);
  }

 private:
  Read& read_;
  std::string wrong_;
  size_t count_ = 0;
};

// Reads every attribute of a call, and returns what is wrong or an empty string.
template <typename Read>
std::string read_attributes(Attributes& to, size_t given, bool grouped, bool scaled, Read&& read) {
  AttributeReader each(read);
  each("kernel", to.kernel);
  each("dims", to.dims);
  each("a", to.a);
  each("b", to.b);
  each("alpha", to.alpha);
  each("beta", to.beta);
  each("activation", to.activation);
  each("config", to.config);
  each("has_bias", to.has_bias);
  each("arithmetic", to.arithmetic);
  if (grouped) each("groups", to.groups);
  if (scaled) each("scales", to.scales);
  return each.wrong(given);
}

// A call that is not decoded: its attributes, the element types of its buffers (of c or bias, if it has none,
// those of d), and whether it is of a gated, a grouped or a scaled product, for which there are handlers of
// their own.
struct CallSpec {
  Attributes attributes;
  DType a = DType::kF32, b = DType::kF32, d = DType::kF32, c = DType::kF32, bias = DType::kF32;
  bool gated = false, grouped = false, scaled = false;
};

// Whether x is 0, also on threads that take subnormal numbers for 0 (XLA's CPU threads do).
inline bool is_zero(double x) { return std::bit_cast<uint64_t>(x) << 1 == 0; }

// Fills `problem` and `entry`, or returns what is wrong. Does not ask whether the kernel supports the
// problem.
Status decode_call(const CallSpec& spec, GemmProblem& problem, const KernelEntry*& entry);

// The parts of it that calls of many products share: the kernel of that name; the arithmetic of that name; m,
// n, k and the batch of a problem; and whether these are values of the kernel's options.
Status named_kernel(std::string_view name, const KernelEntry*& entry);
Status decode_arithmetic(std::string_view name, Arithmetic& arithmetic);
Status decode_dims(std::span<const int64_t> dims, GemmProblem& problem);
Status check_config(const KernelEntry& entry, std::span<const int64_t> config);

// How many elements a buffer needs so that every element of the operand lies in it.
int64_t required_elements(const Matrix& x, int64_t rows, int64_t cols, const int64_t (&batch)[2]);

Status check_elements(const char* argument, int64_t got, int64_t expected);

}  // namespace jaxgemm
