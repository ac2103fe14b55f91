// coarse_2d_vec: `coarse_2d` with four elements an access, from global memory and from shared memory.
//
// Eight rounds of loads become two. The tile of A is transposed on its way into shared memory, so that
// elements of A's column are neighbours as well. A thread's 8 x 8 results are one solid square, as that is
// what two wide reads deliver; the price is bank conflicts, since neighbouring threads read 8 apart.
//
//   tile       128 x 128 x 16
//   threads    256
//   registers  128: 64 sums, 16 operands
//   tiles      pass through registers
//   shared     16 x 132 x 4, 16 x 128 x 4
//   shows      float32 FFMA LDS.128 LDG.E.128 STS.128
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 16;
constexpr int kThreadM = 8, kThreadN = 8;
constexpr int kThreadCols = kBlockN / kThreadN;
constexpr int kThreads = kBlockM / kThreadM * kThreadCols;
constexpr int kPitchA = kBlockM + 4;  // the transposing store runs down a column: spread it over the banks

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) coarse_2d_vec(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(16) Acc a_tile[kBlockK][kPitchA];
  __shared__ alignas(16) Acc b_tile[kBlockK][kBlockN];
  const int row = threadIdx.x / kThreadCols * kThreadM;
  const int col = threadIdx.x % kThreadCols * kThreadN;
  const int64_t block_row = int64_t{p.tile_row()} * kBlockM;
  const int64_t block_col = int64_t{p.tile_col()} * kBlockN;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kBlockM, kBlockK, kThreads, 4, AcrossK<kPitchA>> a(p, batch, block_row);
    TileB<T, kBlockN, kBlockK, kThreads, 4, AcrossK<kBlockN>> b(p, batch, block_col);
    Acc acc[kThreadM][kThreadN] = {};
    for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK) {
      a.fetch(k_left);
      b.fetch(k_left);
      __syncthreads();  // all threads have read the previous tiles
      a.put(&a_tile[0][0]);
      b.put(&b_tile[0][0]);
      __syncthreads();
#pragma unroll 8  // unrolling all 16 would spill
      for (int k = 0; k < kBlockK; ++k) {
        Acc a_column[kThreadM], b_row[kThreadN];
        read4(&a_column[0], &a_tile[k][row]);
        read4(&a_column[4], &a_tile[k][row + 4]);
        read4(&b_row[0], &b_tile[k][col]);
        read4(&b_row[4], &b_tile[k][col + 4]);
        add_outer_product(acc, a_column, b_row);
      }
    }
    store_results<4>(
        p, batch, acc, [&](int i) { return block_row + row + i; },
        [&](int j) { return block_col + col + j; });
  }
}

}  // namespace

Status launch_coarse_2d_vec(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(SingleTypes{}, p, [&](auto types) {
    return launch_tiles("coarse_2d_vec", coarse_2d_vec<decltype(types)>, p, buffers, executor, kBlockM,
                        kBlockN, kThreads);
  });
}

}  // namespace jaxgemm::cuda
