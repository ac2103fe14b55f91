// The constants of one instantiation of the engine, and the places of a block.
#pragma once

#include <type_traits>

#include "../device/types.cuh"
#include "../device/wgmma.cuh"
#include "configs.h"
#include "parameters.cuh"
#include "unaligned/ways.h"

namespace jaxgemm::cuda::sm90 {

// Whether a tile is compiled for this product, of an x of this major.
template <typename Product>
constexpr bool has_product(const TileConfig& t, Major x) {
  if (sizeof(typename Product::X) == 1) {
    const bool integers = std::is_same_v<typename Product::Sum, int32_t>;  // whose sums are exact
    return has_8bit_form(t) && t.turned == (x == Major::kMN) && !(t.planes && integers);
  }
  if (t.turned) return false;
  // Scaled planes are of single products.
  return !t.planes || t.is_dense() || std::is_same_v<typename Product::X, __nv_bfloat16>;
}

// Whether a tile is compiled for operands of these majors.
constexpr bool has_majors(const TileConfig& t, Major x, Major y) {
  constexpr Major kK = Major::kK, kMN = Major::kMN;
  if (t.needs_k_major_y() && y != kK) return false;
  if (t.every_eighth) return x == kK && y == kMN;
  if (t.turned) return x == kMN && y == kK;
  if (t.planes && t.tokens != Axis::kK) return x == kK && y == kK;
  if (t.many) return x == kK || y == kMN;  // not for two transposed operands
  if (t.tokens == Axis::kK) return x == kMN && y == kMN;
  // Tokens are K-major, and so is the other operand of gated weights, which are k x n.
  if (t.tokens == Axis::kRows || t.gated == Axis::kColumns)
    return x == kK && (t.gated == Axis::kNone || y == kMN);
  if (t.tokens == Axis::kColumns || t.gated == Axis::kRows)
    return y == kK && (t.gated == Axis::kNone || x == kMN);
  return true;
}

__host__ __device__ constexpr bool by_copy_engine(StorePath path) { return path <= StorePath::kTmaFinished; }

// The kernel for one tile, the majors of x and y, and the types of a product.
template <TileConfig kConfig, Major kMajorX, Major kMajorY, typename Product_>
struct Engine {
  using Product = Product_;
  static constexpr int kElementBytes = sizeof(typename Product::X);
  static constexpr int kStepK = kLineBytes / kElementBytes;  // elements of k of a stage
  static constexpr bool kIntegers = std::is_same_v<typename Product::Sum, int32_t>;
  static constexpr bool kMany = kConfig.many, kPlanes = kConfig.planes, kTurned = kConfig.turned;
  static constexpr bool kScaled = kPlanes && std::is_same_v<typename Product::X, __half>;  // planes/planes.h
  using Parameters = std::conditional_t<kMany, ManyParameters, sm90::Parameters<kConfig>>;
  using Results =
      std::conditional_t<kMany, ManyEntry, Parameters>;  // the part that is about a tile's results
  static constexpr TileConfig kTile = kConfig;
  static constexpr Major kX = kMajorX, kY = kMajorY;
  static constexpr bool kPingPong = kConfig.schedule == Schedule::kPingPong;
  static constexpr int kTileM = kConfig.tile_m, kTileN = kConfig.tile_n;
  static constexpr bool kHasNarrow = kConfig.has_narrow_form();
  static constexpr int kTokenForms = kConfig.token_forms();
  static constexpr int kConsumers = kConfig.consumers;
  static constexpr Axis kTokens = kConfig.tokens;
  static constexpr bool kHasGroups = kTokens != Axis::kNone, kIsDense = kConfig.is_dense();
  static constexpr bool kHasAddend = kConfig.has_addend() && !kIntegers;
  static constexpr bool kRealigns = kConfig.realigns, kEveryEighth = kConfig.every_eighth;
  static constexpr int kThreads = 128 * (kConsumers + 1) + (kRealigns ? 32 * kRealignWarps : 0);
  static constexpr int kWarpgroupRows = kConfig.warpgroup_rows();
  static constexpr int kBlocksM = kWarpgroupRows / 64;  // blocks of 64 rows of a warpgroup
  static constexpr int kAccumulators = kTileN / 2;      // of a thread, for each block of 64 rows
  static_assert(kWarpgroupRows % 64 == 0 && kTileN % 16 == 0 && kTileN <= 256);
  static_assert(!kPingPong || kConsumers == 2);
  static_assert(kConsumers <= 3);  // NamedBarrier has places for so many
  static_assert(has_majors(kConfig, kMajorX, kMajorY) && !(kEveryEighth && kConfig.gated != Axis::kNone));

