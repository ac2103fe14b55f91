// Tiles of every eighth row of x, which is loaded where it lies although its rows are unaligned.
//
// A tile has rows first, first + 8, ... of x. They all have the same misalignment, counted from multiples of
// `align` elements (every_eighth_align() in ways.h), so a tensor map that begins at the multiple before row
// `first` addresses them. Steps of k begin there too, for x and y alike. What the first step loads of x
// before a row's first element is the end of another row. It meets lines of y before the first, which the
// copy engine fills with zeros; but infinity times zero is no zero, so consumers clear it. Behind a row's end
// the map ends.
//
// The rows of D with the same `first` are a product of a batch of eight, with 8 times D's pitch.
#pragma once

#include "../../device/shift.cuh"
#include "../../device/tma.cuh"
#include "../engine.cuh"

namespace jaxgemm::cuda::sm90 {

// How many elements after a multiple of lines.align lines first, first + 8, ... begin.
__device__ __forceinline__ int misalignment(const UnalignedLines& lines, int first) {
  return first * static_cast<int>(lines.pitch) & (lines.align - 1);
}

// How many of `rows` rows are first, first + 8, ...
__device__ __forceinline__ int every_eighth_of(int rows, int first) { return (rows - first + 7) / 8; }

// Turns a unit of the walk into one whose row counts tiles of one `first`, and whose batch is that `first`.
// Rows of tiles with the same `first` follow each other in the walk: what they load of y begins at the same
// k, so that L2 sends it once to several of them.
template <typename E>
__device__ __forceinline__ Unit to_tile_rows(const typename E::Parameters& p, Unit unit) {
  if constexpr (E::kEveryEighth) {
    const uint32_t in_cluster = p.schedule.cluster_m - 1u, shift = p.schedule.cluster_m >> 1;
    const uint32_t row = static_cast<uint32_t>(unit.row), cluster = row >> shift;
    const uint32_t longer = p.schedule.rows % 8, of_longer = longer * p.lines.longer.divisor;
    const bool is_shorter = cluster >= of_longer;
    const Divisor& each = is_shorter ? p.lines.shorter : p.lines.longer;
    const uint32_t rest = cluster - (is_shorter ? of_longer : 0), first = each(rest);
    unit.batch = static_cast<int>(first + (is_shorter ? longer : 0));
    unit.row = static_cast<int>((rest - first * each.divisor << shift) + (row & in_cluster));
    unit.k_blocks = (p.lines.length + misalignment(p.lines, unit.batch) + kStepK16 - 1) / kStepK16;
  }
  return unit;
}

// Loads x's part of a stage, with TmaOperand's interface.
template <int kLines, bool kMulticast, int kStageBytes>
class EveryEighth {
 public:
  __device__ EveryEighth(const CUtensorMap (&maps)[8], uint32_t shared, uint32_t peers, uint32_t share,
                         uint32_t peer_mask)
      : maps_(maps),
        share_(kMulticast ? static_cast<int>(kLines / peers * share) : 0),
        to_(shared + share_ * 128),
        mask_(static_cast<uint16_t>(peer_mask)) {}

  // Moves to the tile that begins at row first + 8 `line`. `misalignment`: of these rows.
  __device__ uint32_t start(int line, int first, int misalignment) {
    map_ = maps_ + first;
    line_ = line + share_;
    misalignment_ = misalignment;
    return kLines * 128;
  }

  __device__ void load(int stage, uint32_t barrier, int k) const {
    load_box<kMulticast>(to_ + stage * kStageBytes, map_, barrier, misalignment_ + k, line_, 0, 0, mask_);
  }

  __device__ __forceinline__ void pin() { asm volatile("" : "+r"(to_), "+r"(line_), "+r"(misalignment_)); }

 private:
  const CUtensorMap *maps_, *map_ = nullptr;
  int share_;
  uint32_t to_;
  uint16_t mask_;
  int line_ = 0, misalignment_ = 0;
};

// Clears what lies before the rows' first elements in a unit's first stage, for consumer warpgroup
// `warpgroup`, whose rows begin at `row` of the tile. Written for little code rather than speed, as it runs
// once a unit.
template <typename E>
__device__ __forceinline__ void clear_before_rows(const typename E::Parameters& p,
                                                  const SharedLayout<E>& shared, int stage, int row,
                                                  int warpgroup, int first) {
  const int before = misalignment(p.lines, first), line = static_cast<int>(threadIdx.x % 128) / 2;
  if (before == 0) return;
  const uint32_t x = shared.x + stage * E::kBytesX + (row + line) * 128;
#pragma unroll 1
  for (int vector = threadIdx.x % 2; 8 * vector < before; vector += 2) {
#pragma unroll
    for (int i = 0; i < E::kBlocksM; ++i) {
      const uint32_t at = x + i * 64 * 128 + 16 * (vector ^ line % 8);
      store_shared(at, keep_from(load_shared(at), before - 8 * vector));
    }
  }
  fence_shared_to_async();
  sync<NamedBarrier::kOwn>(warpgroup, 128);
}

}  // namespace jaxgemm::cuda::sm90
