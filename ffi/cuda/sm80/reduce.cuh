// The second phase of split tiles: partial results are added in the order of their splits and finished.
#pragma once

#include "../../kernel.h"
#include "configs.h"
#include "order.cuh"

namespace jaxgemm::cuda::sm80 {

struct Partials {
  const float* data;  // splits x tiles dense tiles
  TileOrder order;
  int64_t first, tiles;  // the split tiles among all
  int splits;
};

Status launch_reduce(const GemmProblem& problem, const GemmBuffers& buffers, const Partials& partials,
                     const TileConfig& tile, CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm80
