// Which tile, piece of K and product of the batch a block works on, and when.
//
// The grid is persistent: cluster i takes the units i, i + clusters, i + 2 clusters, ... (unit_counts.h says
// what a unit is.) Units are numbered tile first, then piece of K, then product, so that blocks that run
// together read the same stretch of K. The tiles of a product are walked in swaths of `walk_height` rows of
// clusters, down the rows of a swath first and then along its columns: the tiles in flight form a compact
// patch, whose operands L2 holds.
//
// Three things depart from this order:
//  - If there are no more units than blocks (one_wave), the grid's own coordinates say which block has
//    which tile, along the rows or along the columns, and nothing is divided.
//  - Clusters of several blocks are dealt to the chip's GPCs in turn. gpc_ordered_unit() gives the clusters
//    of one GPC units that follow each other: lines that its blocks load at about the same time, L2 sends
//    once.
//  - A narrow last column of tiles may come after all others (narrow_stride() in unit_counts.h).
#pragma once

#include <array>
#include <cstdint>

#include "../../problem.h"
#include "../device/divisor.cuh"

namespace jaxgemm::cuda::sm90 {

// Which unit of the first wave is cluster i's, where `count` clusters of `size` blocks (2, 4 or 8) run at a
// time. Blocks that recorded %smid on an H200 showed in which order it deals clusters. Pairs: the first four
// go to multiprocessors that the rounds below leave over. Then a first round: the 8 GPCs get clusters in
// turn, until each has clusters on 8 multiprocessors. Then a second round without the first GPC, which has no
// more multiprocessors. Another chip may deal clusters otherwise, which costs time and nothing else.
__host__ __device__ constexpr uint32_t gpc_ordered_unit(uint32_t i, uint32_t count, uint32_t size) {
  constexpr uint32_t kGpcs = 8, kOthers = kGpcs - 1, kTogether = 8, kBeside = 4;
  const auto least = [](uint32_t a, uint32_t b) { return a < b ? a : b; };
  const uint32_t beside = size == 2 ? least(count, kBeside) : 0;
  if (i < beside) return count - beside + i;
  i -= beside;
  const uint32_t first = least(count - beside, kGpcs * (kTogether / size)), second = count - beside - first;
  const bool again = i >= first;
  const uint32_t gpc = again ? 1 + (i - first) % kOthers : i % kGpcs, others = gpc > 0 ? gpc - 1 : 0;
  const uint32_t before = gpc * (first / kGpcs) + least(gpc, first % kGpcs) + others * (second / kOthers) +
                          least(others, second % kOthers);
  return before + (again ? first / kGpcs + (gpc < first % kGpcs) + (i - first) / kOthers : i / kGpcs);
}

struct TileSchedule {
  uint32_t units;
  uint8_t cluster_m, cluster_n;  // 1, 2 or 4
  uint8_t cluster_shift;         // log2 of a cluster's blocks
  uint8_t slices;                // of K in a cluster; its cluster_m and cluster_n are 1 if there are several
  bool one_wave;                 // the grid is rows x columns x products, with a block for each tile
  bool columns_first;            // or columns x rows x products
  uint16_t resident;             // clusters that run at a time
  int narrow_col;                // the column of tiles with kNarrowColumns or less, or -1
  uint32_t products;             // of the batch, times the partial results of each
  uint32_t k_each,
      k_extra;     // steps, of a stage each, in every piece of K; the first k_extra pieces have one more
  Divisor splits;  // partial results of a product
  uint32_t narrow_stride;  // clusters that walk narrow_col after all other tiles; 0: it is among the others
  uint32_t rows;           // rows of clusters
  Divisor product_tiles;   // clusters of one piece of K of one product, less narrow_col if it comes last
  Divisor swath_tiles;     // clusters of a swath: of rows that are walked together
  Divisor swath_rows, last_swath_rows;
};

struct Plan;

// The schedule of a plan on a device of so many multiprocessors; no units if there are too many to count.
TileSchedule make_schedule(const Plan& plan, const GemmProblem& problem, int multiprocessors);
// The grid that walks the schedule: blocks along x, y and z.
std::array<uint32_t, 3> grid_of(const TileSchedule& schedule, const Plan& plan);

// A block's part of a unit: one tile, over one piece of k.
struct Unit {
  int row, col;  // in tiles
  int split, batch;
  int k_begin, k_blocks;  // in steps
};

// A block's place in its cluster, and the cluster's place in the grid: fixed for the whole launch. Blocks
// of a row or a column of the cluster share loads. A block's peers are the blocks of its row and its
// column, itself included. If blocks have slices of K instead, a block is its only peer.
struct ClusterPlace {
  uint32_t size, row, col, slice;
  uint32_t rows, cols;
  uint32_t first_unit, unit_stride;

