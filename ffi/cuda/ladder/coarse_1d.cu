// coarse_1d: each thread computes 8 elements of one column of D. Tiles 64 x 64 x 8, 512 threads, 4 KB of
// shared memory in f32.
//
// An element of B is read from shared memory once for 8 products, so that 8 products take 9 values from
// shared memory instead of 16. The 8 values of A are the same for the whole warp: a broadcast.
//
//   tile       64 x 64 x 8
//   threads    512
//   registers  64: 8 sums, 9 operands
//   tiles      pass through registers
//   shared     64 x 8 x 4, 8 x 64 x 4
//   shows      float32 FFMA LDS; float64 DFMA LDS
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlockM = 64, kBlockN = 64, kBlockK = 8;
constexpr int kCoarse = 8;
constexpr int kThreads = kBlockM * kBlockN / kCoarse;

template <typename T>
__global__ void __launch_bounds__(kThreads, sizeof(typename T::Acc) == 8 ? 1 : 2)
    coarse_1d(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(16) Acc a_tile[kBlockM][kBlockK];
  __shared__ alignas(16) Acc b_tile[kBlockK][kBlockN];
  const int row = threadIdx.x / kBlockN * kCoarse;  // the thread's place in the tile
  const int col = threadIdx.x % kBlockN;
  const int64_t block_row = int64_t{p.tile_row()} * kBlockM;
  const int64_t block_col = int64_t{p.tile_col()} * kBlockN;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kBlockM, kBlockK, kThreads, 1, AlongK<kBlockK>> a(p, batch, block_row);
    TileB<T, kBlockN, kBlockK, kThreads, 1, AcrossK<kBlockN>> b(p, batch, block_col);
    Acc acc[kCoarse][1] = {};
    for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK) {
      a.fetch(k_left);
      b.fetch(k_left);
      __syncthreads();  // all threads have read the previous tiles
      a.put(&a_tile[0][0]);
      b.put(&b_tile[0][0]);
      __syncthreads();
#pragma unroll 4  // unrolling all 8 would spill
      for (int k = 0; k < kBlockK; ++k) {
        const Acc b_value = b_tile[k][col];
#pragma unroll
        for (int i = 0; i < kCoarse; ++i) acc[i][0] += a_tile[row + i][k] * b_value;
      }
    }
    store_results<1>(
        p, batch, acc, [&](int i) { return block_row + row + i; }, [&](int) { return block_col + col; });
  }
}

}  // namespace

Status launch_coarse_1d(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(LadderTypes{}, p, [&](auto types) {
    return launch_tiles("coarse_1d", coarse_1d<decltype(types)>, p, buffers, executor, kBlockM, kBlockN,
                        kThreads);
  });
}

}  // namespace jaxgemm::cuda
