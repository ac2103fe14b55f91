// The instantiations of the engine, one function for each operand type and pair of majors.
#pragma once

#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

struct Launch {
  bool prepare = false;       // set the kernel's attributes on the current device instead of launching it
  bool after_repack = false;  // may start while the copying kernel still runs
  int tile = 0;
  int cluster = 1;
  dim3 blocks;
  CUstream_st* stream = nullptr;
};

// Launches a tile without gates. Each combination is compiled in a file of its own, made from tiles.cu.in.
template <typename In, Major kX, Major kY>
Status launch_tiles(const Params& params, const Launch& launch);

// Launches a gated tile, whose majors are fixed: gated_bf16.cu and gated_f16.cu.
template <typename In>
Status launch_gated_tiles(const GatedParams& params, const Launch& launch);

// Launches a tile of a grouped product: grouped.cu.in.
template <typename In, Major kWeights>
Status launch_grouped_tiles(const GroupedParams& params, const Launch& launch);

// Launches a tile of many products, of which all have these majors: many.cu.in.
template <typename In, Major kX, Major kY>
Status launch_many_tiles(const ManyParams& params, const Launch& launch);

extern template Status launch_gated_tiles<__nv_bfloat16>(const GatedParams&, const Launch&);
extern template Status launch_gated_tiles<__half>(const GatedParams&, const Launch&);
#define JAXGEMM_SM90_TILES(type)                                                                           \
  extern template Status launch_tiles<type, Major::kK, Major::kK>(const Params&, const Launch&);           \
  extern template Status launch_tiles<type, Major::kK, Major::kMN>(const Params&, const Launch&);          \
  extern template Status launch_tiles<type, Major::kMN, Major::kK>(const Params&, const Launch&);          \
  extern template Status launch_tiles<type, Major::kMN, Major::kMN>(const Params&, const Launch&);         \
  extern template Status launch_grouped_tiles<type, Major::kK>(const GroupedParams&, const Launch&);       \
  extern template Status launch_grouped_tiles<type, Major::kMN>(const GroupedParams&, const Launch&);      \
  extern template Status launch_many_tiles<type, Major::kK, Major::kK>(const ManyParams&, const Launch&);  \
  extern template Status launch_many_tiles<type, Major::kK, Major::kMN>(const ManyParams&, const Launch&); \
  extern template Status launch_many_tiles<type, Major::kMN, Major::kMN>(const ManyParams&, const Launch&);
JAXGEMM_SM90_TILES(__nv_bfloat16)
JAXGEMM_SM90_TILES(__half)
#undef JAXGEMM_SM90_TILES

}  // namespace jaxgemm::cuda::sm90
