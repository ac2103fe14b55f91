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

// The same by what is known at run time: operands' type and the majors of x and y.
template <typename From>
Status launch_tiles(DType type, Major x, Major y, const From& parameters, const Launch& launch) {
  return with_majors(x, y, [&]<Major kX, Major kY>() {
    return type == DType::kBF16 ? launch_tiles<Product<__nv_bfloat16>, kX, kY>(parameters, launch)
                                : launch_tiles<Product<__half>, kX, kY>(parameters, launch);
  });
}

}  // namespace jaxgemm::cuda::sm90
