// The tile configurations that the Hopper engine is compiled for, in one table: the launcher dispatches over
// it and the cost model chooses from it. Host code only.
#pragma once

#include <cstdint>

#include "../../arithmetic.h"
#include "../../problem.h"

namespace jaxgemm::cuda::sm90 {

// Cooperative: all consumer warpgroups share one tile, cut along its rows; long K. Ping-pong: each of two
// owns a whole tile, so that one's epilogue runs under the other's main loop; short K and heavy epilogues.
enum class Schedule : uint8_t { kCooperative = 1, kPingPong = 2 };

// Gated products take two weights at once. Half of a tile's columns, or of its rows when operands are
// swapped, come from one weight and half from the other, the same ones of each: a thread's accumulators then
// hold both values of a result, and the epilogue multiplies them where they are.
enum class Gated : uint8_t { kNo, kColumns, kRows };

// What becomes of y, the operand whose rows are the engine's columns, if its rows do not begin at multiples
// of 16 bytes, as the copy engine wants them: it is copied to such rows first, or realigned on its way, every
// time that a tile needs it. The latter is better where it is large and there is little to multiply.
enum class Unaligned : uint8_t { kCopied = 1, kRealigned = 2 };

// Which rows of x a tile has: such as follow each other, or every eighth from one of the first eight on. The
// latter lie alike wherever x's rows begin, so that the copy engine can load them where they are.
enum class TileRows : uint8_t { kNext = 1, kEighth = 2 };

// Where an edge leaves a tile no more columns than this, it multiplies only these: a product a little wider
// than its tiles then pays for what it has.
constexpr int kNarrow = 64;

// Shared memory: what a block may have, what each consumer warp stages its results in, so that warps need not
// wait for each other, what the barriers take, and the swizzle pattern's period.
constexpr int kSharedLimit = 227 * 1024, kStagingBytes = 4096, kBarrierBytes = 464, kAlignment = 1024;
constexpr int kStagingBuffers = 2, kReservedBytes = 1024;  // the latter of each block

struct TileConfig {
  int tile_m, tile_n;  // of the engine's rows and columns; the problem's n and m when operands are swapped
  int consumers;       // warpgroups that multiply; one more loads
  Schedule schedule;
  Gated gated = Gated::kNo;
  int blocks = 1;  // that share a multiprocessor
  Unaligned unaligned = Unaligned::kCopied;
  TileRows rows = TileRows::kNext;

  constexpr bool eighths() const { return rows == TileRows::kEighth; }
  // Whether y must have rows along k. Blocks of another's would begin in the middle of lines of L2, which
  // takes longer than what tiles of such widths spare.
  constexpr bool along_k() const { return tile_n > 64 && tile_n % 32 != 0; }
  constexpr bool realigns() const { return unaligned == Unaligned::kRealigned; }

