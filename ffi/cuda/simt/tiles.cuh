// Which tiles exist for which accumulator. The kernel option "tile" counts through a list from 1; 0 leaves
// the choice to the cost model in cost.cuh.
//
// Wide tiles read the least per FMA and narrow ones waste the least on ragged or small outputs, so there are
// several sizes, and flat and tall shapes for outputs with one short side. A thread has 8 x 8 outputs
// wherever the tile has room: with fewer, shared memory is the limit. Small tiles share their outputs among
// slices, which gives the schedulers enough warps when there are few blocks: a warp for each scheduler, as a
// block's start and the addition of the slices' sums take longer the more warps there are.
//
// Twelve warps of about 160 registers per multiprocessor hide more latency than eight of 240, but leave no
// registers for a second set of sums (home.cuh). 128 x 128 has eight: its tiles of 2048 x 2048 outputs make
// two rounds of 132 multiprocessors that are nearly full, where smaller tiles end with a round that is not.
//
// Each tile of f32 is seven kernels, one for each pair of copy modes. So a tile is here only where products
// lose more without it than without any other, by the cost model.
#pragma once

#include <array>

#include "tile.cuh"

namespace jaxgemm::cuda::simt {

//                        block tile     K    warp tile  lanes stages slices blocks
using F32Large = TypeList<Tile<float, 128, 128, 16, 32, 64, 4, 3, 1, 1>,  // 256 threads
                          Tile<float, 128, 64, 16, 32, 64, 4, 2, 1, 3>,   // 128
                          Tile<float, 64, 64, 16, 32, 64, 4, 3, 2, 3>,    // 128
                          Tile<float, 64, 64, 32, 32, 64, 4, 3, 4, 1>>;   // 256
using F32Small = TypeList<Tile<float, 32, 64, 32, 32, 64, 4, 3, 4, 3>,    // 128
                          Tile<float, 32, 32, 16, 32, 32, 4, 3, 2, 10>,   // 64
                          Tile<float, 16, 128, 32, 16, 128, 4, 4, 4, 2>,  // 128
                          Tile<float, 128, 16, 32, 128, 16, 8, 4, 4, 2>,  // 128
                          Tile<float, 32, 32, 32, 32, 32, 4, 5, 4, 3>,    // 128
                          Tile<float, 16, 32, 64, 16, 32, 4, 5, 4, 2>>;   // 128
using F64 = TypeList<Tile<double, 64, 64, 16, 32, 32, 4, 3, 1, 3>,        // 128
                     Tile<double, 32, 32, 16, 32, 32, 4, 3, 2, 4>>;       // 64
// 16-bit operands: converted on the way into shared memory.
using Half = TypeList<Tile<float, 128, 128, 16, 32, 64, 4, 2, 1, 1>,  // 256
                      Tile<float, 64, 64, 32, 32, 64, 4, 2, 4, 1>>;   // 256

// What the cost model needs to know about a tile.
struct TileInfo {
  int bm, bn, bk, tm, tn, threads, slices, stages, vec;
  Home home;
  int blocks_per_sm;       // as the registers allow
  size_t shared_bytes[2];  // without and with chunks of K

  int slice_k() const { return bk / slices; }
};

template <typename T>
constexpr TileInfo tile_info() {
  return {T::BM,   T::BN,       T::BK,         T::TM,
          T::TN,   T::kThreads, T::kSlices,    T::kStages,
          T::kVec, T::kHome,    T::kMinBlocks, {T::shared_bytes(false), T::shared_bytes(true)}};
}

template <typename... A, typename... B>
constexpr auto tile_infos(TypeList<A...>, TypeList<B...>) {
  return std::array<TileInfo, sizeof...(A) + sizeof...(B)>{tile_info<A>()..., tile_info<B>()...};
}
template <typename... A>
constexpr int tile_count(TypeList<A...>) {
  return sizeof...(A);
}

inline constexpr auto kF32Tiles = tile_infos(F32Large{}, F32Small{});
inline constexpr auto kF64Tiles = tile_infos(F64{}, TypeList<>{});
inline constexpr auto kHalfTiles = tile_infos(Half{}, TypeList<>{});

}  // namespace jaxgemm::cuda::simt