  // Registers of a thread. A launch gives all threads as many; warpgroups then hand registers over by role.
  static constexpr int kProducerRegisters = kRealigns ? 24 : kConsumers == 3 ? 32 : 40;
  static constexpr int kRealignerRegisters = 56;
  static constexpr int kConsumerRegisters = kConfig.blocks == 2 ? 96
                                            : kConsumers == 3   ? 160
                                            : kRealigns         ? 168
                                                                : 232;

  static constexpr int kLaunchRegisters = 65536 / kConfig.blocks / kThreads / 8 * 8;
  static_assert(128 * (kProducerRegisters + kConsumers * kConsumerRegisters) +
                    (kRealigns ? 32 * kRealignWarps * kRealignerRegisters : 0) <=
                kThreads * kLaunchRegisters);

  // Rows and bytes of a stage. An MN-major operand comes in whole blocks of rows.
  static constexpr int kBlockX = mn_block_rows(kConfig.result_m(), kElementBytes),
                       kBlockY = mn_block_rows(kConfig.result_n(), kElementBytes);
  static_assert(kBlockX * kElementBytes == kLineBytes);
  static constexpr int kLinesX = kTileM;
  static constexpr int kLinesY = kMajorY == Major::kMN ? (kTileN + kBlockY - 1) / kBlockY * kBlockY : kTileN;
  static constexpr int kBytesX = kLinesX * kLineBytes, kBytesY = kLinesY * kLineBytes;
  static constexpr int kStageBytes = kBytesX + kBytesY;

  static constexpr int kStagingBytes = kConfig.staging_bytes(), kAlignment = sm90::kAlignment;
  static constexpr int kBuffers = kConfig.staging_buffers, kStagingBufferBytes = kStagingBytes / kBuffers;
  static constexpr int kStagingTotal = kConsumers * 4 * kStagingBytes;
  static constexpr int kStages = kRealigns ? kRealignRingStages : kConfig.stages(kStageBytes);
  static constexpr int kRawStages =
      kRealigns ? realign_raw_stages(kConfig, kStageBytes, kMajorY == Major::kMN) : 0;
  static constexpr int kRawBytes = kRawStages * RawStage(kConfig, kMajorY == Major::kMN).bytes;
  static constexpr int kSharedBytes =
      kAlignment + kStages * kStageBytes + kRawBytes + kStagingTotal + kBarrierBytes;
  static_assert(kStages >= 3 && (!kRealigns || kRawStages >= 3));
  static constexpr int kAddendBarriers = kHasAddend ? kConsumers * 4 * kBuffers : 0;
  static constexpr bool kSlices = kConfig.can_slice(2);
  static constexpr int kGatherBarriers = kSlices ? kConfig.finished_warps(2) : 2;
  static_assert(8 * (2 * kStages + kGatherBarriers + kAddendBarriers + 2 * kRawStages) <= kBarrierBytes);

  // Tiles of products that end a few instructions after they have begun: what a consumer computes before its
  // first product is kept short. Larger tiles have no registers to compute it later.
  static constexpr bool kStartsSoon = kIsDense && !kPlanes && kBlocksM * kAccumulators <= 64;

