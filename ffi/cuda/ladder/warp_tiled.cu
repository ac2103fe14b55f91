// warp_tiled: a level of tiling between block and thread. Tiles 128 x 128 x 8, 256 threads, 8 x 8 results a
// thread; each of the 8 warps owns 64 x 32 of the block's tile.
//
// Threads of a warp share operands, so the warp's shape decides what shared memory has to deliver: 64 + 32
// values per k for 2048 products, where a warp of `shared_pipeline`, with 16 x 128 results, needs 144. A
// thread's results are two by two pieces of 4 x 4, so that at each read the warp's threads are neighbours.
//
// Everything is fetched ahead: the next tile from global memory into registers, from there into the second
// buffer of shared memory, and the next k from shared memory into a second pair of fragments. The loop's body
// is compiled once for each buffer, as addresses known to the compiler cost no instructions: 8 steps of k
// between two barriers hide little else.
//
//   tile       128 x 128 x 8
//   threads    256
//   registers  128: 64 sums, 32 operands
//   tiles      pass through registers
//   stages     2
//   shared     8 x 132 x 4, 8 x 128 x 4
//   shows      float32 FFMA LDS.128 LDG.E.128
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 8;
constexpr int kThreads = 256;
constexpr int kWarpM = 64, kWarpN = 32;
constexpr int kLanesM = 8, kLanesN = 4;                    // a warp's threads as a rectangle
constexpr int kPieceM = kWarpM / 2, kPieceN = kWarpN / 2;  // distance between a thread's pieces
constexpr int kPitchA = kBlockM + 4;  // the transposing store runs down a column: spread it over the banks
static_assert(kLanesM * 4 == kPieceM && kLanesN * 4 == kPieceN && kLanesM * kLanesN == 32);

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) warp_tiled(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(16) Acc a_tile[2][kBlockK][kPitchA], b_tile[2][kBlockK][kBlockN];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / (kBlockN / kWarpN) * kWarpM + lane / kLanesN * 4;
  const int col = warp % (kBlockN / kWarpN) * kWarpN + lane % kLanesN * 4;
  const int64_t block_row = int64_t{p.tile_row()} * kBlockM;
  const int64_t block_col = int64_t{p.tile_col()} * kBlockN;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kBlockM, kBlockK, kThreads, 4, AcrossK<kPitchA>> a(p, batch, block_row);
    TileB<T, kBlockN, kBlockK, kThreads, 4, AcrossK<kBlockN>> b(p, batch, block_col);
    const auto fetch = [&](int64_t k_left) {
      a.fetch(k_left);
      b.fetch(k_left);
    };
    const auto put = [&](int stage) {
      a.put(&a_tile[stage][0][0]);
      b.put(&b_tile[stage][0][0]);
    };
    Acc acc[8][8] = {};
    Acc a_column[2][8], b_row[2][8];
    const auto read_fragments = [&](int stage, int k) {
      read4(&a_column[k % 2][0], &a_tile[stage][k][row]);
      read4(&a_column[k % 2][4], &a_tile[stage][k][row + kPieceM]);
      read4(&b_row[k % 2][0], &b_tile[stage][k][col]);
      read4(&b_row[k % 2][4], &b_tile[stage][k][col + kPieceN]);
    };
    int64_t k_left = p.k;
    if (k_left > 0) {
      fetch(k_left);
      put(0);
    }
    __syncthreads();
    read_fragments(0, 0);
    const auto multiply_tile = [&]<int kStage>() {
      if (k_left > kBlockK) fetch(k_left - kBlockK);
#pragma unroll
      for (int k = 0; k < kBlockK - 1; ++k) {
        read_fragments(kStage, k + 1);
        add_outer_product(acc, a_column[k % 2], b_row[k % 2]);
      }
      // After the last tile this stores a stale one: cheaper than a branch, and it is not multiplied.
      put(kStage ^ 1);
      __syncthreads();
      read_fragments(kStage ^ 1, 0);
      add_outer_product(acc, a_column[(kBlockK - 1) % 2], b_row[(kBlockK - 1) % 2]);
      k_left -= kBlockK;
    };
    while (k_left > 0) {
      multiply_tile.template operator()<0>();
      if (k_left <= 0) break;
      multiply_tile.template operator()<1>();
    }
    store_results<4>(
        p, batch, acc, [&](int i) { return block_row + row + i / 4 * kPieceM + i % 4; },
        [&](int j) { return block_col + col + j / 4 * kPieceN; });
  }
}

}  // namespace

Status launch_warp_tiled(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(SingleTypes{}, p, [&](auto types) {
    return launch_tiles("warp_tiled", warp_tiled<decltype(types)>, p, buffers, executor, kBlockM, kBlockN,
                        kThreads);
  });
}

}  // namespace jaxgemm::cuda
