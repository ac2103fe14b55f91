// Adds up the partial results of split tiles. A block owns a stretch of one tile, in runs of 4 columns. Its
// threads form a table of slices x runs: each slice adds up consecutive splits, then the slices are added
// in order, so that the order of additions depends on the number of splits alone. With few splits there is
// one slice.
#include "../device/epilogue.cuh"
#include "reduce.cuh"

namespace jaxgemm::cuda::sm80 {
namespace {

constexpr int kThreads = 256;
constexpr int kSliceSplits = 8;  // loads that one thread has under way
constexpr int kMaxSlices = 16;

struct Table {
  int tile_m, tile_n;
  int slices;
  int stretches;   // of a tile
  int64_t blocks;  // stretches of all tiles
};

__device__ __forceinline__ float4 plus(float4 x, float4 y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) reduce(const __grid_constant__ Partials p, const Table table,
                                                   int64_t m, const __grid_constant__ Epilogue<T> epilogue) {
  __shared__ float4 sums[kThreads];
  const int runs = kThreads / table.slices;
  const int slice = static_cast<int>(threadIdx.x) / runs;
  const int64_t split_stride = p.tiles * table.tile_m * table.tile_n;
  const int each = (p.splits + table.slices - 1) / table.slices;
  const int begin = slice * each, end = min(begin + each, p.splits);
  // D may have more stretches than the 2^31 - 1 blocks of a grid.
#pragma unroll 1
  for (int64_t i = blockIdx.x; i < table.blocks; i += gridDim.x) {
    const int64_t tile = i / table.stretches;
    const int run =
        static_cast<int>(i - tile * table.stretches) * runs + static_cast<int>(threadIdx.x) % runs;
    const int row_in = run / (table.tile_n / 4), col_in = run % (table.tile_n / 4) * 4;
    const TileIndex index = p.order(p.first + tile);
    const int64_t row = index.m * table.tile_m + row_in, col = index.n * table.tile_n + col_in;
    const bool inside = row < m && col < epilogue.n;

    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    if (inside) {
      const float* from = p.data + tile * table.tile_m * table.tile_n + run * 4;
#pragma unroll 8
      for (int s = begin; s < end; ++s) {
        sum = plus(sum, *reinterpret_cast<const float4*>(from + s * split_stride));
      }
    }
    if (table.slices > 1) {
      sums[threadIdx.x] = sum;
      __syncthreads();
      if (slice == 0) {
        for (int s = 1; s < table.slices; ++s) sum = plus(sum, sums[s * runs + threadIdx.x]);
      }
      __syncthreads();
    }
    if (slice > 0 || !inside) continue;
    const float x[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      if (col + v < epilogue.n) epilogue.store(index.batch * m * epilogue.n, row, col + v, x[v]);
    }
  }
}

}  // namespace

Status launch_reduce(const GemmProblem& problem, const GemmBuffers& buffers, const Partials& partials,
                     const TileConfig& tile, CUstream_st* stream) {
  return dispatch_types(TypesOf<k16BitTypes>{}, problem, [&](auto types) {
    using T = decltype(types);
    Table table{tile.m, tile.n, 1, 0, 0};
    while (table.slices * kSliceSplits < partials.splits && table.slices < kMaxSlices) table.slices *= 2;
    table.stretches = tile.m * tile.n / 4 / (kThreads / table.slices);
    table.blocks = table.stretches * partials.tiles;
    const int64_t grid = table.blocks < INT32_MAX ? table.blocks : INT32_MAX;
    reduce<T><<<static_cast<unsigned>(grid), kThreads, 0, stream>>>(partials, table, problem.m,
                                                                    Epilogue<T>(problem, buffers));
    return launch_status("sm80 (reduce)");
  });
}

}  // namespace jaxgemm::cuda::sm80
