// The tile configurations that the Hopper engine is compiled for, in one table: the launcher dispatches over
// it and the cost model chooses from it. Below the table, Config says how one launch runs. Needs no CUDA;
// kernels use the parts of this file that are known at compile time.
#pragma once

#include <cstdint>

#include "../../arithmetic.h"
#include "../../problem.h"

namespace jaxgemm::cuda::sm90 {

// The engine computes X Y^T, where X is op(A) and Y is op(B)^T, or Y is op(A) and X is op(B)^T when operands
// are swapped. x and y name the two operands from here on: x's rows are the rows of a tile, y's rows its
// columns.

// Cooperative: all consumer warpgroups share one tile, which is cut along its rows; this suits long K.
// Ping-pong: each of two consumer warpgroups owns a whole tile, so that the epilogue of one runs under the
// main loop of the other; this suits short K and heavy epilogues.
enum class Schedule : uint8_t { kCooperative = 1, kPingPong = 2 };

// An axis of a tile: its rows, its columns, or k, the axis of the sums.
enum class Axis : uint8_t { kNone, kRows, kColumns, kK };

// A tile that the right edge of the result cuts to this many columns or fewer multiplies only this many
// columns.
constexpr int kNarrowColumns = 64;

// Shared memory, in bytes: the limit of a block, and the part that the system reserves of each block.
constexpr int kSharedLimit = 227 * 1024, kReservedBytes = 1024;
// Bytes of a consumer warp's staging area, and the buffers that it is cut into. Each warp stages its results
// in an area of its own, so that warps do not wait for each other.
constexpr int kStagingBytes = 4096, kStagingBuffers = 2;
constexpr int kBarrierBytes = 464;  // all barriers of a block
constexpr int kAlignment = 1024;    // the period of the 128-byte swizzle

struct TileConfig {
  int tile_m, tile_n;  // the engine's rows and columns; along the problem's n and m when operands are swapped
  int consumers;       // warpgroups that multiply; one more loads
  Schedule schedule;
  // For a gated product, which takes two weights at once: half of the tile's columns (of its rows when
  // operands are swapped) come from one weight and half from the other, with the same indices in both
  // weights. A thread's accumulators then hold both values of a result, and the epilogue multiplies them in
  // registers.
  Axis gated = Axis::kNone;
  int blocks = 1;             // blocks that share a multiprocessor
  bool realigns = false;      // y is shifted on its way: see unaligned/ways.h
  bool every_eighth = false;  // the tile's rows are every eighth row of x: see unaligned/ways.h
  // For a grouped product (groups.cuh), whose rows of A are tokens: the axis of the tile along which tokens
  // lie. A tile has tokens of one group only: along its rows; or along its columns, if groups have few tokens
  // and operands are swapped; or along k, if the product sums over tokens.
  Axis tokens = Axis::kNone;
  bool many = false;                      // for many products of different shapes: see many.cuh
  int staging_buffers = kStagingBuffers;  // staging buffers of each consumer warp
  bool planes = false;                    // for fp32 operands in planes of 16 bits: see planes/planes.h
  bool turned = false;                    // for an MN-major x of 8 bits, from registers: see bytes/turned.cuh

  // Whether the tile is of one product, or of a batch of products of the same shape, whose extents the host
  // knows.
  constexpr bool is_dense() const { return tokens == Axis::kNone && !many; }
  // Whether the tile's results may be added to C.
  constexpr bool has_addend() const { return is_dense() && gated == Axis::kNone && !planes; }

  // Whether y must be K-major. If tile_n is no multiple of 32, MN-major blocks of y would begin in the middle
  // of L2's lines, which costs more than the width saves.
  constexpr bool needs_k_major_y() const { return tile_n > 64 && tile_n % 32 != 0; }

