// The constants of one instantiation of the engine, and the parameters of one launch.
#pragma once

#include <cstddef>
#include <type_traits>

#include "../device/tma.cuh"
#include "../device/types.cuh"
#include "../device/wgmma.cuh"
#include "../planning.h"
#include "configs.h"
#include "schedule.cuh"

namespace jaxgemm::cuda::sm90 {

// Operands as they are usually stored are all that tiles of every eighth row are for.
constexpr bool has_majors(const TileConfig& tile, Major x, Major y) {
  if (tile.along_k() && y != Major::kK) return false;
  return !tile.eighths() || (x == Major::kK && y == Major::kMN);
}

// How results get to D, each way with code of its own. Instructions are cold when a kernel starts, and a
// short product spends as long on fetching them as on multiplying: what runs should not step over what does
// not.
enum class Way : uint8_t {
  kPlain,          // 16-bit vectors as they are, by the copy engine
  kActivated,      // the same times alpha, with C, a bias and a usual activation
  kRows,           // 16-bit rows that begin anywhere, times alpha
  kActivatedRows,  // the same with a bias and a usual activation
  kFloats,         // fp32 as it is, in pairs unless operands are swapped
  kElements,       // everything else, one element at a time
};
__host__ __device__ constexpr bool by_copy_engine(Way way) { return way <= Way::kActivated; }

// Everything about the result that one launch decides. Rows and columns are those of D, whatever the engine's
// orientation.
struct Output {
  void* d;
  const void* c;
  const void* bias;
  int64_t rows, cols;
  int64_t pitch;         // elements from row to row
  int64_t batch_stride;  // elements from product to product
  int64_t split_stride;  // elements from one split's partial result to the next one's
  float alpha, beta;
  Activation activation;
  bool swap;  // the engine's rows are D's columns
  bool f32;   // D is fp32 (partial results are), and otherwise has the operands' type
  Way way;
};

// An operand's coordinates in a batch. A broadcast operand has extent 1 there, so its coordinate stays 0.
struct BatchMap {
  Divisor inner;             // batch = outer * inner + rest
  uint8_t x_outer, x_inner;  // 0 or 1
  uint8_t y_outer, y_inner;
};

// An operand that is loaded where it lies although its rows begin anywhere: so many lines of so many
// elements, `pitch` elements apart, and products so far apart. Every eighth line begins as many elements
// after a multiple of `align`, at which its loads begin. Tiles of such lines make as many rows of units for
// each of the first eight, or one more for the first of these: divisors by the latter, and by the former.
struct Lines {
  const void* base;
  int64_t pitch, batch[2];
  int length, count, align;
  Divisor more, others;
};

struct Params {
  // What the first load waits for comes first, in two lines: parameters are cold when a kernel starts.
  TileSchedule schedule;
  BatchMap batch;
  int rows, cols;       // the engine's
  uint8_t idle_stages;  // of the ring, that are not filled
  CUtensorMap x, y, d;
  CUtensorMap c;               // as d is, where it comes by the copy engine too
  CUtensorMap x_edge, y_edge;  // of rows along k, those of a last tile that is cut and not the first
  Output out;
  Lines lines;  // y where it is realigned, and its maps are of every eighth line, or x of every eighth row
};
static_assert(offsetof(Params, x) == 128);

// Of tiles of every eighth row: `every` are the maps of x's rows from each of the first eight on, and d_more
// and c_more those of D and C for the first of them, where these have a row more than the others.
struct EighthsParams : Params {
  CUtensorMap every[8];
  CUtensorMap d_more, c_more;
};

// The maps of D, and of C, for a product of a batch.
template <typename E>
__device__ __forceinline__ const CUtensorMap* d_map(const Params& p, int batch) {
  if constexpr (E::kEighths) {
    if (batch < p.lines.count % 8) return &static_cast<const EighthsParams&>(p).d_more;
  }
  return &p.d;
}
template <typename E>
__device__ __forceinline__ const CUtensorMap* c_map(const Params& p, int batch) {
  if constexpr (E::kEighths) {
    if (batch < p.lines.count % 8) return &static_cast<const EighthsParams&>(p).c_more;
  }
  return &p.c;
}

// A gated product's: `up` is the map of the second weight, x or y that of the first.
struct GatedParams : Params {
  CUtensorMap up;
};

// x is the operand whose rows are the engine's rows, y the other one.
template <TileConfig kConfig, Major kMajorX, Major kMajorY, typename In_>
struct Engine {
  using In = In_;
  using Parameters = std::conditional_t<kConfig.gated != Gated::kNo, GatedParams,
                                        std::conditional_t<kConfig.eighths(), EighthsParams, Params>>;
  static constexpr TileConfig kTile = kConfig;
  static constexpr Major kX = kMajorX, kY = kMajorY;
  static constexpr bool kPingPong = kConfig.schedule == Schedule::kPingPong;
  static constexpr int kTileM = kConfig.tile_m, kTileN = kConfig.tile_n;
  static constexpr bool kNarrows = kConfig.narrows();
  static constexpr int kConsumers = kConfig.consumers;
  static constexpr bool kRealigns = kConfig.realigns(), kEighths = kConfig.eighths();
  static constexpr int kThreads = 128 * (kConsumers + 1) + (kRealigns ? 32 * kRealigningWarps : 0);
  static constexpr int kGroupRows = kConfig.group_rows();
  static constexpr int kBlocksM = kGroupRows / 64;
  static constexpr int kAccumulators = kTileN / 2;  // of one thread, for each 64 rows
  static_assert(kGroupRows % 64 == 0 && kTileN % 16 == 0 && kTileN <= 256);
  static_assert(!kPingPong || kConsumers == 2);
  static_assert(!kEighths || (kConfig.gated == Gated::kNo && kMajorX == Major::kK && kMajorY == Major::kMN));

