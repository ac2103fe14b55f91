// The second half of split-K: adds up the parts of each split tile in a fixed order and finishes D.
//
// Few outputs with many parts need the parts spread over threads as well, or a handful of threads would wait
// for hundreds of loads one after another. So a block's threads form groups, each adds up a run of parts, and
// the first group adds up the groups. The grouping follows from the problem, so the bits never change.
#pragma once

#include "kernel.cuh"

namespace jaxgemm::cuda::simt {

constexpr int kReduceThreads = 256;

template <typename Types, int V>
__global__ void __launch_bounds__(kReduceThreads)
    simt_reduce(const __grid_constant__ Params<Types> p, int bm, int bn, int groups) {
  using Acc = typename Types::Acc;
  using Wide = Vector<Acc, V>;
  __shared__ Wide shared[kReduceThreads];
  const int lanes = kReduceThreads / groups;
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int tile_size = bm * bn, across = bn / V;
  const int64_t rest = p.tiles - p.whole;

  const int at = (blockIdx.y * lanes + lane) * V;
  const bool in_tile = at < tile_size;
  for (int64_t t = blockIdx.x; t < rest; t += gridDim.x) {
    Wide sum{};
    if (in_tile) {
      const int64_t per_group = (p.splits + groups - 1) / groups;
      const int64_t begin = group * per_group;
      const int64_t end = begin + per_group < p.splits ? begin + per_group : p.splits;
#pragma unroll 4
      for (int64_t s = begin; s < end; ++s) {
        const Wide part = *reinterpret_cast<const Wide*>(p.partial + (s * rest + t) * tile_size + at);
#pragma unroll
        for (int v = 0; v < V; ++v) sum.x[v] += part.x[v];
      }
    }
    if (groups > 1) {
      shared[threadIdx.x] = sum;
      __syncthreads();
      for (int g = 1; group == 0 && g < groups; ++g) {
        const Wide part = shared[g * lanes + lane];
#pragma unroll
        for (int v = 0; v < V; ++v) sum.x[v] += part.x[v];
      }
      __syncthreads();
    }
    if (!in_tile || group != 0) continue;
    const TileIndex tile(p.whole + t, p.tiles_m, p.tiles_n);
    const int64_t row = int64_t(tile.m) * bm + at / V / across,
                  col = int64_t(tile.n) * bn + at / V % across * V;
    if (row < p.m && col < p.n) finish<V>(p.epilogue, sum, (tile.batch * p.m + row) * p.n + col, col);
  }
}

template <typename Types>
void launch_reduce(const Params<Types>& p, int bm, int bn, cudaStream_t stream) {
  constexpr int kVec = 16 / sizeof(typename Types::Acc);
  constexpr int64_t kEnough = 132 * 1024;  // threads that keep a chip's memory busy
  const int v = p.wide ? kVec : 1;
  const int64_t rest = p.tiles - p.whole;
  int groups = 1;
  while (groups < 32 && groups * 4 <= p.splits && rest * (bm * bn / v) * groups < kEnough) groups *= 2;
  const int lanes = kReduceThreads / groups;
  const dim3 grid(static_cast<unsigned>(rest < INT32_MAX ? rest : INT32_MAX),
                  static_cast<unsigned>((bm * bn / v + lanes - 1) / lanes));
  if (p.wide)
    simt_reduce<Types, kVec><<<grid, kReduceThreads, 0, stream>>>(p, bm, bn, groups);
  else
    simt_reduce<Types, 1><<<grid, kReduceThreads, 0, stream>>>(p, bm, bn, groups);
}

}  // namespace jaxgemm::cuda::simt
