// vec4_shared_at: `vec4_shared` with the tile of A transposed on its way into shared memory. Tiles
// 128 x 128 x 16, 256 threads, two by two pieces of 4 x 4 a thread.
//
// A column of A is now as contiguous as a row of B: at each k a thread's 16 values are four wide reads, and
// no register holds an element before its turn. The tile of B is cut along rows: a thread loads rows y and y
// + 8.
//
//   tile       128 x 128 x 16
//   threads    256
//   registers  128: 64 sums, 16 operands
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
__global__ void __launch_bounds__(kThreads, 2) vec4_shared_at(const __grid_constant__ TiledProduct<T> p) {
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
    for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK) {
      a.fetch(k_left);
      b.fetch(k_left);
      __syncthreads();  // all threads have read the previous tiles
      a.put(&a_tile[0][0]);
      b.put(&b_tile[0][0]);
      __syncthreads();
#pragma unroll 8  // unrolling all 16 would spill
      for (int k = 0; k < kBlockK; ++k) {
        Acc a_column[8], b_row[8];
        read4(&a_column[0], &a_tile[k][row]);
        read4(&a_column[4], &a_tile[k][row + kHalfM]);
        read4(&b_row[0], &b_tile[k][col]);
        read4(&b_row[4], &b_tile[k][col + kHalfN]);
        add_outer_product(acc, a_column, b_row);
      }
    }
    store_results<4>(
        p, batch, acc, [&](int i) { return block_row + row + i / 4 * kHalfM + i % 4; },
        [&](int j) { return block_col + col + j / 4 * kHalfN; });
  }
}

}  // namespace

Status launch_vec4_shared_at(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(SingleTypes{}, p, [&](auto types) {
    return launch_tiles("vec4_shared_at", vec4_shared_at<decltype(types)>, p, buffers, executor, kBlockM,
                        kBlockN, kThreads);
  });
}

}  // namespace jaxgemm::cuda