  // Of the results that a tile makes.
  constexpr int result_m() const { return gated == Gated::kRows ? tile_m / 2 : tile_m; }
  constexpr int result_n() const { return gated == Gated::kColumns ? tile_n / 2 : tile_n; }
  // Rows of one warpgroup's accumulators, a multiple of the instruction's 64.
  constexpr int group_rows() const { return schedule == Schedule::kPingPong ? tile_m : tile_m / consumers; }
  constexpr bool narrows() const { return gated == Gated::kNo && tile_n > kNarrow && !realigns(); }
  // Registers of a thread for its results.
  constexpr int accumulators() const { return group_rows() * tile_n / 128; }
  // Columns that a warp finishes at a time. With many accumulators, or three consumers, there are registers
  // for 32 only.
  constexpr int strip_columns() const {
    const bool wide = consumers < 3 && accumulators() <= 128 && ceil_div(result_n(), 32) % 2 == 0;
    return result_n() < 32 ? 16 : wide ? 64 : 32;
  }
  // Strips side by side. Where they do not divide the results the last one has columns of the one before too,
  // which are written twice, as no copy may reach beyond the tile: that takes longer than narrower strips do.
  constexpr int strips() const { return static_cast<int>(ceil_div(result_n(), strip_columns())); }
  constexpr int whole_strips() const { return result_n() / strip_columns(); }
  // Staging buffers, of a warp each, that one warp's sums in fp32 take.
  constexpr int sent_buffers() const {
    return static_cast<int>(ceil_div(group_rows() / 4 * tile_n * 4, kStagingBytes));
  }
  // Warps whose results a block finishes where so many share a tile's K, if it finishes any.
  static constexpr int finished_warps(int slices) { return slices == 2 ? 2 : 1; }
  // Whether so many blocks of a cluster may share it: what the others send must leave the buffers of those
  // warps free. See gather.cuh.
  constexpr bool can_slice(int slices) const {
    const int finish = finished_warps(slices);
    return schedule == Schedule::kPingPong && gated == Gated::kNo && !narrows() && blocks == 1 &&
           !realigns() && !eighths() && finish * (slices - 1) * sent_buffers() <= 4 * consumers - finish;
  }
  // What a consumer warp stages its results in: where blocks share the room, no more than a strip needs.
  constexpr int staging_bytes() const {
    return blocks == 1 ? kStagingBytes : kStagingBuffers * 16 * strip_columns() * 2;
  }
  // How many bytes there are for stages, and how many stages.
  constexpr int room() const {
    return (kSharedLimit + kReservedBytes) / blocks - kReservedBytes - kAlignment - kBarrierBytes -
           consumers * 4 * staging_bytes();
  }
  constexpr int stages(int stage_bytes) const {
    const int fit = room() / stage_bytes;
    return fit < 16 ? fit : 16;
  }
};

constexpr int kTileK = 64;  // one 128-byte swizzle row of 16-bit elements

// Elements of a line of L2: rows that begin in the middle of one take longer to load and to store.
constexpr int64_t kL2Line = 64;
constexpr bool whole_lines(int64_t pitch) { return pitch % kL2Line == 0; }

// Accumulators take tile area / (128 * consumers) registers of a thread (twice that in ping-pong): 128 leave
// room for the epilogue, 160 is the most that does not spill. benchmarks/subset.py tells what each tile is
// worth.
constexpr TileConfig kTiles[] = {
    {128, 256, 2, Schedule::kCooperative},  // largest product per byte loaded
    {192, 192, 3, Schedule::kCooperative},
    {192, 160, 3, Schedule::kCooperative},
    {128, 224, 2, Schedule::kCooperative},
    {128, 192, 2, Schedule::kCooperative},
    {128, 160, 2, Schedule::kPingPong},
    {128, 144, 2, Schedule::kPingPong},
    {128, 128, 2, Schedule::kPingPong},
    {128, 112, 2, Schedule::kPingPong},
    {128, 96, 2, Schedule::kPingPong},
    {128, 64, 2, Schedule::kPingPong},
    {64, 192, 2, Schedule::kPingPong},
    {64, 128, 2, Schedule::kPingPong},
    {64, 96, 2, Schedule::kPingPong},
    {64, 64, 2, Schedule::kPingPong},
    {64, 32, 2, Schedule::kPingPong},
    {64, 16, 2, Schedule::kPingPong},
    // Few rows of long sums are a matter of memory: a few more tiles than multiprocessors share them, rather
    // than that some wait for the others.
    {64, 32, 2, Schedule::kPingPong, Gated::kNo, 2},
    {64, 16, 2, Schedule::kPingPong, Gated::kNo, 2},
    // For a large operand of unaligned rows and a small one.
    {128, 128, 2, Schedule::kCooperative, Gated::kNo, 1, Unaligned::kRealigned},
    {64, 128, 2, Schedule::kPingPong, Gated::kNo, 1, Unaligned::kRealigned},
    {64, 64, 2, Schedule::kPingPong, Gated::kNo, 1, Unaligned::kRealigned},
    // For an A of unaligned rows that takes long to copy. See eighths.cuh.
    {128, 256, 2, Schedule::kCooperative, Gated::kNo, 1, Unaligned::kCopied, TileRows::kEighth},
    {128, 128, 2, Schedule::kPingPong, Gated::kNo, 1, Unaligned::kCopied, TileRows::kEighth},
    {64, 192, 2, Schedule::kPingPong, Gated::kNo, 1, Unaligned::kCopied, TileRows::kEighth},
    // Gated ones come last: with weights along the columns, and along the rows for few rows of A.
    {128, 256, 2, Schedule::kCooperative, Gated::kColumns},
    {128, 128, 2, Schedule::kPingPong, Gated::kColumns},
    {64, 64, 2, Schedule::kPingPong, Gated::kColumns},  // narrow weights
    {128, 128, 2, Schedule::kPingPong, Gated::kRows},
    {128, 64, 2, Schedule::kPingPong, Gated::kRows},
    {128, 32, 2, Schedule::kPingPong, Gated::kRows},
    {128, 16, 2, Schedule::kPingPong, Gated::kRows},
};

// Whether the last of a product's columns leave a tile narrow.
constexpr bool narrow_edge(const TileConfig& t, int64_t columns) {
  return t.narrows() && columns % t.tile_n != 0 && columns % t.tile_n <= kNarrow;
}

constexpr int kTileCount = sizeof(kTiles) / sizeof(kTiles[0]);
constexpr int kGatedTileCount = 7;
constexpr int kPlainTileCount = kTileCount - kGatedTileCount;
static_assert(kTiles[kPlainTileCount - 1].gated == Gated::kNo && kTiles[kPlainTileCount].gated != Gated::kNo);

// Rows of an MN-major operand that are copied together, and laid out as one block. The wider block makes the
// better copies; the narrower one spares tiles that are not a multiple of it from loading what they do not
// use. A gated tile's rows are those of one weight, as each weight comes in whole blocks.
constexpr int rows_block(int tile_rows) { return tile_rows % 64 != 0 && tile_rows % 32 == 0 ? 32 : 64; }

// Rows of an operand along k that a stage gets of a tile of so many, where there are `rows` more of them:
// what there is, in whole periods of the swizzle, as many from each of the `share` blocks that load it
// together.
constexpr int loaded_rows(int64_t rows, int tile_rows, int share) {
  return rows < tile_rows ? static_cast<int>(round_up(rows, 8 * share)) : tile_rows;
}

// Rows of tiles, in clusters of so many, that x's rows make. Where tiles have every eighth, of each of the
// first eight rows those that begin with it, and of the first of these one more where that is so.
constexpr int64_t unit_rows(const TileConfig& t, int64_t rows, int cluster) {
  const int64_t unit = int64_t(t.result_m()) * cluster;
  if (!t.eighths()) return ceil_div(ceil_div(rows, t.result_m()), cluster);
  const int64_t rest = rows % (8 * unit);
  return rows / (8 * unit) * 8 + (rest < 8 ? rest : 8);
}

// Every eighth row of so many elements begins as many elements after a multiple of this, the largest part of
// a line of L2, or all of it, of which that is so: that is where its loads begin, and its steps of k.
constexpr int64_t lowest_bit(int64_t x) { return x & -x; }
constexpr int eighths_align(int64_t pitch) {
  return static_cast<int>(lowest_bit(pitch) < 8 ? 8 * lowest_bit(pitch) : 64);
}
// Steps of k, at most.
constexpr int64_t eighths_steps(int64_t k, int64_t pitch) {
  const int64_t align = eighths_align(pitch), apart = lowest_bit(pitch);
  return ceil_div(k + align - (apart < align ? apart : align), kTileK);
}

// A stage of an operand that is realigned, as it comes: lines along k of an MN-major operand, or rows of
// another, in 8 boxes of every eighth line. A line has one vector of 16 bytes more than it fills.
struct RawStage {
  int lines, vectors;  // the latter of a line
  int line_bytes, box_lines, box_bytes, bytes;

