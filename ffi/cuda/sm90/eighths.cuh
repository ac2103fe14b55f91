// Tiles of every eighth row of x: it is loaded where it lies, although its rows begin anywhere in memory.
//
// The copy engine wants rows a multiple of 16 bytes apart, and boxes that begin at one. Rows eight apart are,
// so a tile has those, and its steps of k, of x and of y, begin at such a multiple before its rows do, or at
// a larger part of a line of L2 where that is one for all of them. What lies there, in x, is the end of the
// rows before. It meets zeros of y, but may be infinite: consumers clear it. Where the rows end, their map
// does.
//
// Results of every eighth row are a product of their own, with 8 times the pitch, one of a batch of eight.
#pragma once

#include "../device/shift.cuh"
#include "../device/tma.cuh"
#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

// How many elements after a multiple of lines.align the lines begin that are every eighth from `first` on.
__device__ __forceinline__ int late_of(const Lines& lines, int first) {
  return first * static_cast<int>(lines.pitch) & (lines.align - 1);
}

// Of so many rows, every eighth from `first` on.
__device__ __forceinline__ int every_eighth(int rows, int first) { return (rows - first + 7) / 8; }

// A unit in the rows that its tiles have; `batch` is the first of them. Those of one follow each other, as
// what such tiles load of y begins alike, so that L2 sends it once to several of them.
template <typename E>
__device__ __forceinline__ Unit unit_of_rows(const Params& p, Unit unit) {
  if constexpr (E::kEighths) {
    const uint32_t in_cluster = p.schedule.cluster_m - 1u, shift = p.schedule.cluster_m >> 1;
    const uint32_t row = static_cast<uint32_t>(unit.row), cluster = row >> shift;
    const uint32_t longer = p.schedule.rows % 8, of_longer = longer * p.lines.more.divisor;
    const bool others = cluster >= of_longer;
    const Divisor& each = others ? p.lines.others : p.lines.more;
    const uint32_t rest = cluster - (others ? of_longer : 0), first = each(rest);
    unit.batch = static_cast<int>(first + (others ? longer : 0));
    unit.row = static_cast<int>((rest - first * each.divisor << shift) + (row & in_cluster));
    unit.k_blocks = (p.lines.length + late_of(p.lines, unit.batch) + kTileK - 1) / kTileK;
  }
  return unit;
}

// Where x's tile comes from, as of TmaOperand. Rows that are every eighth from each of the first eight on
// have a map of their own, which ends where they do.
template <int kLines, bool kMulticast, int kStageBytes>
class EveryEighth {
 public:
  __device__ EveryEighth(const CUtensorMap (&maps)[8], uint32_t shared, uint32_t peers, uint32_t slice,
                         uint32_t peer_mask)
      : maps_(maps),
        slice_(kMulticast ? static_cast<int>(kLines / peers * slice) : 0),
        to_(shared + slice_ * 128),
        mask_(static_cast<uint16_t>(peer_mask)) {}

  // Goes to the tile that begins at `line` of every eighth from `first` on, which begin `late` elements after
  // where their map does.
  __device__ uint32_t start(int line, int first, int late) {
    map_ = maps_ + first;
    line_ = line + slice_;
    late_ = late;
    return kLines * 128;
  }

  __device__ void load(int stage, uint32_t barrier, int k) const {
    load_box<kMulticast>(to_ + stage * kStageBytes, map_, barrier, late_ + k, line_, 0, 0, mask_);
  }

  __device__ __forceinline__ void pin() { asm volatile("" : "+r"(to_), "+r"(line_), "+r"(late_)); }

 private:
  const CUtensorMap *maps_, *map_ = nullptr;
  int slice_;
  uint32_t to_;
  uint16_t mask_;
  int line_ = 0, late_ = 0;
};

// Clears what lies before the rows in a unit's first stage, in the part of consumer `group`, whose rows begin
// at `row`. Little code, as it is cold.
template <typename E>
__device__ __forceinline__ void clear_before(const Params& p, const SharedLayout<E>& shared, int stage,
                                             int row, int group, int first) {
  const int late = late_of(p.lines, first), line = static_cast<int>(threadIdx.x % 128) / 2;
  if (late == 0) return;
  const uint32_t x = shared.x + stage * E::kBytesX + (row + line) * 128;
#pragma unroll 1
  for (int vector = threadIdx.x % 2; 8 * vector < late; vector += 2) {
#pragma unroll
    for (int i = 0; i < E::kBlocksM; ++i) {
      const uint32_t at = x + i * 64 * 128 + 16 * (vector ^ line % 8);
      store_shared(at, keep_from(load_shared(at), late - 8 * vector));
    }
  }
  fence_shared_to_async();
  named_barrier_sync(4 + group, 128);
}

}  // namespace jaxgemm::cuda::sm90
