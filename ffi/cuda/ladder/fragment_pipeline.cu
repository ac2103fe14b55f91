// fragment_pipeline: `vec4_shared_at` with two fragments of A and of B in registers. Tiles 128 x 128 x 16,
// 256 threads, two by two pieces of 4 x 4 a thread.
//
// The fragments of k + 1 are read from shared memory before the products of k are computed, so that those 64
// products hide the latency of the read. The price is 16 registers.
//
//   tile       128 x 128 x 16
//   threads    256
//   registers  128: 64 sums, 32 operands
//   tiles      pass through registers
//   shared     16 x 132 x 4, 16 x 128 x 4
//   shows      float32 FFMA LDS.128 LDG.E.128
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 16;
constexpr int kHalfM = kBlockM / 2, kHalfN = kBlockN / 2;
constexpr int kThreadCols = 16;
constexpr int kThreads = 256;
constexpr int kPitchA = kBlockM + 4;  // the transposing store runs down a column: spread it over the banks

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) fragment_pipeline(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(16) Acc a_tile[kBlockK][kPitchA];
  __shared__ alignas(16) Acc b_tile[kBlockK][kBlockN];
  const int row = threadIdx.x / kThreadCols * 4;
  const int col = threadIdx.x % kThreadCols * 4;
  const int64_t block_row = int64_t{p.tile_row()} * kBlockM;
  const int64_t block_col = int64_t{p.tile_col()} * kBlockN;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kBlockM, kBlockK, kThreads, 4, AcrossK<kPitchA>> a(p, batch, block_row);
    TileB<T, kBlockN, kBlockK, kThreads, 4, AcrossK<kBlockN>> b(p, batch, block_col);
    Acc acc[8][8] = {};
    Acc a_column[2][8], b_row[2][8];
    const auto read_fragments = [&](int k) {
      read4(&a_column[k % 2][0], &a_tile[k][row]);
      read4(&a_column[k % 2][4], &a_tile[k][row + kHalfM]);
      read4(&b_row[k % 2][0], &b_tile[k][col]);
      read4(&b_row[k % 2][4], &b_tile[k][col + kHalfN]);
    };
    for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK) {
      a.fetch(k_left);
      b.fetch(k_left);
      __syncthreads();  // all threads have read the previous tiles
      a.put(&a_tile[0][0]);
      b.put(&b_tile[0][0]);
      __syncthreads();
      read_fragments(0);
#pragma unroll 8  // unrolling all 16 would spill
      for (int k = 0; k < kBlockK; ++k) {
        if (k + 1 < kBlockK) read_fragments(k + 1);
        add_outer_product(acc, a_column[k % 2], b_row[k % 2]);
      }
    }
    store_results<4>(
        p, batch, acc, [&](int i) { return block_row + row + i / 4 * kHalfM + i % 4; },
        [&](int j) { return block_col + col + j / 4 * kHalfN; });
  }
}

}  // namespace

Status launch_fragment_pipeline(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(SingleTypes{}, p, [&](auto types) {
    return launch_tiles("fragment_pipeline", fragment_pipeline<decltype(types)>, p, buffers, executor,
                        kBlockM, kBlockN, kThreads);
  });
}

}  // namespace jaxgemm::cuda