  constexpr RawStage(const TileConfig& t, bool mn_major)
      : lines(mn_major ? kTileK : t.tile_n),
        vectors((mn_major ? t.tile_n : kTileK) / 8 + 1),
        line_bytes(16 * vectors),
        box_lines(lines / 8),
        box_bytes(box_lines * line_bytes),
        bytes(8 * box_bytes) {}
};
// Then the ring of stages is short, as x is small and comes from L2, and what has to come from memory is in
// this one.
constexpr int kRealignedStages = 4, kRealigningTeams = 2, kTeamWarps = 4;
constexpr int kRealigningWarps = kRealigningTeams * kTeamWarps;
constexpr int raw_stages(const TileConfig& t, int stage_bytes, bool mn_major) {
  const int fit = (t.room() - kRealignedStages * stage_bytes) / RawStage(t, mn_major).bytes;
  return fit < 12 ? fit : 12;
}

// How many blocks a launch has. Resident: one for every multiprocessor, each working through several tiles,
// so that nothing is set up twice and a tile's epilogue may run beside the next one's products. Tiles: one
// for every tile, as the machine has room for them: where something else occupies multiprocessors, as
// collectives do, resident blocks that start late would hold up all the tiles that are theirs.
enum class Grid : uint8_t { kResident = 1, kTiles = 2 };

// Where the pieces of a K that is split meet: their partial results in memory, which another kernel adds, or
// the sums of 2, 4 or 8 blocks of a cluster in the shared memory of the first. Then a block has one tile.
enum class Reduction : uint8_t { kWorkspace = 1, kCluster = 2 };

// How one launch runs. `tile` indexes kTiles.
struct Config {
  int tile = 0;
  int cluster_m = 1, cluster_n = 1;  // blocks that share loads, along the engine's rows and columns: 1, 2, 4
  int split_k = 1;                   // pieces of K
  bool swap = false;                 // compute the transpose: op(B)'s columns ride the engine's rows
  int group = 8;                     // clusters of tile rows that are walked together: see best_group()
  Grid grid = Grid::kResident;
  Reduction reduction = Reduction::kWorkspace;