  // In a gated tile each of the two weights fills half of its operand's part of a stage, in whole blocks, and
  // every warpgroup multiplies both halves.
  static constexpr Axis kGated = kConfig.gated;
  static constexpr int kLoadedX = kGated == Axis::kRows ? kLinesX / 2 : kLinesX;
  static constexpr int kLoadedY = kGated == Axis::kColumns ? kLinesY / 2 : kLinesY;
  static constexpr int kResultM = kConfig.result_m(), kResultN = kConfig.result_n();
  static constexpr int kStripColumns = kConfig.strip_columns(kElementBytes),
                       kStrips = kConfig.strips(kElementBytes);
  static constexpr int kWholeStrips = kConfig.whole_strips(kElementBytes);
  static constexpr int kResultBlocksM = kGated == Axis::kRows ? kBlocksM / 2 : kBlocksM;
  static_assert(kGated != Axis::kColumns || (kMajorY == Major::kMN && kLoadedY % kBlockY == 0));
  static_assert(kTokens != Axis::kK || (kMajorX == Major::kMN && kMajorY == Major::kMN && kBlockY == 64));
  static_assert(kGated != Axis::kRows || (kMajorX == Major::kMN && kPingPong && kBlocksM == 2));
};

// A thread's part of a warpgroup's accumulators.
template <typename E>
struct Accumulators {
  typename E::Product::Sum value[E::kBlocksM][E::kAccumulators];
};

// An accumulator as fp32: of integers its bits.
__device__ __forceinline__ float as_fp32(float value) { return value; }
__device__ __forceinline__ float as_fp32(int32_t value) { return __int_as_float(value); }
// The accumulator that as_fp32() gave.
template <typename Sum>
__device__ __forceinline__ Sum from_fp32(float value) {
  if constexpr (std::is_same_v<Sum, int32_t>)
    return __float_as_int(value);
  else
    return value;
}

// Where a strip of results begins, in the engine's rows and columns. A strip is what a warp finishes at a
// time: 16 rows of E::kStripColumns columns.
struct Strip {
  int64_t row, col;
  int split, batch;
  // In a grouped product: the end of the group's tokens, and the group among those that have weights.
  int end = 0, group = 0;
};

// The column of a tile where strip number `strip` begins. The last may overlap the one before it.
template <typename E>
__device__ __forceinline__ int strip_column(int strip) {
  return strip < E::kWholeStrips ? strip * E::kStripColumns : E::kResultN - E::kStripColumns;
}

// Its first value among a thread's accumulators of a block of 64 rows. In a gated tile the strips of the
// first weight come before those of the second.
template <typename E>
__device__ __forceinline__ int first_value(int strip) {
  return (strip_column<E>(strip % E::kStrips) + strip / E::kStrips * E::kResultN) / 2;
}

// The parts of a block's shared memory, as addresses in the shared window.
template <typename E>
struct SharedLayout {
  uint32_t x, y;         // the ring of stages: all stages of x, then all of y
  uint32_t staging;      // of results, for each consumer warp
  uint32_t raw;          // stages of y before they are shifted: see unaligned/realign.cuh
  uint32_t full, empty;  // barriers, one for each stage
  uint32_t gathered;     // barriers of the warps that receive sums: see gather.cuh
  uint32_t addend;       // two barriers for each consumer warp: see addend.cuh
  uint32_t raw_barriers;

  __device__ explicit SharedLayout(const void* dynamic) {
    const uint32_t base = (shared_address(dynamic) + E::kAlignment - 1) / E::kAlignment * E::kAlignment;
    x = base;
    y = x + E::kStages * E::kBytesX;
    staging = y + E::kStages * E::kBytesY;
    raw = staging + E::kStagingTotal;
    full = raw + E::kRawBytes;
    empty = full + 8 * E::kStages;
    gathered = empty + 8 * E::kStages;
    addend = gathered + 8 * E::kGatherBarriers;
    raw_barriers = addend + E::kAddendBarriers * 8;
  }
};

// Named barriers of a block, beside that of __syncthreads(), which is number 0. There is one for each
// consumer warpgroup, of which there are at most three, or one for all.
enum class NamedBarrier : uint8_t {
  kTurn = 1,       // a warpgroup's turn to multiply
  kConsumers = 4,  // all consumers are done
  kOwn = 5,        // one warpgroup's warps, or those of all that share a tile
};
constexpr int kTwoWarpgroups = 256;  // threads: of one that waits and one that arrives

template <NamedBarrier kBarrier>
__device__ __forceinline__ void sync(int warpgroup, int threads) {
  named_barrier_sync(static_cast<int>(kBarrier) + warpgroup, threads);
}

template <NamedBarrier kBarrier>
__device__ __forceinline__ void arrive(int warpgroup, int threads) {
  named_barrier_arrive(static_cast<int>(kBarrier) + warpgroup, threads);
}

// What has the maps of a launch's first product.
template <typename E>
__device__ __forceinline__ const typename E::Results& first_results(const typename E::Parameters& p) {
  if constexpr (E::kMany)
    return p.entries[0];
  else
    return p;
}

// The maps of D and of C for a product of the batch.
template <typename E>
__device__ __forceinline__ const CUtensorMap* d_map(const typename E::Results& p, int batch) {
  if constexpr (E::kEveryEighth) {
    if (batch < p.lines.count % 8) return &p.d_longer;
  }
  return &p.d;
}
template <typename E>
__device__ __forceinline__ const CUtensorMap* c_map(const typename E::Results& p, int batch) {
  if constexpr (E::kEveryEighth) {
    if (batch < p.lines.count % 8) return &p.c_longer;
  }
  return &p.c;
}

// Whether the copy engine brings C.
template <typename E>
__device__ __forceinline__ bool brings_addend(const typename E::Results& p) {
  return E::kHasAddend && p.out.c && p.out.path == StorePath::kTmaFinished;
}

// This block's place in its cluster and in the grid.
__device__ __forceinline__ ClusterPlace own_place(const TileSchedule& s) {
  return ClusterPlace(s, [](uint32_t size) { return size > 1 ? cluster_rank() : 0; });
}

}  // namespace jaxgemm::cuda::sm90