  // Rows and columns of the results that a tile makes.
  constexpr int result_m() const { return gated == Axis::kRows ? tile_m / 2 : tile_m; }
  constexpr int result_n() const { return gated == Axis::kColumns ? tile_n / 2 : tile_n; }
  // Rows of one warpgroup's accumulators, a multiple of the instruction's 64 rows.
  constexpr int warpgroup_rows() const {
    return schedule == Schedule::kPingPong ? tile_m : tile_m / consumers;
  }
  // Whether the tile has a form that multiplies only kNarrowColumns columns.
  constexpr bool has_narrow_form() const {
    return gated == Axis::kNone && tile_n > kNarrowColumns && !realigns && is_dense() && !planes && !turned;
  }
  // A thread's registers for results.
  constexpr int accumulators() const { return warpgroup_rows() * tile_n / 128; }
  // Columns of a strip, the 16 rows by this many columns of results that a warp finishes at a time. With more
  // than 128 accumulators (64 for operands of 8 bits, which have scales), or three consumers, there are
  // registers for 32 columns only.
  constexpr int strip_columns(int element_bytes) const {
    const int most = element_bytes == 1 ? 64 : 128;
    const bool wide = consumers < 3 && accumulators() <= most && ceil_div(result_n(), 32) % 2 == 0;
    return result_n() < 32 ? 16 : wide ? 64 : 32;
  }
  // Strips side by side in a tile. If strip_columns() does not divide result_n(), the last strip overlaps the
  // strip before it and their common columns are stored twice, as no copy may reach beyond the tile.
  constexpr int strips(int element_bytes) const {
    return static_cast<int>(ceil_div(result_n(), strip_columns(element_bytes)));
  }
  constexpr int whole_strips(int element_bytes) const { return result_n() / strip_columns(element_bytes); }

  // How many warps' staging areas one warp's fp32 sums fill, when a block of a cluster sends the sums to
  // another block.
  constexpr int sent_buffers() const {
    return static_cast<int>(ceil_div(warpgroup_rows() / 4 * tile_n * 4, kStagingBytes));
  }
  // How many warps multiply one tile; and the rows of how many of them a block finishes, if `slices` blocks
  // share a tile's K (gather.cuh).
  constexpr int sharing_warps() const { return schedule == Schedule::kPingPong ? 4 : 4 * consumers; }
  constexpr int finished_warps(int slices) const {
    return slices < sharing_warps() ? sharing_warps() / slices : 1;
  }
  // Whether `slices` blocks of a cluster may share a tile's K: the sums that a block receives must fit into
  // the staging buffers of the warps that finish nothing in that block.
  constexpr bool can_slice(int slices) const {
    const int finish = finished_warps(slices);
    return (schedule == Schedule::kPingPong || turned) && gated == Axis::kNone && !has_narrow_form() &&
           blocks == 1 && !realigns && !every_eighth && is_dense() &&
           finish * (slices - 1) * sent_buffers() <= 4 * consumers - finish;
  }

