// wmma_tf32: the tensor cores multiply, in TF32: f32 operands rounded to 10 bits of mantissa, products summed
// in f32. Tiles 64 x 64 x 8, 4 warps, each 2 x 2 WMMA tiles of 16 x 16 x 8.
//
// Operands are rounded once, on their way into shared memory, rather than in each of the two warps that use
// them.
#include "../device/wmma_tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kBlockM = 64, kBlockN = 64, kBlockK = 8;
constexpr int kWmma = 16;
constexpr int kWarpM = 32, kWarpN = 32;
constexpr int kThreads = 128;
// With these the lines that a fragment's load touches start in different banks.
constexpr int kPitchA = kBlockK + 4, kPitchB = kBlockN + 8;

using Types32 = Types<DType::kF32, DType::kF32, DType::kF32, DType::kF32>;
using Accumulator = wmma::fragment<wmma::accumulator, kWmma, kWmma, kBlockK, float>;
using FragmentA =
    wmma::fragment<wmma::matrix_a, kWmma, kWmma, kBlockK, wmma::precision::tf32, wmma::row_major>;
using FragmentB =
    wmma::fragment<wmma::matrix_b, kWmma, kWmma, kBlockK, wmma::precision::tf32, wmma::row_major>;

template <typename T>
__global__ void __launch_bounds__(kThreads) wmma_tf32(const __grid_constant__ TiledProduct<T> p) {
  __shared__ alignas(32) float a_tile[kBlockM][kPitchA];
  __shared__ alignas(32) float b_tile[kBlockK][kPitchB];
  __shared__ alignas(32) float stage[kThreads / 32][kWmma * kWmma];
  const int warp = threadIdx.x / 32;
  const int row = warp / (kBlockN / kWarpN) * kWarpM;
  const int col = warp % (kBlockN / kWarpN) * kWarpN;
  const int64_t block_row = int64_t{p.tile_row()} * kBlockM;
  const int64_t block_col = int64_t{p.tile_col()} * kBlockN;
  const auto to_tf32 = [](float x) { return wmma::__float_to_tf32(x); };

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kBlockM, kBlockK, kThreads, 4, AlongK<kPitchA>> a(p, batch, block_row);
    TileB<T, kBlockN, kBlockK, kThreads, 4, AcrossK<kPitchB>> b(p, batch, block_col);
    Accumulator acc[2][2];
    for (auto& fragment_row : acc) {
      for (auto& fragment : fragment_row) wmma::fill_fragment(fragment, 0.0f);
    }
    for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK) {
      a.fetch(k_left);
      b.fetch(k_left);
      __syncthreads();  // everyone is done with the tiles before
      a.put(&a_tile[0][0], to_tf32);
      b.put(&b_tile[0][0], to_tf32);
      __syncthreads();
      FragmentA a_fragment[2];
      FragmentB b_fragment[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        wmma::load_matrix_sync(a_fragment[i], &a_tile[row + i * kWmma][0], kPitchA);
        wmma::load_matrix_sync(b_fragment[i], &b_tile[0][col + i * kWmma], kPitchB);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) wmma::mma_sync(acc[i][j], a_fragment[i], b_fragment[j], acc[i][j]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        store_fragment(p, p.epilogue, batch, block_row + row + i * kWmma, block_col + col + j * kWmma,
                       stage[warp], acc[i][j]);
      }
    }
  }
}

}  // namespace

Status launch_wmma_tf32(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(TypeList<Types32>{}, p, [&](auto types) {
    return launch_tiles("wmma_tf32", wmma_tf32<decltype(types)>, p, buffers, executor, kBlockM, kBlockN,
                        kThreads);
  });
}

}  // namespace jaxgemm::cuda
