// Calls of many products: of different shapes, of one type, each with a result of its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "check.h"

namespace jaxgemm {

// The attributes of such a call as they travel. jaxgemm/wire.py is the other end.
struct ManyAttributes {
  std::string_view kernel;
  std::span<const int64_t> dims;        // m, n, k of each product
  std::span<const int64_t> transposed;  // whether all a are, and all b
  std::span<const int64_t> config;      // values of the kernel's options, or nothing
  std::string_view arithmetic;
};

// As read_attributes() of single products.
template <typename Read>
std::string read_attributes(ManyAttributes& to, size_t given, Read&& read) {
  AttributeReader each(read);
  each("kernel", to.kernel);
  each("dims", to.dims);
  each("transposed", to.transposed);
  each("config", to.config);
  each("arithmetic", to.arithmetic);
  return each.wrong(given);
}

// A call that is not decoded: its attributes, and the element types of all a, all b and all d.
struct ManySpec {
  ManyAttributes attributes;
  DType a = DType::kF32, b = DType::kF32, d = DType::kF32;
};

// Fills `problems`, of which there is one at least, and `entry`, or returns what is wrong. Does not ask
// whether the kernel supports the problems, whose configs point into the attributes.
Status decode_many(const ManySpec& spec, std::vector<GemmProblem>& problems, const KernelEntry*& entry);

}  // namespace jaxgemm
