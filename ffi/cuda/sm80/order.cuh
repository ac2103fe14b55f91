// The order in which tiles are visited: in swaths of `walk_height` tile rows, down each column of a swath.
// Blocks that run together then share rows and columns of operands in the L2.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda::sm80 {

struct TileIndex {
  int64_t m, n, batch;
};

struct TileOrder {
  int64_t tiles_m, tiles_n;
  int64_t walk_height;

  __device__ __forceinline__ TileIndex operator()(int64_t tile) const {
    TileIndex index{0, 0, 0};
    const int64_t product = tiles_m * tiles_n;
    if (tile >= product) {  // no division where there is no batch
      index.batch = tile / product;
      tile -= index.batch * product;
    }
    const int64_t first = tile / (walk_height * tiles_n) * walk_height;
    const int64_t height = tiles_m - first < walk_height ? tiles_m - first : walk_height;
    tile -= first * tiles_n;
    index.n = tile / height;
    index.m = first + (tile - index.n * height);
    return index;
  }
};

}  // namespace jaxgemm::cuda::sm80
