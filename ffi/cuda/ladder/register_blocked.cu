// register_blocked: each thread computes 4 x 4 elements in registers. Tiles 64 x 64 x 16, 256 threads, one
// four-element global load a thread for A and one for B.
//
// Coarsening in both directions: 8 values from shared memory feed 16 products, where `coarse_1d` needs 9
// for 8.
//
//   tile       64 x 64 x 16
//   threads    256
//   registers  64: 16 sums, 8 operands
//   tiles      pass through registers
//   shared     64 x 20 x 4, 16 x 64 x 4
//   shows      float32 FFMA LDS.128 LDG.E.128; float64 DFMA LDS.128
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlockM = 64, kBlockN = 64, kBlockK = 16;
constexpr int kThreadM = 4, kThreadN = 4;
constexpr int kThreads = kBlockM / kThreadM * kBlockN / kThreadN;
// The two rows of threads in a warp read rows of A that lie 4 apart: a pitch of 20 puts them in other banks,
// where 16 would not, and keeps four-element accesses aligned.
constexpr int kPitchA = kBlockK + 4;

template <typename T>
__global__ void __launch_bounds__(kThreads) register_blocked(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(16) Acc a_tile[kBlockM][kPitchA];
  __shared__ alignas(16) Acc b_tile[kBlockK][kBlockN];
  const int row = threadIdx.x / (kBlockN / kThreadN) * kThreadM;
  const int col = threadIdx.x % (kBlockN / kThreadN) * kThreadN;
  const int64_t block_row = int64_t{p.tile_row()} * kBlockM;
  const int64_t block_col = int64_t{p.tile_col()} * kBlockN;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kBlockM, kBlockK, kThreads, 4, AlongK<kPitchA>> a(p, batch, block_row);
    TileB<T, kBlockN, kBlockK, kThreads, 4, AcrossK<kBlockN>> b(p, batch, block_col);
    Acc acc[kThreadM][kThreadN] = {};
    for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK) {
      a.fetch(k_left);
      b.fetch(k_left);
      __syncthreads();  // all threads have read the previous tiles
      a.put(&a_tile[0][0]);
      b.put(&b_tile[0][0]);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kBlockK; ++k) {
        Acc a_column[kThreadM], b_row[kThreadN];
#pragma unroll
        for (int i = 0; i < kThreadM; ++i) a_column[i] = a_tile[row + i][k];
#pragma unroll
        for (int j = 0; j < kThreadN; ++j) b_row[j] = b_tile[k][col + j];
        add_outer_product(acc, a_column, b_row);
      }
    }
    store_results<kThreadN>(
        p, batch, acc, [&](int i) { return block_row + row + i; },
        [&](int j) { return block_col + col + j; });
  }
}

}  // namespace

Status launch_register_blocked(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(LadderTypes{}, p, [&](auto types) {
    return launch_tiles("register_blocked", register_blocked<decltype(types)>, p, buffers, executor, kBlockM,
                        kBlockN, kThreads);
  });
}

}  // namespace jaxgemm::cuda
