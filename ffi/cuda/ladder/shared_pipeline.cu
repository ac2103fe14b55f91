// shared_pipeline: `fragment_pipeline` with two buffers of shared memory. Tiles 128 x 128 x 16, 256 threads,
// two by two pieces of 4 x 4 a thread.
//
// The next tile is fetched into registers before the present one is multiplied. After 15 of its 16 steps of k
// it goes into the other buffer, and the last step's products cover the first read from there. Global latency
// is hidden as well now, and one barrier a tile suffices, since no thread writes the buffer that is being
// read.
//
//   tile       128 x 128 x 16
//   threads    256
//   registers  128: 64 sums, 32 operands
//   tiles      pass through registers
//   stages     2
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

// Two blocks a multiprocessor leave 128 registers a thread. 16-bit operands, which are converted on their way
// to shared memory, need a few more.
template <typename T>
__global__ void __launch_bounds__(kThreads, sizeof(typename T::A) == 2 ? 1 : 2)
    shared_pipeline(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(16) Acc a_tile[2][kBlockK][kPitchA];
  __shared__ alignas(16) Acc b_tile[2][kBlockK][kBlockN];
  const int row = threadIdx.x / kThreadCols * 4;
  const int col = threadIdx.x % kThreadCols * 4;
  const int64_t block_row = int64_t{p.tile_row()} * kBlockM;
  const int64_t block_col = int64_t{p.tile_col()} * kBlockN;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kBlockM, kBlockK, kThreads, 4, AcrossK<kPitchA>> a(p, batch, block_row);
    TileB<T, kBlockN, kBlockK, kThreads, 4, AcrossK<kBlockN>> b(p, batch, block_col);
    Acc acc[8][8] = {};
    Acc a_column[2][8], b_row[2][8];
    const auto read_fragments = [&](int stage, int k) {
      read4(&a_column[k % 2][0], &a_tile[stage][k][row]);
      read4(&a_column[k % 2][4], &a_tile[stage][k][row + kHalfM]);
      read4(&b_row[k % 2][0], &b_tile[stage][k][col]);
      read4(&b_row[k % 2][4], &b_tile[stage][k][col + kHalfN]);
    };
    const auto fetch = [&](int64_t k_left) {
      a.fetch(k_left);
      b.fetch(k_left);
    };
    const auto put = [&](int stage) {
      a.put(&a_tile[stage][0][0]);
      b.put(&b_tile[stage][0][0]);
    };
    if (p.k > 0) {
      fetch(p.k);
      put(0);
    }
    __syncthreads();
    read_fragments(0, 0);
    int stage = 0;
    for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK, stage ^= 1) {
      if (k_left > kBlockK) fetch(k_left - kBlockK);
#pragma unroll
      for (int k = 0; k < kBlockK - 1; ++k) {
        read_fragments(stage, k + 1);
        add_outer_product(acc, a_column[k % 2], b_row[k % 2]);
      }
      // After the last tile this stores a stale one: cheaper than a branch, and it is not multiplied.
      put(stage ^ 1);
      __syncthreads();
      read_fragments(stage ^ 1, 0);
      add_outer_product(acc, a_column[(kBlockK - 1) % 2], b_row[(kBlockK - 1) % 2]);
    }
    store_results<4>(
        p, batch, acc, [&](int i) { return block_row + row + i / 4 * kHalfM + i % 4; },
        [&](int j) { return block_col + col + j / 4 * kHalfN; });
  }
}

}  // namespace

Status launch_shared_pipeline(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(SingleTypes{}, p, [&](auto types) {
    return launch_tiles("shared_pipeline", shared_pipeline<decltype(types)>, p, buffers, executor, kBlockM,
                        kBlockN, kThreads);
  });
}

}  // namespace jaxgemm::cuda