  // `rank_of(size)`: this block's rank in a cluster of `size` blocks.
  template <typename Rank>
  __device__ __forceinline__ ClusterPlace(const TileSchedule& s, Rank&& rank_of) {
    size = 1u << s.cluster_shift;
    const uint32_t rank = rank_of(size);
    rows = s.cluster_m;
    cols = s.cluster_n;
    slice = s.slices > 1 ? rank : 0;
    row = (rank - slice) & (rows - 1);
    col = (rank - slice) >> (rows >> 1);
    first_unit = s.one_wave ? 0 : blockIdx.x >> s.cluster_shift;
    if (size > 1 && first_unit < s.resident) first_unit = gpc_ordered_unit(first_unit, s.resident, size);
    unit_stride = s.one_wave ? s.units : gridDim.x >> s.cluster_shift;
  }

  // The unit that follows `index` here; none from s.units on.
  __device__ __forceinline__ uint32_t next(const TileSchedule& s, uint32_t index) const {
    if (s.narrow_stride == 0) return index + unit_stride;
    const uint32_t whole = s.product_tiles.divisor;
    if (index >= whole) return index + s.narrow_stride;
    const uint32_t next = index + unit_stride;
    return next < whole + s.narrow_stride ? next : s.units;
  }

  __device__ __forceinline__ uint32_t peers() const { return rows + cols - 1; }
  // The rank of peer `i`: the column's blocks come first, then the row's others.
  __device__ __forceinline__ uint32_t peer(uint32_t i) const {
    const uint32_t other = i - rows + (i - rows >= col);
    return slice + (i < rows ? i + col * rows : row + other * rows);
  }
  // The blocks that share this one's rows, and those that share its columns, as bits.
  __device__ __forceinline__ uint32_t row_mask() const {
    uint32_t mask = 1;
    for (uint32_t i = 1; i < cols; ++i) mask |= 1u << i * rows;
    return mask << row;
  }
  __device__ __forceinline__ uint32_t column_mask() const { return ((1u << rows) - 1) << col * rows; }
};

// The tile at (row, col) of a product's piece of K. `product` counts pieces too; `slice` is the block's.
__device__ __forceinline__ Unit unit_of(const TileSchedule& s, uint32_t row, uint32_t col, uint32_t product,
                                        uint32_t slice) {
  Unit unit{};
  unit.row = static_cast<int>(row);
  unit.col = static_cast<int>(col);
  unit.k_blocks = static_cast<int>(s.k_each);
  if (s.products > 1 || s.slices > 1) {
    const uint32_t batch = s.splits(product);
    const uint32_t split = product - batch * s.splits.divisor;
    unit.split = static_cast<int>(split);
    unit.batch = static_cast<int>(batch);
    const uint32_t piece = split + slice;  // K is split or sliced, never both, so one of them is 0
    unit.k_begin = static_cast<int>(piece * s.k_each + min(piece, s.k_extra));
    unit.k_blocks += piece < s.k_extra ? 1 : 0;
  }
  return unit;
}

// The only tile of a block, if there is one wave.
__device__ __forceinline__ Unit only_unit(const TileSchedule& s) {
  const uint32_t x = blockIdx.x, y = blockIdx.y;
  return unit_of(s, s.columns_first ? y : x, s.columns_first ? x : y, blockIdx.z, 0);
}

// A block's tile of unit `index`.
__device__ __forceinline__ Unit unit_at(const TileSchedule& s, const ClusterPlace& place, uint32_t index) {
  const uint32_t product = s.product_tiles(index);
  const uint32_t tile = index - product * s.product_tiles.divisor;
  if (s.narrow_stride > 0 && product > 0)
    return unit_of(s, tile * s.cluster_m + place.row, s.narrow_col, 0, 0);
  const uint32_t swath = s.swath_tiles(tile);
  const uint32_t within = tile - swath * s.swath_tiles.divisor;
  const uint32_t first_row = swath * s.swath_rows.divisor;
  const bool last = first_row + s.swath_rows.divisor > s.rows;
  const uint32_t col = last ? s.last_swath_rows(within) : s.swath_rows(within);
  const uint32_t row_in_swath = within - col * (last ? s.last_swath_rows.divisor : s.swath_rows.divisor);
  return unit_of(s, (first_row + row_in_swath) * s.cluster_m + place.row, col * s.cluster_n + place.col,
                 product, place.slice);
}

}  // namespace jaxgemm::cuda::sm90
