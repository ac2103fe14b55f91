// The constants of one instantiation of the engine, and the parameters of one launch.
#pragma once

#include <cstddef>
#include <type_traits>

#include "../chip.h"
#include "../device/tma.cuh"
#include "../device/types.cuh"
#include "../device/wgmma.cuh"
#include "../planning.h"
#include "configs.h"
#include "output.h"
#include "schedule.cuh"
#include "unaligned/ways.h"

namespace jaxgemm::cuda::sm90 {

// Whether a tile is compiled for operands of these majors.
constexpr bool has_majors(const TileConfig& tile, Major x, Major y) {
  if (tile.needs_k_major_y() && y != Major::kK) return false;
  return !tile.every_eighth || (x == Major::kK && y == Major::kMN);
}

__host__ __device__ constexpr bool by_copy_engine(StorePath path) { return path <= StorePath::kTmaFinished; }

// An operand's coordinates in a batch of two levels. Where a level is broadcast, the operand has extent 1 and
// the coordinate stays 0.
struct BatchMap {
  Divisor inner;                               // batch = outer * inner.divisor + inner coordinate
  uint8_t x_outer, x_inner, y_outer, y_inner;  // factors of the coordinates: 0 where broadcast, else 1
};

// An unaligned operand that is loaded where it lies: `count` lines of `length` elements, `pitch` elements
// apart. Lines 8 apart have the same misalignment, counted from multiples of `align`.
struct UnalignedLines {
  int64_t pitch;
  int length, count, align;
  // For tiles of every eighth row: rows of clusters that have row `first`, first + 8, ... of x, for one
  // `first` of 0 to 7. The first schedule.rows % 8 of these classes have one more.
  Divisor longer, shorter;
};

struct Params {
  // What the first load needs comes first, in two cache lines: when a kernel starts, its parameters are not
  // cached.
  TileSchedule schedule;
  BatchMap batch;
  int rows, cols;       // of x and of y
  uint8_t idle_stages;  // stages of the ring that are left empty: see cost.h
  CUtensorMap x, y, d;
  CUtensorMap c;               // where the copy engine brings C
  CUtensorMap x_edge, y_edge;  // of a K-major operand: the last tile, where it is cut and not the only one
  Output out;
  UnalignedLines lines;  // of y in tiles that realign, of x in tiles of every eighth row
};
static_assert(offsetof(Params, x) == 128);

// Tiles of every eighth row have a map of x for the rows first, first + 8, ..., for each `first` of 0 to 7.
// The rows of D and C with the same `first` are a product of a batch; for the first m % 8 products, which
// have one row more, there are maps of their own.
struct EveryEighthParams : Params {
  CUtensorMap x_from[8];
  CUtensorMap d_longer, c_longer;
};

// The maps of D and of C for a product of the batch.
template <typename E>
__device__ __forceinline__ const CUtensorMap* d_map(const typename E::Results& p, int batch) {
  if constexpr (E::kEveryEighth) {
    if (batch < p.lines.count % 8) return &static_cast<const EveryEighthParams&>(p).d_longer;
  }
  return &p.d;
}
template <typename E>
__device__ __forceinline__ const CUtensorMap* c_map(const Params& p, int batch) {
  if constexpr (E::kEveryEighth) {
    if (batch < p.lines.count % 8) return &static_cast<const EveryEighthParams&>(p).c_longer;
  }
  return &p.c;
}

// Gated products: `up` is the map of the second weight, and x or y that of the first.
struct GatedParams : Params {
  CUtensorMap up;
};

// Groups of a grouped product. A batch has `rows` tokens, and a group of the first `count` sizes after the
// other has them. `held` groups from *offset on have weights, or in "sums" a result.
struct GroupTable {
  const int32_t *sizes, *offset;
  uint32_t count, stride;  // of sizes; from one batch's to the next one's, 0: all batches have the same
  uint32_t held, batches, rows;
  // Of products that multiply tokens by weights: clusters along the weights' columns, tiles of tokens that
  // are walked together, and steps of k.
  uint32_t columns, walk, k_blocks;
};

// Grouped products; `up` has a meaning in gated ones only.
struct GroupedParams : GatedParams {
  GroupTable groups;
};

// One of many products.
struct ManyEntry {
  CUtensorMap x, y, d;
  Output out;
  int rows, cols;       // of x and of y
  uint32_t first_unit;  // where its units begin
  int k_blocks;
};

// Many products. Those that fill a kernel's parameters make one launch.
struct ManyHeader {
  TileSchedule schedule;
  uint32_t walk;  // rows of tiles that are walked together
};
constexpr int kManyEntries =
    static_cast<int>((kParameterBytes - sizeof(ManyHeader)) / (sizeof(ManyEntry) + sizeof(uint32_t)));
struct ManyParams : ManyHeader {
  // Where each entry's units end. Apart from the entries, as each lane of a warp reads some of them.
  uint32_t units_end[kManyEntries];
  ManyEntry entries[kManyEntries];
};
static_assert(sizeof(ManyParams) <= kParameterBytes);

// The kernel for one tile, the majors of x and y, and the operands' type.
template <TileConfig kConfig, Major kMajorX, Major kMajorY, typename In_>
struct Engine {
  using In = In_;
  static constexpr bool kIsMany = kConfig.grouped == Grouped::kMany;
  using Parameters = std::conditional_t<
      kIsMany, ManyParams,
      std::conditional_t<
          kConfig.grouped != Grouped::kNo, GroupedParams,
          std::conditional_t<kConfig.gated != Gated::kNo, GatedParams,
                             std::conditional_t<kConfig.every_eighth, EveryEighthParams, Params>>>>;
  using Results = std::conditional_t<kIsMany, ManyEntry, Params>;  // the part that is about a tile's results
  static constexpr TileConfig kTile = kConfig;
  static constexpr Major kX = kMajorX, kY = kMajorY;
  static constexpr bool kPingPong = kConfig.schedule == Schedule::kPingPong;
  static constexpr int kTileM = kConfig.tile_m, kTileN = kConfig.tile_n;
  static constexpr bool kHasNarrow = kConfig.has_narrow_form();
  static constexpr int kTokenForms = kConfig.token_forms();
  static constexpr int kConsumers = kConfig.consumers;
  static constexpr Grouped kGrouped = kConfig.grouped;
  static constexpr bool kIsGrouped = kGrouped != Grouped::kNo;
  static constexpr bool kRealigns = kConfig.realigns, kEveryEighth = kConfig.every_eighth;
  static constexpr int kThreads = 128 * (kConsumers + 1) + (kRealigns ? 32 * kRealignWarps : 0);
  static constexpr int kGroupRows = kConfig.group_rows();
  static constexpr int kBlocksM = kGroupRows / 64;  // blocks of 64 rows of a warpgroup
  static constexpr int kAccumulators = kTileN / 2;  // of a thread, for each block of 64 rows
  static_assert(kGroupRows % 64 == 0 && kTileN % 16 == 0 && kTileN <= 256);
  static_assert(!kPingPong || kConsumers == 2);
  static_assert(!kEveryEighth ||
                (kConfig.gated == Gated::kNo && kMajorX == Major::kK && kMajorY == Major::kMN));

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
  static constexpr int kBlockX = mn_block_rows(kConfig.result_m()),
                       kBlockY = mn_block_rows(kConfig.result_n());
  static_assert(kBlockX == 64);
  static constexpr int kLinesX = kTileM;
  static constexpr int kLinesY = kMajorY == Major::kMN ? (kTileN + kBlockY - 1) / kBlockY * kBlockY : kTileN;
  static constexpr int kBytesX = kLinesX * 128, kBytesY = kLinesY * 128;
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
  static constexpr int kAddendBarriers = kIsGrouped ? 0 : kConsumers * 4 * kBuffers;
  static_assert(8 * (2 * kStages + 2 + kAddendBarriers + 2 * kRawStages) <= kBarrierBytes);

