// naive: one thread computes one element of D, straight from global memory. Block 16 x 16.
//
// Every element of A is read n times and every element of B m times; only the caches stand in between. A warp
// covers two rows of 16 columns, so each of its loads of B fetches half of a 128-byte line. Neighbouring
// blocks lie below one another, so that those that run at a time share the lines of B.
//
//   tile       1 x 1 x 1
//   threads    256
//   registers  48: 1 sums, 2 operands
//   shows      float32 FFMA; float64 DFMA
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlock = 16;

// Five blocks and not eight on a multiprocessor, with 16 steps of k unrolled: the L1 cache, which is what
// limits this kernel, serves many reads of few warps a little faster than few reads of many.
template <typename T>
__global__ void __launch_bounds__(kBlock* kBlock, 5) naive(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  const int64_t row = int64_t{p.tile_row_down()} * kBlock + threadIdx.y;
  const int64_t col = int64_t{p.tile_col_down()} * kBlock + threadIdx.x;
  if (row >= p.m || col >= p.n) return;
  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    const Acc sum = dot_in_memory<Acc>(p.a.view(batch), p.b.view(batch), row, col, p.k);
    p.epilogue.store(batch * p.m * p.n, row, col, sum);
  }
}

}  // namespace

Status launch_naive(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(LadderTypes{}, p, [&](auto types) {
    return launch_tiles("naive", naive<decltype(types)>, p, buffers, executor, kBlock, kBlock,
                        dim3(kBlock, kBlock));
  });
}

}  // namespace jaxgemm::cuda