  // Bytes that a consumer warp stages its results in. If blocks share the multiprocessor: as many bytes as
  // two strips.
  constexpr int staging_bytes() const {
    return blocks == 1 ? kStagingBytes / kStagingBuffers * staging_buffers
                       : staging_buffers * 16 * strip_columns(2) * 2;
  }
  // Rows of tokens in a box of the copy engine. A group's last tile loads only the boxes that hold tokens;
  // for how many tokens the tile multiplies see token_forms().
  constexpr int token_box(int sharers) const {
    const int each = (tokens == Axis::kRows ? result_m() : result_n()) / sharers;
    return each < 64 ? each : 64;
  }
  // How many forms a tile has: one form multiplies the tile's first 64 tokens, the next one the first 128,
  // ...
  constexpr int token_forms() const { return tokens == Axis::kColumns && tile_n > 64 ? tile_n / 64 : 1; }
  // Bytes of shared memory for the ring of stages, and how many stages of `stage_bytes` bytes fit into the
  // ring.
  constexpr int room() const {
    return (kSharedLimit + kReservedBytes) / blocks - kReservedBytes - kAlignment - kBarrierBytes -
           consumers * 4 * staging_bytes();
  }
  constexpr int stages(int stage_bytes) const {
    const int fit = room() / stage_bytes;
    return fit < 16 ? fit : 16;
  }
};

// A stage of the ring holds a line of each row of an operand: kLineBytes bytes along k, one row of the
// swizzle. kStepK16 is how many elements of 16 bits a line has, for code whose elements all have 16 bits.
constexpr int kLineBytes = 128, kStepK16 = kLineBytes / 2;
// The elements of a stage along k.
constexpr int step_k(DType operand) { return kLineBytes / static_cast<int>(dtype_bytes(operand)); }
constexpr int step_k(const GemmProblem& p) { return step_k(p.a.dtype); }

// Elements of 16 bits in a line of L2 (128 bytes). Rows that begin in the middle of a line take longer to
// load and store.
constexpr int64_t kL2Line = 64;
constexpr bool whole_lines(int64_t pitch) { return pitch % kL2Line == 0; }

// A thread's accumulators take tile_m * tile_n / (128 * consumers) registers, twice as many in ping-pong: 128
// registers leave room for the epilogue, and 160 are the most that do not spill. benchmarks/subset.py
// computes what each tile is worth.
using enum Schedule;
constexpr TileConfig kTiles[] = {
    // Tiles with the most multiply-adds per byte loaded.
    {.tile_m = 128, .tile_n = 256, .consumers = 2, .schedule = kCooperative},
    {.tile_m = 192, .tile_n = 192, .consumers = 3, .schedule = kCooperative},
    {.tile_m = 192, .tile_n = 160, .consumers = 3, .schedule = kCooperative},
    {.tile_m = 128, .tile_n = 224, .consumers = 2, .schedule = kCooperative},
    {.tile_m = 128, .tile_n = 192, .consumers = 2, .schedule = kCooperative},
    {.tile_m = 128, .tile_n = 160, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 128, .tile_n = 144, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 128, .tile_n = 112, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 128, .tile_n = 96, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 128, .tile_n = 64, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 64, .tile_n = 192, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 64, .tile_n = 128, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 64, .tile_n = 96, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 64, .tile_n = 64, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 64, .tile_n = 32, .consumers = 2, .schedule = kPingPong},
    {.tile_m = 64, .tile_n = 16, .consumers = 2, .schedule = kPingPong},
    // Products with few rows and long K are bound by memory. With two blocks per multiprocessor, one wave
    // takes a few more tiles than there are multiprocessors.
    {.tile_m = 64, .tile_n = 32, .consumers = 2, .schedule = kPingPong, .blocks = 2},
    {.tile_m = 64, .tile_n = 16, .consumers = 2, .schedule = kPingPong, .blocks = 2},
    // For an unaligned y much larger than x.
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kCooperative, .realigns = true},
    {.tile_m = 64, .tile_n = 128, .consumers = 2, .schedule = kPingPong, .realigns = true},
    {.tile_m = 64, .tile_n = 64, .consumers = 2, .schedule = kPingPong, .realigns = true},
    // For an unaligned A that takes long to copy.
    {.tile_m = 128, .tile_n = 256, .consumers = 2, .schedule = kCooperative, .every_eighth = true},
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kPingPong, .every_eighth = true},
    {.tile_m = 64, .tile_n = 192, .consumers = 2, .schedule = kPingPong, .every_eighth = true},
    // Gated tiles: weights along the columns, or along the rows for few rows of A.
    {.tile_m = 128, .tile_n = 256, .consumers = 2, .schedule = kCooperative, .gated = Axis::kColumns},
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kPingPong, .gated = Axis::kColumns},
    // For narrow weights.
    {.tile_m = 64, .tile_n = 64, .consumers = 2, .schedule = kPingPong, .gated = Axis::kColumns},
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kPingPong, .gated = Axis::kRows},
    {.tile_m = 128, .tile_n = 64, .consumers = 2, .schedule = kPingPong, .gated = Axis::kRows},
    {.tile_m = 128, .tile_n = 32, .consumers = 2, .schedule = kPingPong, .gated = Axis::kRows},
    {.tile_m = 128, .tile_n = 16, .consumers = 2, .schedule = kPingPong, .gated = Axis::kRows},
    // Tiles of grouped products.
    {.tile_m = 128, .tile_n = 256, .consumers = 2, .schedule = kCooperative, .tokens = Axis::kRows},
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kPingPong, .tokens = Axis::kRows},
    {.tile_m = 128, .tile_n = 256, .consumers = 2, .schedule = kCooperative, .tokens = Axis::kColumns},
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kPingPong, .tokens = Axis::kColumns},
    {.tile_m = 128, .tile_n = 64, .consumers = 2, .schedule = kPingPong, .tokens = Axis::kColumns},
    {.tile_m = 64, .tile_n = 32, .consumers = 2, .schedule = kPingPong, .tokens = Axis::kColumns},
    {.tile_m = 64, .tile_n = 16, .consumers = 2, .schedule = kPingPong, .tokens = Axis::kColumns},
    {.tile_m = 128,
     .tile_n = 256,
     .consumers = 2,
     .schedule = kCooperative,
     .tokens = Axis::kK,
     .staging_buffers = 4},
    {.tile_m = 128,
     .tile_n = 192,
     .consumers = 2,
     .schedule = kCooperative,
     .tokens = Axis::kK,
     .staging_buffers = 4},
    {.tile_m = 128,
     .tile_n = 128,
     .consumers = 2,
     .schedule = kPingPong,
     .tokens = Axis::kK,
     .staging_buffers = 4},
    {.tile_m = 128,
     .tile_n = 256,
     .consumers = 2,
     .schedule = kCooperative,
     .gated = Axis::kColumns,
     .tokens = Axis::kRows},
    {.tile_m = 128,
     .tile_n = 128,
     .consumers = 2,
     .schedule = kPingPong,
     .gated = Axis::kColumns,
     .tokens = Axis::kRows},
    {.tile_m = 128,
     .tile_n = 64,
     .consumers = 2,
     .schedule = kPingPong,
     .gated = Axis::kRows,
     .tokens = Axis::kColumns},
    {.tile_m = 128,
     .tile_n = 16,
     .consumers = 2,
     .schedule = kPingPong,
     .gated = Axis::kRows,
     .tokens = Axis::kColumns},
    // Tiles of many products.
    {.tile_m = 128, .tile_n = 256, .consumers = 2, .schedule = kCooperative, .many = true},
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kPingPong, .many = true},
    {.tile_m = 64, .tile_n = 64, .consumers = 2, .schedule = kPingPong, .many = true},
    // Tiles of planes. Each warpgroup adds up its sums while the other warpgroups multiply.
    {.tile_m = 192,
     .tile_n = 128,
     .consumers = 3,
     .schedule = kCooperative,
     .staging_buffers = 1,
     .planes = true},
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kCooperative, .planes = true},
    {.tile_m = 128, .tile_n = 64, .consumers = 2, .schedule = kCooperative, .planes = true},
    // And of grouped products of planes.
    {.tile_m = 128,
     .tile_n = 128,
     .consumers = 2,
     .schedule = kCooperative,
     .tokens = Axis::kRows,
     .planes = true},
    {.tile_m = 128,
     .tile_n = 64,
     .consumers = 2,
     .schedule = kCooperative,
     .tokens = Axis::kColumns,
     .planes = true},
    {.tile_m = 128,
     .tile_n = 16,
     .consumers = 2,
     .schedule = kCooperative,
     .tokens = Axis::kColumns,
     .planes = true},
    {.tile_m = 128,
     .tile_n = 128,
     .consumers = 2,
     .schedule = kCooperative,
     .tokens = Axis::kK,
     .planes = true},
    // For an MN-major x of 8 bits. A warpgroup has registers for 64 rows of x.
    {.tile_m = 128, .tile_n = 256, .consumers = 2, .schedule = kCooperative, .turned = true},
    {.tile_m = 128, .tile_n = 128, .consumers = 2, .schedule = kCooperative, .turned = true},
    {.tile_m = 128, .tile_n = 64, .consumers = 2, .schedule = kCooperative, .turned = true},
    {.tile_m = 128, .tile_n = 16, .consumers = 2, .schedule = kCooperative, .turned = true},
};

