// The tile loop of `wmma_tf32` and `wmma_f16`: one scheme, in two types. A block of 4 warps computes 64 x 64
// elements of D from tiles in shared memory, each warp a 32 x 32 quarter as 2 x 2 WMMA tiles of 16 x 16.
//
// Each fragment is loaded once and used twice. Nothing is fetched ahead.
#pragma once

#include "../device/wmma_tile.cuh"

namespace jaxgemm::cuda {

constexpr int kWmmaBlock = 64;     // of m and of n
constexpr int kWmmaThreads = 128;  // 4 warps, two by two

// Computes a block tile of D for every batch that the block walks. `Operands` says what goes into shared
// memory and how:
//   Stored, Element    the type in shared memory, and WMMA's name for it
//   kDepth             extent of a tile along k, which is WMMA's own
//   kPitchA, kPitchB   from one row of a tile to the next, in elements
//   as(x)              an element on its way in
template <typename Operands, typename T>
__device__ __forceinline__ void multiply_wmma_tiles(const TiledProduct<T>& p) {
  namespace wmma = nvcuda::wmma;
  using Stored = typename Operands::Stored;
  constexpr int kWmma = 16, kWarp = kWmmaBlock / 2;
  constexpr int kDepth = Operands::kDepth, kPitchA = Operands::kPitchA, kPitchB = Operands::kPitchB;
  using Element = typename Operands::Element;
  using FragmentA = wmma::fragment<wmma::matrix_a, kWmma, kWmma, kDepth, Element, wmma::row_major>;
  using FragmentB = wmma::fragment<wmma::matrix_b, kWmma, kWmma, kDepth, Element, wmma::row_major>;
  using Accumulator = wmma::fragment<wmma::accumulator, kWmma, kWmma, kDepth, float>;

  __shared__ alignas(32) Stored a_tile[kWmmaBlock][kPitchA];
  __shared__ alignas(32) Stored b_tile[kDepth][kPitchB];
  __shared__ alignas(32) float stage[kWmmaThreads / 32][kWmma * kWmma];
  const int warp = threadIdx.x / 32;
  const int row = warp / 2 * kWarp;
  const int col = warp % 2 * kWarp;
  const int64_t block_row = int64_t{p.tile_row()} * kWmmaBlock;
  const int64_t block_col = int64_t{p.tile_col()} * kWmmaBlock;
  const auto as = [](auto x) { return Operands::as(x); };

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    TileA<T, kWmmaBlock, kDepth, kWmmaThreads, 4, AlongK<kPitchA>> a(p, batch, block_row);
    TileB<T, kWmmaBlock, kDepth, kWmmaThreads, 4, AcrossK<kPitchB>> b(p, batch, block_col);
    Accumulator acc[2][2];
    for (auto& fragment_row : acc) {
      for (auto& fragment : fragment_row) wmma::fill_fragment(fragment, 0.0f);
    }
    for (int64_t k_left = p.k; k_left > 0; k_left -= kDepth) {
      a.fetch(k_left);
      b.fetch(k_left);
      __syncthreads();  // all threads have read the previous tiles
      a.put(&a_tile[0][0], as);
      b.put(&b_tile[0][0], as);
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

}  // namespace jaxgemm::cuda
