// From run-time choices to a compiled kernel. One source file for each pair of majors and type, so that they
// compile side by side.
#pragma once

#include "kernel.cuh"

namespace jaxgemm::cuda::direct {

struct Launch {
  bool prepare = false;  // set the kernel's attributes instead of launching it
  bool aligned = true;
  Config config;
  Flow flow;
  dim3 blocks;
  CUstream_st* stream = nullptr;
};

template <typename In, Major kA, Major kB>
Status launch_tiles(const Params<In>& params, const Launch& launch);

}  // namespace jaxgemm::cuda::direct
