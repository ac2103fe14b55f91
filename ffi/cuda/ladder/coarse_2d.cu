// coarse_2d: each thread computes 8 x 8 elements. Tiles 128 x 128 x 16, 256 threads, everything moved one
// element at a time.
//
// 16 values from shared memory feed 64 products. The tiles hold more elements than the block has threads, so
// each tile is loaded in 8 rounds, with 16 threads along a row of A and 128 along a row of B. A thread's 8
// rows and 8 columns lie 16 apart, so that at each k the threads of a warp read neighbouring elements of B,
// without bank conflicts.
//
//   tile       128 x 128 x 16
//   threads    256
//   registers  128: 64 sums, 16 operands
//   tiles      pass through registers
//   shared     128 x 16 x 4, 16 x 128 x 4
//   shows      float32 FFMA LDS
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 16;
constexpr int kThreadM = 8, kThreadN = 8;
constexpr int kThreadRows = kBlockM / kThreadM, kThreadCols = kBlockN / kThreadN;
constexpr int kThreads = kThreadRows * kThreadCols;

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) coarse_2d(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ Acc a_tile[kBlockM][kBlockK];
  __shared__ Acc b_tile[kBlockK][kBlockN];
  const int row = threadIdx.x / kThreadCols;
  const int col = threadIdx.x % kThreadCols;
  const int64_t block_row = int64_t{p.tile_row()} * kBlockM;
  const int64_t block_col = int64_t{p.tile_col()} * kBlockN;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kBlockM, kBlockK, kThreads, 1, AlongK<kBlockK>> a(p, batch, block_row);
    TileB<T, kBlockN, kBlockK, kThreads, 1, AcrossK<kBlockN>> b(p, batch, block_col);
    Acc acc[kThreadM][kThreadN] = {};
    for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK) {
      a.fetch(k_left);
      b.fetch(k_left);
      __syncthreads();  // all threads have read the previous tiles
      a.put(&a_tile[0][0]);
      b.put(&b_tile[0][0]);
      __syncthreads();
#pragma unroll 4  // the compiler then reads four k of A at once; more would spill
      for (int k = 0; k < kBlockK; ++k) {
        Acc a_column[kThreadM], b_row[kThreadN];
#pragma unroll
        for (int i = 0; i < kThreadM; ++i) a_column[i] = a_tile[row + i * kThreadRows][k];
#pragma unroll
        for (int j = 0; j < kThreadN; ++j) b_row[j] = b_tile[k][col + j * kThreadCols];
        add_outer_product(acc, a_column, b_row);
      }
    }
    store_results<1>(
        p, batch, acc, [&](int i) { return block_row + row + i * kThreadRows; },
        [&](int j) { return block_col + col + j * kThreadCols; });
  }
}

}  // namespace

Status launch_coarse_2d(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(SingleTypes{}, p, [&](auto types) {
    return launch_tiles("coarse_2d", coarse_2d<decltype(types)>, p, buffers, executor, kBlockM, kBlockN,
                        kThreads);
  });
}

}  // namespace jaxgemm::cuda