// Whether the last column of tiles is cut to kNarrowColumns or fewer.
constexpr bool has_narrow_edge(const TileConfig& t, int64_t columns) {
  return t.has_narrow_form() && columns % t.tile_n != 0 && columns % t.tile_n <= kNarrowColumns;
}

constexpr int kTileCount = sizeof(kTiles) / sizeof(kTiles[0]);

// Whether a tile is compiled for operands of 8 bits, for these alone or for others as well.
constexpr bool has_8bit_form(const TileConfig& t) {
  if (t.turned || (t.planes && t.is_dense())) return true;
  if (!t.is_dense() || t.gated != Axis::kNone || t.realigns || t.every_eighth || t.planes || t.blocks > 1)
    return false;
  const bool large = t.tile_m == 128 && (t.tile_n == 256 || t.tile_n == 128 || t.tile_n == 64);
  return large || (t.tile_m == 64 && (t.tile_n == 64 || t.tile_n == 16));
}

// An MN-major operand of 16 bits is loaded and laid out in blocks of this many of its rows. Blocks of 64 rows
// make the better copies; blocks of 32 rows save a tile of an odd multiple of 32 rows from loading rows that
// it does not use. In a gated tile, `tile_rows` are the rows of one weight, as each weight comes in whole
// blocks.
constexpr int mn_block_rows(int tile_rows) { return tile_rows % 64 != 0 && tile_rows % 32 == 0 ? 32 : 64; }
// An MN-major operand of 8 bits is loaded and laid out in blocks of as many rows as a line has bytes.
constexpr int mn_block_rows(int tile_rows, int element_bytes) {
  return element_bytes == 1 ? kLineBytes : mn_block_rows(tile_rows);
}

