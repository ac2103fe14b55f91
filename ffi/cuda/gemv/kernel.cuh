// A matrix times a few vectors, at the speed at which the matrix can be read.
//
// Only the vectors are reused, so the main loop does without shared memory: each thread keeps several 16-byte
// loads of the matrix in flight and multiplies from registers. The parts of a result are added in an order
// that the plan fixes: within a warp, then over a block's warps, then over a cluster's blocks, the last two
// through shared memory.
#pragma once

#include "../device/epilogue.cuh"
#include "../device/operands.cuh"
#include "../device/ptx.cuh"
#include "tile.cuh"

namespace jaxgemm::cuda::gemv {

template <typename T>
struct Params {
  Operand<typename T::A> matrix, vector;
  int64_t vector_stride, vector_k_stride;
  int64_t length, k, batch;
  int64_t split_k;  // values of k that a block sums over, a multiple of WarpTile::kStep
  int64_t vectors;
  int panel;  // vectors that are multiplied together
  int panels, warps_k, splits;
  int tile_shift;  // log2 of a block's results for each vector
  bool vector_wide, swapped;
  Epilogue<T> epilogue;
};

__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ float load_from_rank([[maybe_unused]] const float* x, [[maybe_unused]] int rank) {
  float value = 0.f;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(value)
               : "r"(map_to_rank(shared_address(x), static_cast<uint32_t>(rank)))
               : "memory");
#endif
  return value;
}

// Adds up the warps' sums of a block's results, then those of the cluster's blocks, and stores D.
template <typename T>
__device__ __forceinline__ void finish(const Params<T>& p, float* shared, int64_t tile, int split,
                                       int64_t batch, int64_t first, int vectors) {
  const int results = vectors << p.tile_shift;
  const int64_t base = batch * p.length * p.vectors;
  const int thread = static_cast<int>(threadIdx.x);
  const auto block_sum = [&](int i) {
    float sum = shared[i];
    for (int part = 1; part < p.warps_k; ++part) sum += shared[part * results + i];
    return sum;
  };
  const auto store = [&](int i, float sum) {
    const int vector = i >> p.tile_shift;
    const int64_t at = (tile << p.tile_shift) + (i - (vector << p.tile_shift));
    if (at < p.length)
      p.epilogue.store(base, p.swapped ? at : first + vector, p.swapped ? first + vector : at, sum);
  };
  __syncthreads();
  if (p.splits == 1) {
    for (int i = thread; i < results; i += kThreads) store(i, block_sum(i));
    __syncthreads();  // before the next product of the batch writes here again
    return;
  }
  float* const sums = shared + p.warps_k * results;
  for (int i = thread; i < results; i += kThreads) sums[i] = block_sum(i);
  cluster_sync();
  for (int i = split * kThreads + thread; i < results; i += p.splits * kThreads) {
    float sum = load_from_rank(sums + i, 0);
    for (int rank = 1; rank < p.splits; ++rank) sum += load_from_rank(sums + i, rank);
    store(i, sum);
  }
  cluster_sync();  // a block's sums must outlive the others' loads
}

// Resident blocks of a multiprocessor: more blocks keep more loads in flight, as long as registers do not
// spill.
template <typename In, bool kAlongK, bool kAligned, int kVectors>
constexpr int kResident = kAligned && (sizeof(In) == 2 ? !kAlongK : kVectors == 1) ? 3 : 2;

template <typename T, bool kAlongK, bool kAligned, int kVectors>
__global__ void __launch_bounds__(kThreads, kResident<typename T::A, kAlongK, kAligned, kVectors>)
    gemv(const __grid_constant__ Params<T> p) {
  using In = typename T::A;
  using Tile = WarpTile<In, kAlongK, kAligned, kVectors>;
  extern __shared__ float shared[];
  const uint32_t splits = static_cast<uint32_t>(p.splits);
  const int64_t tile = blockIdx.x / splits;
  const int split = static_cast<int>(blockIdx.x % splits);
  const int warp = uniform_warp();
  const int warp_k = warp % p.warps_k, column = warp / p.warps_k * Tile::kLength;

  for (int64_t item = blockIdx.y; item < p.batch * p.panels; item += gridDim.y) {
    const int64_t batch = p.panels == 1 ? item : item / p.panels;
    const int64_t first = (item - batch * p.panels) * p.panel;
    const int vectors = static_cast<int>(min(p.vectors - first, int64_t{p.panel}));
    const int64_t k = split * p.split_k;
    const Source<In> source{.matrix = p.matrix.at_batch(batch),
                            .ld = p.matrix.ld,
                            .length = p.length,
                            .vector = p.vector.at_batch(batch) + first * p.vector_stride,
                            .vector_stride = p.vector_stride,
                            .vector_k_stride = p.vector_k_stride,
                            .vector_wide = p.vector_wide,
                            .vectors = vectors,
                            .k = p.k,
                            .k_end = min(k + p.split_k, p.k)};
    Tile sums(source, (tile << p.tile_shift) + column);
    sums.run(k + warp_k * Tile::kStep, p.warps_k * Tile::kStep);
    sums.write(shared + (warp_k * vectors << p.tile_shift) + column, 1 << p.tile_shift);
    finish(p, shared, tile, split, batch, first, vectors);
  }
}

}  // namespace jaxgemm::cuda::gemv
