// What one instantiation of the kernel is made of, and its parameters.
#pragma once

#include "../device/types.cuh"
#include "configs.h"
#include "copy.cuh"
#include "order.cuh"

namespace jaxgemm::cuda::sm80 {

template <typename In_, Major kMajorA_, Major kMajorB_, bool kWide_, int kTile_>
struct Engine {
  using In = In_;
  static constexpr Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  static constexpr bool kWide = kWide_;
  static constexpr TileConfig kTile = kWide ? kTiles[kTile_] : kNarrowTile;
  static constexpr int kM = kTile.m, kN = kTile.n, kK = kTile.k;
  static constexpr int kWarpM = kTile.warp_m, kWarpN = kTile.warp_n;
  static constexpr int kStages = kTile.stages, kThreads = kTile.threads();
  static constexpr int kWarpsN = kN / kWarpN;
  static constexpr int kBlocksM = kWarpM / 16, kBlocksN = kWarpN / 8;  // mma.sync tiles of a warp tile

  template <Major kMajor, int kX>
  using Copy =
      std::conditional_t<kWide, WideCopy<kMajor, kX, kK, kThreads>, NarrowCopy<kMajor, kX, kK, kThreads>>;
  using CopyA = Copy<kMajorA, kM>;
  using CopyB = Copy<kMajorB, kN>;
  using ReaderA = FragmentReader<Factor::kA, kMajorA, kM, kK, kWarpM>;
  using ReaderB = FragmentReader<Factor::kB, kMajorB, kN, kK, kWarpN>;
  static constexpr int kTileBytesA = SharedTile<kMajorA, kM, kK>::kBytes;
  static constexpr int kStageBytes = kTile.stage_bytes(), kBufferBytes = kTile.buffer_bytes();

  static_assert(kTile.warps() * kBufferBytes <= kStageBytes);

  // One warp's results.
  using Accumulators = float[kBlocksM][kBlocksN][4];
};

// How results are stored. Products with nothing but alpha to apply and aligned rows have two short ways:
// kPacked rounds 16-bit results in registers and stores 16-byte vectors; kDirect stores fp32 results as the
// accumulators lie, which fills whole sectors.
enum class Store : uint8_t { kGeneral, kPacked, kDirect };

// Where finished values go: D, or the partial result of a unit.
struct Output {
  void* d;
  const void* c;     // null: not read
  const void* bias;  // null: none
  int64_t rows, cols, pitch;
  float alpha, beta;
  Activation activation;
  bool f32;  // otherwise the operands' type
  Store store;
  bool vec;  // runs of four columns are aligned in D, C and bias, and within a row
};

struct Params {
  Side a, b;
  TileOrder order;
  Output out;
  float* partial;  // partial results: a dense tile for each unit of a split tile
  int64_t units;   // whole tiles, then splits x split tiles
  int64_t whole;
  int64_t split_tiles;
  int64_t batch_inner;
  int k_tiles;
  int splits;
  int tail;  // values of k in the last tile along k
};

}  // namespace jaxgemm::cuda::sm80