  int slices() const { return reduction == Reduction::kCluster ? split_k : 1; }      // of K, in a cluster
  int partials() const { return reduction == Reduction::kWorkspace ? split_k : 1; }  // results in memory
  int cluster() const { return cluster_m * cluster_n * slices(); }                   // blocks of one
};

// The values of the row's options, in their order. Zero leaves the choice to the model.
enum Option {
  kTileM,
  kTileN,
  kSchedule,
  kClusterM,
  kClusterN,
  kSplitK,
  kSwap,
  kGroup,
  kGrid,
  kReduction,
  kBlocks,
  kUnaligned,
  kRows,
  kOptionCount
};

// Clusters that run at a time, of so many blocks. The blocks of one lie in one of the chip's parts: pairs
// fill any, of four and eight an H200 runs 30 and 15, by timings.
constexpr int resident_clusters(int multiprocessors, int blocks) {
  const int clusters = blocks <= 2 ? multiprocessors / blocks : multiprocessors * 10 / 11 / blocks;
  return clusters > 0 ? clusters : 1;
}

// A narrow last column of tiles is walked after all others where there are so few waves that it does not cost
// much to load their rows once more.
constexpr int kNarrowLastWaves = 8;
// Of `clusters` at a time, those that walk it then: all that have no unit in the last wave of whole ones,
// where each gets two narrow ones at most, which should not take much longer than a whole one. 0 where it is
// walked among the others.
constexpr int64_t narrow_stride(const Config& c, int64_t rows, int64_t columns, int64_t products,
                                int64_t clusters) {
  const bool last = columns > 1 && products == 1 && c.cluster_n == 1 && c.slices() == 1 &&
                    rows * columns <= kNarrowLastWaves * clusters;
  if (!last) return 0;
  const int64_t idle = clusters - rows * (columns - 1) % clusters;
  return rows <= 2 * idle ? idle : clusters;
}

// Blocks of a GPC, about, where such as follow each other in the grid run: what they load at about the same
// time is loaded from L2 once.
constexpr int kGpcBlocks = 16;

// Whether every block has one tile, and no others to share it with: the grid can say whose is whose.
constexpr bool one_wave(double units, double resident, int cluster) {
  return cluster == 1 && units <= resident;
}

}  // namespace jaxgemm::cuda::sm90