  // Registers a thread: what launch bounds give each is pooled and dealt again by role.
  static constexpr int kProducerRegisters = kRealigns ? 24 : kConsumers == 3 ? 32 : 40;
  static constexpr int kRealignerRegisters = 56;
  static constexpr int kConsumerRegisters = kConfig.blocks == 2 ? 96
                                            : kConsumers == 3   ? 160
                                            : kRealigns         ? 168
                                                                : 232;

  static constexpr int kLaunchRegisters = 65536 / kConfig.blocks / kThreads / 8 * 8;
  static_assert(128 * (kProducerRegisters + kConsumers * kConsumerRegisters) +
                    (kRealigns ? 32 * kRealigningWarps * kRealignerRegisters : 0) <=
                kThreads * kLaunchRegisters);

  // An MN-major operand comes in whole blocks.
  static constexpr int kBlockX = rows_block(kConfig.result_m()), kBlockY = rows_block(kConfig.result_n());
  static_assert(kBlockX == 64);
  static constexpr int kLinesX = kTileM;
  static constexpr int kLinesY = kMajorY == Major::kMN ? (kTileN + kBlockY - 1) / kBlockY * kBlockY : kTileN;
  static constexpr int kBytesX = kLinesX * 128, kBytesY = kLinesY * 128;
  static constexpr int kStageBytes = kBytesX + kBytesY;

  static constexpr int kStagingBytes = kConfig.staging_bytes(), kAlignment = sm90::kAlignment;
  static constexpr int kStagingBufferBytes = kStagingBytes / kStagingBuffers;
  static constexpr int kStagingTotal = kConsumers * 4 * kStagingBytes;
  static constexpr int kStages = kRealigns ? kRealignedStages : kConfig.stages(kStageBytes);
  static constexpr int kRawStages = kRealigns ? raw_stages(kConfig, kStageBytes, kMajorY == Major::kMN) : 0;
  static constexpr int kRawBytes = kRawStages * RawStage(kConfig, kMajorY == Major::kMN).bytes;
  static constexpr int kSharedBytes =
      kAlignment + kStages * kStageBytes + kRawBytes + kStagingTotal + kBarrierBytes;
  static_assert(kStages >= 3 && (!kRealigns || kRawStages >= 3));
  static constexpr int kAddendBarriers = kConsumers * 4 * kStagingBuffers;
  static_assert(8 * (2 * kStages + 2 + kAddendBarriers + 2 * kRawStages) <= kBarrierBytes);

  static constexpr bool kSlices = kConfig.can_slice(2);

  // Each of two weights fills half of its operand's part of a stage, in whole blocks, and a warpgroup has
  // both halves.
  static constexpr Gated kGated = kConfig.gated;
  static constexpr int kLoadedX = kGated == Gated::kRows ? kLinesX / 2 : kLinesX;
  static constexpr int kLoadedY = kGated == Gated::kColumns ? kLinesY / 2 : kLinesY;
  static constexpr int kResultM = kConfig.result_m(), kResultN = kConfig.result_n();
  static constexpr int kStripColumns = kConfig.strip_columns(), kStrips = kConfig.strips();
  static constexpr int kWholeStrips = kConfig.whole_strips();
  static constexpr int kResultBlocksM = kGated == Gated::kRows ? kBlocksM / 2 : kBlocksM;
  static_assert(kGated != Gated::kColumns || (kMajorY == Major::kMN && kLoadedY % kBlockY == 0));
  static_assert(kGated != Gated::kRows || (kMajorX == Major::kMN && kPingPong && kBlocksM == 2));
};

// The accumulators of one warpgroup.
template <typename E>
struct Accumulators {
  float value[E::kBlocksM][E::kAccumulators];
};

// Where a strip of a tile's results lies, in the engine's rows and columns.
struct Strip {
  int64_t row, col;
  int split, batch;
};

// Where in a tile a strip of results begins.
template <typename E>
__device__ __forceinline__ int strip_column(int strip) {
  return strip < E::kWholeStrips ? strip * E::kStripColumns : E::kResultN - E::kStripColumns;
}

// And where its values begin among a thread's of 64 rows: those of a gated tile's first weight come first.
template <typename E>
__device__ __forceinline__ int first_value(int strip) {
  return (strip_column<E>(strip % E::kStrips) + strip / E::kStrips * E::kResultN) / 2;
}

// The parts of a block's shared memory, as shared-window addresses.
template <typename E>
struct SharedLayout {
  uint32_t x, y, staging, raw, full, empty;
  uint32_t gathered;  // two; see gather.cuh
  uint32_t addend;    // two of each consumer warp; see addend.cuh
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

}  // namespace jaxgemm::cuda::sm90
