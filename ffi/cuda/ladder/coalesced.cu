// coalesced: one thread computes one element of D; a warp takes 32 neighbours of a row. Block 32 x 32.
//
// For each k a warp then needs one element of A, which is broadcast, and 32 consecutive ones of B, which are
// one 128-byte line; it writes D in whole lines too. It reads as many elements as `naive`, in fewer pieces.
//
// Neighbouring blocks lie below one another: all blocks that run at a time then read the same few columns of
// B, so that each line of B, a new one for every k, comes from the L2 cache, while a line of A lasts for 32
// steps of k. The reads of 16 steps are in flight together.
//
//   tile       1 x 1 x 1
//   threads    1024
//   registers  32: 1 sums, 2 operands
//   shows      float32 FFMA; float64 DFMA
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlock = 32;

template <typename T>
__global__ void __launch_bounds__(kBlock* kBlock, 2) coalesced(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  const int64_t row = int64_t{p.tile_row_down()} * kBlock + threadIdx.x / kBlock;
  const int64_t col = int64_t{p.tile_col_down()} * kBlock + threadIdx.x % kBlock;
  if (row >= p.m || col >= p.n) return;
  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    const Acc sum = dot_in_memory<Acc>(p.a.view(batch), p.b.view(batch), row, col, p.k);
    p.epilogue.store(batch * p.m * p.n, row, col, sum);
  }
}

}  // namespace

Status launch_coalesced(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(LadderTypes{}, p, [&](auto types) {
    return launch_tiles("coalesced", coalesced<decltype(types)>, p, buffers, executor, kBlock, kBlock,
                        kBlock * kBlock);
  });
}

}  // namespace jaxgemm::cuda
