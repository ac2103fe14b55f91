// The element types of operands and results, in one table, from which all C++ and CUDA code takes what
// depends on a type. jaxgemm/dtypes.py has the same table for Python, and a test compares the two. And in
// which arithmetics elements are multiplied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace jaxgemm {

// Floats of 8 bits. Kernels hand them to tensor cores, and compute nothing on them.
struct E4M3 {
  uint8_t bits;
};
struct E5M2 {
  uint8_t bits;
};

// A row for each type:
//   enumerator  of DType
//   name        as NumPy and ml_dtypes have it
//   bytes       of an element
//   accumulator the type in which products of such operands are summed
//   xla         the enumerator of xla::ffi::DataType
//   host        the type of an element in the CPU kernel: one that cpu/convert.h declares, or a built-in one
//   device      the same in CUDA kernels: one that cuda/device/types.cuh includes, or a built-in one
// New rows go to the end, so that no number of DType changes.
#define JAXGEMM_ELEMENT_TYPES(X)                               \
  X(kF64, "float64", 8, kF64, F64, double, double)             \
  X(kF32, "float32", 4, kF32, F32, float, float)               \
  X(kF16, "float16", 2, kF32, F16, Half, __half)               \
  X(kBF16, "bfloat16", 2, kF32, BF16, BFloat16, __nv_bfloat16) \
  X(kS8, "int8", 1, kS32, S8, int8_t, int8_t)                  \
  X(kU8, "uint8", 1, kS32, U8, uint8_t, uint8_t)               \
  X(kS32, "int32", 4, kS32, S32, int32_t, int32_t)             \
  X(kE4M3, "float8_e4m3fn", 1, kF32, F8E4M3FN, E4M3, E4M3)     \
  X(kE5M2, "float8_e5m2", 1, kF32, F8E5M2, E5M2, E5M2)

#define JAXGEMM_ENUMERATOR(enumerator, ...) enumerator,
enum class DType : uint8_t { JAXGEMM_ELEMENT_TYPES(JAXGEMM_ENUMERATOR) };
#undef JAXGEMM_ENUMERATOR

struct ElementType {
  DType dtype;
  const char* name;
  size_t bytes;
  DType accumulator;
};

#define JAXGEMM_ROW(enumerator, name, bytes, accumulator, xla, host, device) \
  {DType::enumerator, name, bytes, DType::accumulator},
inline constexpr ElementType kElementTypes[] = {JAXGEMM_ELEMENT_TYPES(JAXGEMM_ROW)};
#undef JAXGEMM_ROW

constexpr const ElementType& element_type(DType t) { return kElementTypes[static_cast<size_t>(t)]; }
constexpr size_t dtype_bytes(DType t) { return element_type(t).bytes; }
constexpr const char* dtype_name(DType t) { return element_type(t).name; }
constexpr DType accumulator_of(DType t) { return element_type(t).accumulator; }

// How elements are multiplied, which their types leave open; jaxgemm/precision.py says what a precision
// allows.
enum class Arithmetic : uint8_t {
  kPlain,     // as they are
  kTf32,      // fp32 is rounded to TF32 first, which keeps 10 bits of the fraction
  kBf16,      // fp32 is rounded to bf16 first
  kBf16X3,    // fp32 is the sum of 2 parts in bf16, of whose products 3 are added up
  kBf16X6,    // of 3 parts, 6 products
  kBf16X9,    // of 3 parts, all 9 products
  kF16X3,     // of 2 parts in fp16, once rows of A and columns of B are scaled, 3 products
  kPromoted,  // fp8: sums of 128 products are added up in fp32
};

// On the wire and in Python, in the order of the enumerators.
inline constexpr const char* kArithmetics[] = {"plain",   "tf32",    "bf16",   "bf16_x3",
                                               "bf16_x6", "bf16_x9", "f16_x3", "promoted"};

constexpr const char* arithmetic_name(Arithmetic x) { return kArithmetics[static_cast<size_t>(x)]; }

// False when there is no arithmetic of that name.
constexpr bool find_arithmetic(std::string_view name, Arithmetic& out) {
  for (size_t i = 0; i < std::size(kArithmetics); ++i) {
    if (name == kArithmetics[i]) {
      out = static_cast<Arithmetic>(i);
      return true;
    }
  }
  return false;
}

// False when there is no type of that name.
constexpr bool find_dtype(std::string_view name, DType& out) {
  for (const ElementType& t : kElementTypes) {
    if (name == t.name) {
      out = t.dtype;
      return true;
    }
  }
  return false;
}

}  // namespace jaxgemm
