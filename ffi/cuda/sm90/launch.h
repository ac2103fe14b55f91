// The instantiations of the engine, one function for each operand type and pair of majors.
#pragma once

#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

struct Launch {
  bool prepare = false;  // set the kernel's attributes on the current device instead of launching it
  bool after_repack = false;
  int tile = 0;
  int cluster = 1;
  int64_t blocks = 0;
  CUstream_st* stream = nullptr;
};

// In a file of its own for each combination: tiles_bf16_kk.cu and so on, x's major first.
template <typename In, Major kX, Major kY>
Status launch_tiles(const Params& params, const Launch& launch);

// Of the tiles with two weights, whose majors are fixed: gated_bf16.cu and gated_f16.cu.
template <typename In>
Status launch_gated_tiles(const GatedParams& params, const Launch& launch);

extern template Status launch_gated_tiles<__nv_bfloat16>(const GatedParams&, const Launch&);
extern template Status launch_gated_tiles<__half>(const GatedParams&, const Launch&);
extern template Status launch_tiles<__nv_bfloat16, Major::kK, Major::kK>(const Params&, const Launch&);
extern template Status launch_tiles<__nv_bfloat16, Major::kK, Major::kMN>(const Params&, const Launch&);
extern template Status launch_tiles<__nv_bfloat16, Major::kMN, Major::kK>(const Params&, const Launch&);
extern template Status launch_tiles<__nv_bfloat16, Major::kMN, Major::kMN>(const Params&, const Launch&);
extern template Status launch_tiles<__half, Major::kK, Major::kK>(const Params&, const Launch&);
extern template Status launch_tiles<__half, Major::kK, Major::kMN>(const Params&, const Launch&);
extern template Status launch_tiles<__half, Major::kMN, Major::kK>(const Params&, const Launch&);
extern template Status launch_tiles<__half, Major::kMN, Major::kMN>(const Params&, const Launch&);

}  // namespace jaxgemm::cuda::sm90