// Rows of a K-major operand that a stage gets for a tile of `tile_rows` rows, if the operand has `rows` rows
// left: whole periods of the swizzle (8 rows), equally many from each of the `sharers` blocks that load the
// tile together.
constexpr int loaded_rows(int64_t rows, int tile_rows, int sharers) {
  return rows < tile_rows ? static_cast<int>(round_up(rows, 8 * sharers)) : tile_rows;
}

// How many blocks a launch has. Resident: one block for every multiprocessor. Each block works through
// several tiles, so that nothing is set up twice and a tile's epilogue may run beside the next tile's main
// loop. Tiles: one block for every tile. If collectives occupy multiprocessors, a resident block that starts
// late would hold up all of its own tiles.
enum class Grid : uint8_t { kResident = 1, kTiles = 2 };

// Where the pieces of a split K are added. Workspace: each piece writes a partial result to memory and a
// second kernel adds the partial results. Cluster: each of the 2, 4 or 8 blocks of a cluster has a slice of
// K, and the blocks add their sums in shared memory (gather.cuh); a block then has one tile.
enum class Reduction : uint8_t { kWorkspace = 1, kCluster = 2 };

// How one launch runs. `tile` indexes kTiles.
struct Config {
  int tile = 0;
  int cluster_m = 1,
      cluster_n = 1;    // blocks that share loads, along the engine's rows and columns: 1, 2 or 4
  int split_k = 1;      // pieces of K
  bool swap = false;    // compute the transpose: x is op(B)^T and y is op(A)
  int walk_height = 8;  // rows of clusters that are walked together: see schedule.cuh
  Grid grid = Grid::kResident;
  Reduction reduction = Reduction::kWorkspace;
  int slabs = 1;  // slabs of k, multiplied one after the other: see planes/slabs.h
  int tail = 1;   // pieces of k, for the tiles beyond whole waves: see planes/tail.h

  int slices() const { return reduction == Reduction::kCluster ? split_k : 1; }  // slices of K in a cluster
  int partials() const {
    return reduction == Reduction::kWorkspace ? split_k : 1;
  }  // partial results in the workspace
  int cluster() const { return cluster_m * cluster_n * slices(); }  // blocks of a cluster
};

}  // namespace jaxgemm::cuda::sm90
