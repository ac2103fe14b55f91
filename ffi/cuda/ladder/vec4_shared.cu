// vec4_shared: tiles of A and B in shared memory, both row-major, all traffic four elements wide. Block 16 x
// 16 threads, tiles 128 x 128 x 16, a thread computes two by two pieces of 4 x 4.
//
// The tile of B is loaded as a left and a right half: a thread reads columns x and x + 64 of one row, as it
// will use columns x and x + 64 when it multiplies. A's elements come out of shared memory four along k.
//
//   tile       128 x 128 x 16
//   threads    256
//   registers  128: 64 sums, 40 operands
//   tiles      pass through registers
//   shared     128 x 20 x 4, 16 x 128 x 4
//   shows      float32 FFMA LDS.128 LDG.E.128
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 16;
constexpr int kHalfM = kBlockM / 2, kHalfN = kBlockN / 2;
constexpr int kThreadCols = 16;
constexpr int kThreads = 256;
// The two rows of threads in a warp read rows of A that lie 4 apart: a pitch of 20 puts them in other banks.
constexpr int kPitchA = kBlockK + 4;

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) vec4_shared(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(16) Acc a_tile[kBlockM][kPitchA];
  __shared__ alignas(16) Acc b_tile[kBlockK][kBlockN];
  const int row = threadIdx.x / kThreadCols * 4;
  const int col = threadIdx.x % kThreadCols * 4;
  const int64_t block_row = int64_t{p.tile_row()} * kBlockM;
  const int64_t block_col = int64_t{p.tile_col()} * kBlockN;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kBlockM, kBlockK, kThreads, 4, AlongK<kPitchA>> a(p, batch, block_row);
    TileB<T, kHalfN, kBlockK, kThreads, 4, AcrossK<kBlockN>> b_left(p, batch, block_col);
    TileB<T, kHalfN, kBlockK, kThreads, 4, AcrossK<kBlockN>> b_right(p, batch, block_col + kHalfN);
    Acc acc[8][8] = {};
    for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK) {
      a.fetch(k_left);
      b_left.fetch(k_left);
      b_right.fetch(k_left);
      __syncthreads();  // all threads have read the previous tiles
      a.put(&a_tile[0][0]);
      b_left.put(&b_tile[0][0]);
      b_right.put(&b_tile[0][kHalfN]);
      __syncthreads();
#pragma unroll 1  // four k at once already keep 32 elements of A in registers
      for (int k = 0; k < kBlockK; k += 4) {
        Acc a_rows[8][4];
#pragma unroll
        for (int i = 0; i < 8; ++i) read4(a_rows[i], &a_tile[row + i / 4 * kHalfM + i % 4][k]);
#pragma unroll
        for (int dk = 0; dk < 4; ++dk) {
          Acc a_column[8], b_row[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) a_column[i] = a_rows[i][dk];
          read4(&b_row[0], &b_tile[k + dk][col]);
          read4(&b_row[4], &b_tile[k + dk][col + kHalfN]);
          add_outer_product(acc, a_column, b_row);
        }
      }
    }
    store_results<4>(
        p, batch, acc, [&](int i) { return block_row + row + i / 4 * kHalfM + i % 4; },
        [&](int j) { return block_col + col + j / 4 * kHalfN; });
  }
}

}  // namespace

Status launch_vec4_shared(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(SingleTypes{}, p, [&](auto types) {
    return launch_tiles("vec4_shared", vec4_shared<decltype(types)>, p, buffers, executor, kBlockM, kBlockN,
                        kThreads);
  });
}

}  // namespace jaxgemm::cuda
