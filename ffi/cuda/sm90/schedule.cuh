// Which tile, split and batch a block works on, and when.
//
// The grid is persistent: cluster i takes units i, i + clusters, ... A unit is one cluster's worth of tiles
// of one split of one product. Tiles of a product come first, so that blocks running together read the same
// stretch of K; they are walked in groups of `group` tile rows, down the rows first, so that the tiles in
// flight form a compact patch and share their operands in L2. A last column of tiles that is cheap to
// multiply may come after all others, where it fills the last wave's gaps instead of making a wave of its
// own. What several blocks of a GPC load at about the same time is loaded from L2 once, so units that follow
// each other are walked by blocks of one GPC: those follow each other in the grid, unless there are clusters,
// which are dealt to the GPCs in turn. Where there are no more units than blocks, the grid says which is
// whose, along the rows or along the columns.
#pragma once

#include <cstdint>

#include "../device/divisor.cuh"
#include "../device/ptx.cuh"

namespace jaxgemm::cuda::sm90 {

// Which unit of the first wave is cluster i's, of `count` clusters of 2, 4 or 8 blocks that run at a time: by
// GPC, and in a GPC in their order. As an H200 deals them, by what its blocks say of where they run: each GPC
// gets the clusters of 8 of its multiprocessors in turn, and then each but the first, which has no more,
// those of 8 others. Where there are pairs, the first four go to what is left beside those. Another chip may
// deal them otherwise, which costs time and nothing else.
__host__ __device__ constexpr uint32_t dealt_unit(uint32_t i, uint32_t count, uint32_t size) {
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
  uint8_t cluster_shift;         // log2 of the cluster's blocks
  uint8_t slices;                // of K in a cluster whose cluster_m and cluster_n are 1
  bool one_wave;       // the grid is rows x columns x products, a block for each: no clusters, no divisions
  bool columns_first;  // or columns x rows x products
  uint16_t dealt;      // clusters that run at a time
  int narrow_col;      // the column of tiles with kNarrow columns or less, or -1
  uint32_t products;   // all partial results of all products
  uint32_t k_each, k_extra;   // blocks of K of every piece; so many of the first have one more
  Divisor splits;             // partial results in memory
  uint32_t narrow_stride;     // clusters that have units of narrow_col if it is not among `tiles` and follows
                              // them, in one split of one product: see configs.h; or 0
  uint32_t rows;              // clusters of tiles along the engine's rows
  Divisor tiles;              // of one split of one product
  Divisor group_tiles;        // of a group of rows that are walked together
  Divisor in_group, in_last;  // rows of a group, and of the last one
};

struct Unit {
  int row, col;  // tile of this block
  int split, batch;
  int k_begin, k_blocks;  // in blocks of kTileK
};

// This block's place in its cluster, and its cluster's in the grid: fixed for the whole launch. Blocks of a
// row or a column of the cluster share loads: its peers, itself included. Or each has a slice of K, and no
// peers.
struct ClusterPlace {
  uint32_t size, row, col, slice;
  uint32_t rows, cols;
  uint32_t first_unit, unit_stride;

  __device__ explicit ClusterPlace(const TileSchedule& s) {
    size = 1u << s.cluster_shift;
    const uint32_t rank = size > 1 ? cluster_rank() : 0;
    rows = s.cluster_m;
    cols = s.cluster_n;
    slice = s.slices > 1 ? rank : 0;
    row = (rank - slice) & (rows - 1);
    col = (rank - slice) >> (rows >> 1);
    first_unit = s.one_wave ? 0 : blockIdx.x >> s.cluster_shift;
    if (size > 1 && first_unit < s.dealt) first_unit = dealt_unit(first_unit, s.dealt, size);
    unit_stride = s.one_wave ? s.units : gridDim.x >> s.cluster_shift;
  }

  // The unit that follows `index` here; none from s.units on.
  __device__ __forceinline__ uint32_t next(const TileSchedule& s, uint32_t index) const {
    if (s.narrow_stride == 0) return index + unit_stride;
    const uint32_t whole = s.tiles.divisor;
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
    const uint32_t piece = split + slice;  // one of them is 0
    unit.k_begin = static_cast<int>(piece * s.k_each + min(piece, s.k_extra));
    unit.k_blocks += piece < s.k_extra ? 1 : 0;
  }
  return unit;
}

// The only unit of a block where there is one wave.
__device__ __forceinline__ Unit only_unit(const TileSchedule& s) {
  const uint32_t x = blockIdx.x, y = blockIdx.y;
  return unit_of(s, s.columns_first ? y : x, s.columns_first ? x : y, blockIdx.z, 0);
}

__device__ __forceinline__ Unit unit_at(const TileSchedule& s, const ClusterPlace& place, uint32_t index) {
  const uint32_t product = s.tiles(index);
  const uint32_t tile = index - product * s.tiles.divisor;
  if (s.narrow_stride > 0 && product > 0)
    return unit_of(s, tile * s.cluster_m + place.row, s.narrow_col, 0, 0);
  const uint32_t group = s.group_tiles(tile);
  const uint32_t within = tile - group * s.group_tiles.divisor;
  const uint32_t first_row = group * s.in_group.divisor;
  const bool last = first_row + s.in_group.divisor > s.rows;
  const uint32_t col = last ? s.in_last(within) : s.in_group(within);
  const uint32_t row_in_group = within - col * (last ? s.in_last.divisor : s.in_group.divisor);
  return unit_of(s, (first_row + row_in_group) * s.cluster_m + place.row, col * s.cluster_n + place.col,
                 product, place.slice);
}

}  // namespace jaxgemm::cuda::sm90
