// The parameters of one launch: a head that every kernel has, and parts that its tile's traits ask for.
#pragma once

#include <cstdint>

#include "../chip.h"
#include "../device/tma.cuh"
#include "configs.h"
#include "output.h"
#include "planes/planes.h"
#include "schedule.cuh"

namespace jaxgemm::cuda::sm90 {

// An operand's coordinates in a batch of two levels. Where a level is broadcast, the operand has extent 1 and
// the coordinate stays 0.
struct BatchMap {
  Divisor inner;                               // batch = outer * inner.divisor + inner coordinate
  uint8_t x_outer, x_inner, y_outer, y_inner;  // factors of the coordinates: 0 where broadcast, else 1
};

// What the first load needs, in two cache lines: when a kernel starts, its parameters are not cached.
struct Head {
  TileSchedule schedule;
  BatchMap batch;
  int rows, cols;       // of x and of y
  uint8_t idle_stages;  // stages of the ring that are left empty: see cost.h
};
static_assert(sizeof(Head) <= 128);

// Maps of operands and of D. They begin at the third cache line, as maps are aligned to half of one.
struct Maps {
  CUtensorMap x, y, d;
};
// Of C, which the copy engine brings.
struct AddendMap {
  CUtensorMap c;
};
// Of a K-major operand: the last tile, where it is cut and not the only one.
struct EdgeMaps {
  CUtensorMap x_edge, y_edge;
};
struct ResultPart {
  Output out;
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
// Of y in tiles that realign, of x in tiles of every eighth row.
struct LinePart {
  UnalignedLines lines;
};

// Tiles of every eighth row have a map of x for the rows first, first + 8, ..., for each `first` of 0 to 7.
// The rows of D and C with the same `first` are a product of a batch; for the first m % 8 products, which
// have one row more, there are maps of their own.
struct EighthMaps {
  CUtensorMap x_from[8];
  CUtensorMap d_longer, c_longer;
};

// Of the second weight of a gated product; x or y is the first one's.
struct UpMap {
  CUtensorMap up;
};

// Groups of a grouped product. Each batch has `rows` tokens: the first sizes[0] are group 0's, the next
// sizes[1] group 1's, and so on for `count` groups. The `held` groups from *offset on have weights or, where
// tokens are summed over, a result.
struct GroupTable {
  const int32_t *sizes, *offset;
  uint32_t count, stride;  // of sizes; from one batch's to the next one's, 0: all batches have the same
  uint32_t held, batches, rows;
  // Of products that multiply tokens by weights: clusters along the weights' columns, the engine's rows of
  // tiles that are walked together, and steps of k.
  uint32_t columns, walk_height, k_blocks;
};
struct GroupPart {
  GroupTable groups;
};

// Of a product of planes: the products of two planes that are added up, one after the other. x and y are how
// far the planes lie from the first along k.
struct PlaneProduct {
  int x, y;
  float scale;  // that its sums are multiplied by
};
struct PlanePart {
  PlaneProduct plane_products[kMostPlaneProducts];
  int plane_product_count;
  // Of scaled planes: the bits of the largest magnitudes of x's and y's rows, from which scales follow
  // (planes/scales.cuh); else null.
  const uint32_t *x_largest, *y_largest;
  // Where there is a guard the kernel runs only if it is `runs_if`.
  const int32_t* guard;
  int32_t runs_if;
};

// All parts that a launch of one product may need: what the host fills in.
struct AllParts : Head,
                  Maps,
                  AddendMap,
                  EdgeMaps,
                  ResultPart,
                  LinePart,
                  EighthMaps,
                  UpMap,
                  GroupPart,
                  PlanePart {};

// A part, or nothing where a tile does not need it.
template <bool kNeeded, typename Part>
struct PartIf : Part {
  explicit PartIf(const Part& part) : Part(part) {}
};
template <typename Part>
struct PartIf<false, Part> {
  explicit PartIf(const Part&) {}
};

template <typename... Part>
struct Parts : Part... {
  Parts(const AllParts& all) : Part(all)... {}  // NOLINT: a launch turns what the host filled in into these
};

// The parameters of a tile's kernel.
template <TileConfig kTile>
using Parameters = Parts<PartIf<true, Head>, PartIf<true, Maps>, PartIf<kTile.has_addend(), AddendMap>,
                         PartIf<true, EdgeMaps>, PartIf<true, ResultPart>,
                         PartIf<kTile.realigns || kTile.every_eighth, LinePart>,
                         PartIf<kTile.every_eighth, EighthMaps>, PartIf<kTile.gated != Axis::kNone, UpMap>,
                         PartIf<kTile.tokens != Axis::kNone, GroupPart>, PartIf<kTile.planes, PlanePart>>;

// One of many products.
struct ManyEntry {
  CUtensorMap x, y, d;
  Output out;
  int rows, cols;       // of x and of y
  uint32_t first_unit;  // where its units begin
  int k_blocks;
};

// Many products. Those that fill a kernel's parameters make one launch.
constexpr int kManyEntries =
    static_cast<int>((kParameterBytes - sizeof(Head) - 64) / (sizeof(ManyEntry) + sizeof(uint32_t)));
struct ManyParameters : Head {
  uint32_t walk_height;
  // Where each entry's units end. Apart from the entries, as each lane of a warp reads some of them.
  uint32_t units_end[kManyEntries];
  ManyEntry entries[kManyEntries];
};
static_assert(sizeof(ManyParameters) <= kParameterBytes);

}  // namespace jaxgemm::cuda::sm90
