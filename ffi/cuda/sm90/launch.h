// The instantiations of the engine, two functions for each operand type and pair of majors.
#pragma once

#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

struct Launch {
  bool prepare = false;  // set the kernel's attributes on the current device instead of launching it
  bool overlaps =
      false;  // may start while the kernel before it runs: one that copies, or a launch of the same call
  int tile = 0;
  int cluster = 1;
  dim3 blocks;
  CUstream_st* stream = nullptr;
};

// Launches a tile of one product, or of many (From is ManyParameters). Each combination of types and majors
// is compiled in a file of its own, made from tiles.cu.in.
template <typename Product, Major kX, Major kY, typename From>
Status launch_tiles(const From& parameters, const Launch& launch);

#define JAXGEMM_SM90_MAJORS(type, x, y)                                                             \
  extern template Status launch_tiles<Product<type>, Major::x, Major::y, AllParts>(const AllParts&, \
                                                                                   const Launch&);  \
  extern template Status launch_tiles<Product<type>, Major::x, Major::y, ManyParameters>(           \
      const ManyParameters&, const Launch&);
#define JAXGEMM_SM90_TYPE(type)      \
  JAXGEMM_SM90_MAJORS(type, kK, kK)  \
  JAXGEMM_SM90_MAJORS(type, kK, kMN) \
  JAXGEMM_SM90_MAJORS(type, kMN, kK) \
  JAXGEMM_SM90_MAJORS(type, kMN, kMN)
JAXGEMM_SM90_TYPE(__nv_bfloat16)
JAXGEMM_SM90_TYPE(__half)
#undef JAXGEMM_SM90_TYPE
#undef JAXGEMM_SM90_MAJORS

// Products of 8 bits, whose y is K-major: of floats, and of integers.
#define JAXGEMM_SM90_8BIT(x, y, sum)                                                              \
  extern template Status launch_tiles<Product<x, y, sum>, Major::kK, Major::kK>(const AllParts&,  \
                                                                                const Launch&);   \
  extern template Status launch_tiles<Product<x, y, sum>, Major::kMN, Major::kK>(const AllParts&, \
                                                                                 const Launch&);
#define JAXGEMM_SM90_PAIRS(a, b, sum) \
  JAXGEMM_SM90_8BIT(a, a, sum)        \
  JAXGEMM_SM90_8BIT(a, b, sum)        \
  JAXGEMM_SM90_8BIT(b, a, sum)        \
  JAXGEMM_SM90_8BIT(b, b, sum)
JAXGEMM_SM90_PAIRS(E4M3, E5M2, float)
JAXGEMM_SM90_PAIRS(int8_t, uint8_t, int32_t)
#undef JAXGEMM_SM90_PAIRS
#undef JAXGEMM_SM90_8BIT

// Calls run.operator()<X, Y, Sum>() with the types of a product of 8 bits.
template <typename Run>
Status with_8bit_types(DType x, DType y, Run&& run) {
  const bool same = x == y;
  switch (x) {
    case DType::kE4M3:
      return same ? run.template operator()<E4M3, E4M3, float>()
                  : run.template operator()<E4M3, E5M2, float>();
    case DType::kE5M2:
      return same ? run.template operator()<E5M2, E5M2, float>()
                  : run.template operator()<E5M2, E4M3, float>();
    case DType::kS8:
      return same ? run.template operator()<int8_t, int8_t, int32_t>()
                  : run.template operator()<int8_t, uint8_t, int32_t>();
    default:
      return same ? run.template operator()<uint8_t, uint8_t, int32_t>()
                  : run.template operator()<uint8_t, int8_t, int32_t>();
  }
}

// The same by what is known at run time: the types and majors of x and y.
template <typename From>
Status launch_tiles(DType x_type, DType y_type, Major x, Major y, const From& parameters,
                    const Launch& launch) {
  if constexpr (std::is_same_v<From, AllParts>) {
    if (dtype_bytes(x_type) == 1) {
      return with_8bit_types(x_type, y_type, [&]<typename X, typename Y, typename Sum>() {
        return x == Major::kK ? launch_tiles<Product<X, Y, Sum>, Major::kK, Major::kK>(parameters, launch)
                              : launch_tiles<Product<X, Y, Sum>, Major::kMN, Major::kK>(parameters, launch);
      });
    }
  }
  return with_majors(x, y, [&]<Major kX, Major kY>() {
    return x_type == DType::kBF16 ? launch_tiles<Product<__nv_bfloat16>, kX, kY>(parameters, launch)
                                  : launch_tiles<Product<__half>, kX, kY>(parameters, launch);
  });
}

}  // namespace jaxgemm::cuda::sm90
