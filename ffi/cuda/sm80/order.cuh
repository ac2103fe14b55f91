// The order in which tiles are visited: in groups of `group` tile rows, down each column of the group. Blocks
// that run together then share rows and columns of operands in the L2.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda::sm80 {

struct TileIndex {
  int64_t m, n, batch;
};

struct TileOrder {
  int64_t tiles_m, tiles_n;
  int64_t group;

  __device__ __forceinline__ TileIndex operator()(int64_t tile) const {
    TileIndex index{0, 0, 0};
    const int64_t product = tiles_m * tiles_n;
    if (tile >= product) {  // no division where there is no batch
      index.batch = tile / product;
      tile -= index.batch * product;
    }
    const int64_t first = tile / (group * tiles_n) * group;
    const int64_t height = tiles_m - first < group ? tiles_m - first : group;
    tile -= first * tiles_n;
    index.n = tile / height;
    index.m = first + (tile - index.n * height);
    return index;
  }
};

}  // namespace jaxgemm::cuda::sm80
