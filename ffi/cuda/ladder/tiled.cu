// tiled: the block first copies a 32 x 32 tile of A and of B into shared memory. Block 32 x 32, one result a
// thread.
//
// Each element comes from global memory once for 32 uses. The tiles' rows are padded, so that the store of a
// transposed operand, which runs down a column, has no bank conflicts. The padding of A's rows is four
// elements, so that a warp, which needs one element of its row for each k, reads four at a time.
//
//   tile       32 x 32 x 32
//   threads    1024
//   registers  32: 1 sums, 2 operands
//   tiles      pass through registers
//   shared     32 x 36 x 4, 32 x 33 x 4
//   shows      float32 FFMA LDS STS BAR; float64 DFMA LDS
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kThreads = kTile * kTile;
constexpr int kPitchA = kTile + 4, kPitchB = kTile + 1;

template <typename T>
__global__ void __launch_bounds__(kThreads) tiled(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(16) Acc a_tile[kTile][kPitchA];
  __shared__ Acc b_tile[kTile][kPitchB];
  const int ty = threadIdx.x / kTile;
  const int tx = threadIdx.x % kTile;
  const int64_t block_row = int64_t{p.tile_row()} * kTile;
  const int64_t block_col = int64_t{p.tile_col()} * kTile;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kTile, kTile, kThreads, 1, AlongK<kPitchA>> a(p, batch, block_row);
    TileB<T, kTile, kTile, kThreads, 1, AcrossK<kPitchB>> b(p, batch, block_col);
    Acc sum = 0;
    for (int64_t k_left = p.k; k_left > 0; k_left -= kTile) {
      a.fetch(k_left);
      b.fetch(k_left);
      __syncthreads();  // all threads have read the previous tiles
      a.put(&a_tile[0][0]);
      b.put(&b_tile[0][0]);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kTile; ++k) sum += a_tile[ty][k] * b_tile[k][tx];
    }
    if (block_row + ty < p.m && block_col + tx < p.n) {
      p.epilogue.store(batch * p.m * p.n, block_row + ty, block_col + tx, sum);
    }
  }
}

}  // namespace

Status launch_tiled(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(LadderTypes{}, p, [&](auto types) {
    return launch_tiles("tiled", tiled<decltype(types)>, p, buffers, executor, kTile, kTile, kThreads);
  });
}

}  // namespace jaxgemm::cuda
