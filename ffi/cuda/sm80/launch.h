// From run-time choices to a compiled kernel. Each operand type is compiled in a file of its own, made from
// type.cu.in.
#pragma once

#include "engine.cuh"

namespace jaxgemm::cuda::sm80 {

struct Launch {
  bool prepare = false;  // set the attributes of all kernels of this type and majors instead
  bool wide = true;
  int tile = 0;  // index into kTiles, if wide
  unsigned blocks = 0;
  CUstream_st* stream = nullptr;
};

template <typename In, Major kMajorA, Major kMajorB>
Status launch_tiles(const Params& params, const Launch& launch);

}  // namespace jaxgemm::cuda::sm80
