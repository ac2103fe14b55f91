// From run-time choices to a compiled kernel. Each operand type is compiled in a file of its own, made from
// type.cu.in.
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
