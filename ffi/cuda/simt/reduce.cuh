// The second kernel of a product whose tiles are cut: adds up each cut tile's parts in order and finishes D.
//
// With few outputs and many parts, the parts are spread over threads as well, or a handful of threads would
// wait for hundreds of loads one after another. So a block's threads form teams; each team adds up a run of
// parts, and then the teams' sums are added up. The grouping follows from the plan, so the bits never
// change.
#pragma once

#include <algorithm>

#include "work.cuh"

namespace jaxgemm::cuda::simt {

constexpr int kReduceThreads = 256;

// What a block adds up at a time: `run` elements of one tile, from its element `base` on.
struct Run {
  int64_t batch, row0, col0;
  int bn, tile_size, base, run, teams;
};

// Adds up the teams' sums and finishes V elements at a time.
template <int V, typename Acc>
__device__ __forceinline__ void finish_run(const Outputs<Acc>& p, const Run& r, const Acc* shared) {
  constexpr Widths kWidths = sizeof(Acc) == 4 ? Widths::kAny : Widths::kAcc;
#pragma unroll 1
  for (int at = threadIdx.x * V; at < r.run && r.base + at < r.tile_size; at += kReduceThreads * V) {
    const Acc* const sums = shared + at;
    auto total = *reinterpret_cast<const Vector<Acc, V>*>(sums);
    for (int g = 1; g < r.teams; ++g) {
      const auto more = *reinterpret_cast<const Vector<Acc, V>*>(sums + g * r.run);
#pragma unroll
      for (int v = 0; v < V; ++v) total.x[v] += more.x[v];
    }
    const int64_t row = r.row0 + (r.base + at) / r.bn, col = r.col0 + (r.base + at) % r.bn;
    if (row < p.m && col < p.n) finish<kWidths>(p.results, total, (r.batch * p.m + row) * p.n + col, col);
  }
}

// Sums are read 16 bytes at a time. There is room for four blocks; without that bound the compiler makes room
// for five on some chips, and spills.
template <typename Acc>
__global__ void __launch_bounds__(kReduceThreads, 4)
    simt_reduce(const __grid_constant__ Outputs<Acc> p, int bm, int bn, int teams) {
  constexpr int kVec = 16 / sizeof(Acc);
  using Wide = Vector<Acc, kVec>;
  __shared__ Wide shared[kReduceThreads];
  const int lanes = kReduceThreads / teams;
  const int lane = threadIdx.x % lanes, team = threadIdx.x / lanes;
  const int tile_size = bm * bn, run = lanes * kVec;  // elements that the block adds up at a time
  const Cuts cuts(p);
  for (int64_t t = blockIdx.x; t < cuts.tiles; t += gridDim.x) {
    const int64_t first = cuts.range_of(t * cuts.tile_stages);
    const int64_t parts = cuts.range_of((t + 1) * cuts.tile_stages - 1) - first + 1;
    if (parts == 1) continue;  // no cut: already in D
    const TileIndex tile(p.whole + t, p.tiles_m, p.tiles_n);
    const int64_t row0 = int64_t(tile.m) * bm, col0 = int64_t(tile.n) * bn;
    const int64_t per_team = (parts + teams - 1) / teams;
    const int64_t begin = team * per_team;
    const int64_t end = begin + per_team < parts ? begin + per_team : parts;
    const Acc* const partial = p.partial + Cuts::slot(first, t) * tile_size;

    for (int base = blockIdx.y * run; base < tile_size; base += gridDim.y * run) {
      Wide sum{};
      if (base + lane * kVec < tile_size) {
        const Acc* const from = partial + base + lane * kVec;
#pragma unroll 4
        for (int64_t s = begin; s < end; ++s) {
          const Wide part = *reinterpret_cast<const Wide*>(from + s * tile_size);
#pragma unroll
          for (int v = 0; v < kVec; ++v) sum.x[v] += part.x[v];
        }
      }
      shared[threadIdx.x] = sum;
      __syncthreads();
      const Run here{tile.batch, row0, col0, bn, tile_size, base, run, teams};
      if (p.wide)
        finish_run<kVec>(p, here, reinterpret_cast<const Acc*>(shared));
      else
        finish_run<1>(p, here, reinterpret_cast<const Acc*>(shared));
      __syncthreads();
    }
  }
}

template <typename Acc>
void launch_reduce(const Outputs<Acc>& p, int bm, int bn, cudaStream_t stream) {
  constexpr int kVec = 16 / sizeof(Acc);
  constexpr int64_t kEnough = 132 * 1024;  // threads that keep a chip's memory busy
  const Cuts cuts(p);
  const int64_t parts = cuts.ranges / cuts.tiles, vectors = bm * bn / kVec;
  int teams = 1;
  while (teams < 32 && teams * 4 <= parts && cuts.tiles * vectors * teams < kEnough) teams *= 2;
  // A block finds its tile by divisions, whose time would show if each thread had only one vector to add up.
  const int64_t most = (vectors * teams + kReduceThreads - 1) / kReduceThreads;
  const int64_t wanted = 2 * kEnough / kReduceThreads / cuts.tiles;

  const dim3 grid(static_cast<unsigned>(cuts.tiles < INT32_MAX ? cuts.tiles : INT32_MAX),
                  static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, most)));
  // Errors show in launch_status.
  simt_reduce<<<grid, kReduceThreads, 0, stream>>>(p, bm, bn, teams);
}

}  // namespace jaxgemm::cuda::simt