  static constexpr bool kSlices = kConfig.can_slice(2);

  // In a gated tile each of the two weights fills half of its operand's part of a stage, in whole blocks, and
  // every warpgroup multiplies both halves.
  static constexpr Gated kGated = kConfig.gated;
  static constexpr int kLoadedX = kGated == Gated::kRows ? kLinesX / 2 : kLinesX;
  static constexpr int kLoadedY = kGated == Gated::kColumns ? kLinesY / 2 : kLinesY;
  static constexpr int kResultM = kConfig.result_m(), kResultN = kConfig.result_n();
  static constexpr int kStripColumns = kConfig.strip_columns(), kStrips = kConfig.strips();
  static constexpr int kWholeStrips = kConfig.whole_strips();
  static constexpr int kResultBlocksM = kGated == Gated::kRows ? kBlocksM / 2 : kBlocksM;
  static_assert(kGated != Gated::kColumns || (kMajorY == Major::kMN && kLoadedY % kBlockY == 0));
  static_assert(kGrouped != Grouped::kSums ||
                (kMajorX == Major::kMN && kMajorY == Major::kMN && kBlockY == 64));
  static_assert(kGated != Gated::kRows || (kMajorX == Major::kMN && kPingPong && kBlocksM == 2));
};

// A thread's part of a warpgroup's accumulators.
template <typename E>
struct Accumulators {
  float value[E::kBlocksM][E::kAccumulators];
};

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
  uint32_t gathered;     // two barriers: see gather.cuh
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
    addend = gathered + 16;
    raw_barriers = addend + E::kAddendBarriers * 8;
  }
};

// This block's place in its cluster and in the grid.
__device__ __forceinline__ ClusterPlace own_place(const TileSchedule& s) {
  return ClusterPlace(s, [](uint32_t size) { return size > 1 ? cluster_rank() : 0; });
}

}  // namespace jaxgemm::cuda::sm90
