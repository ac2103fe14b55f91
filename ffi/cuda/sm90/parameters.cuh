// The parameters of one launch: a head that every kernel has, and parts that the traits of the kernel's tile
// ask for.
#pragma once

#include <cstdint>

#include "../chip.h"
#include "../device/tma.cuh"
#include "configs.h"
#include "output.h"
#include "planes/planes.h"
#include "schedule.cuh"

namespace jaxgemm::cuda::sm90 {

// An operand's coordinates in a batch of two levels. If a level is broadcast, the operand has extent 1 in
// this level and its coordinate stays 0.
struct BatchMap {
  Divisor inner;                               // batch = outer * inner.divisor + inner coordinate
  uint8_t x_outer, x_inner, y_outer, y_inner;  // factors of the coordinates: 0 where broadcast, else 1
};

// The parameters that the first load needs, in two cache lines: when a kernel starts, its parameters are not
// cached.
struct Head {
  TileSchedule schedule;
  BatchMap batch;
  int rows, cols;       // of x and of y
  uint8_t idle_stages;  // stages of the ring that stay empty: see cost.h
};
static_assert(sizeof(Head) <= 128);

// Maps of operands and of D. The maps begin at the third cache line, as a map is aligned to half a cache
// line.
struct Maps {
  CUtensorMap x, y, d;
};
// The map of C, which the copy engine loads.
struct AddendMap {
  CUtensorMap c;
};
// The maps of K-major operands for the last tile, if the last tile is cut and not the only tile.
struct EdgeMaps {
  CUtensorMap x_edge, y_edge;
};
struct ResultPart {
  Output out;
};

// An unaligned operand that is loaded in place: `count` lines of `length` elements, `pitch` elements apart.
// Lines that are 8 lines apart have the same misalignment, counted from multiples of `align`.
struct UnalignedLines {
  int64_t pitch;
  int length, count, align;
  // For tiles of every eighth row. A class is the rows first, first + 8, ... of x, for one `first` of 0 to 7.
  // The divisors are the rows of clusters of a class: the first schedule.rows % 8 classes have `longer`, one
  // more than the others.
  Divisor longer, shorter;
};
// The lines of y in tiles that realign, of x in tiles of every eighth row.
struct LinePart {
  UnalignedLines lines;
};

// Tiles of every eighth row have a map of x for the rows first, first + 8, ..., for each `first` of 0 to 7.
// The rows of D and C with the same `first` are a product of a batch; the first m % 8 products, which have
// one row more, have maps of their own.
struct EighthMaps {
  CUtensorMap x_from[8];
  CUtensorMap d_longer, c_longer;
};

// The map of the second weight of a gated product; the map of the first weight is x or y.
struct UpMap {
  CUtensorMap up;
};

// Groups of a grouped product. Each batch has `rows` tokens: the first sizes[0] are group 0's, the next
// sizes[1] group 1's, and so on for `count` groups. The `held` groups from *offset on have weights or, if the
// product sums over tokens, a result.
struct GroupTable {
  const int32_t *sizes, *offset;
  uint32_t count, stride;  // of sizes; from one batch's sizes to the next one's, 0: all batches share them
  uint32_t held, batches, rows;
  // For products that multiply tokens by weights: clusters along the weights' columns, the engine's rows of
  // tiles that are walked together, and steps of k.
  uint32_t columns, walk_height, k_blocks;
};
struct GroupPart {
  GroupTable groups;
};

// One product of two planes. A product of planes adds up several of them, one after the other. x and y are
// the distances of the two planes from the first plane of their operand, in elements along k.
struct PlaneProduct {
  int x, y;
  float scale;  // factor of the product's sums
};
struct PlanePart {
  PlaneProduct plane_products[kMostPlaneProducts];
  int plane_product_count;
  // For scaled planes: the bits of the largest magnitudes of x's and y's rows, from which the rows' scales
  // follow (planes/scales.cuh); else null.
  const uint32_t *x_largest, *y_largest;
  // If there is a guard, the kernel runs only if *guard is `runs_if`.
  const int32_t* guard;
  int32_t runs_if;
};

// All parts that a launch of one product may need. The host fills them in.
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

// A part, or nothing if a tile does not need the part.
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

// One product of a launch of many products.
struct ManyEntry {
  CUtensorMap x, y, d;
  Output out;
  int rows, cols;       // of x and of y
  uint32_t first_unit;  // where the product's units begin
  int k_blocks;
};

// The parameters of a launch of many products: as many products as fill a kernel's parameters.
constexpr int kManyEntries =
    static_cast<int>((kParameterBytes - sizeof(Head) - 64) / (sizeof(ManyEntry) + sizeof(uint32_t)));
struct ManyParameters : Head {
  uint32_t walk_height;
  // Where each entry's units end. The ends lie apart from the entries, as each lane of a warp reads some of
  // the ends.
  uint32_t units_end[kManyEntries];
  ManyEntry entries[kManyEntries];
};
static_assert(sizeof(ManyParameters) <= kParameterBytes);

}  // namespace jaxgemm::cuda::sm90
