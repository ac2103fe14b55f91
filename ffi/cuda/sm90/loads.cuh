// How each kind of operand is loaded: a tile's part of a stage, by the copy engine.
#pragma once

#include "../device/mbarrier.cuh"
#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

// Loads one operand's part of a stage by the copy engine, which swizzles it. Blocks of a cluster that need
// the same part load a share of it each and multicast it (kMulticast). kLines: rows of the operand;
// kStageBytes: the distance of stages, which may be more than these lines take.
//
// The copy engine takes longer for lines outside of the operand than for others. So at the operand's edge it
// is asked only for periods of the swizzle (K-major) or blocks (MN-major) that have a row that exists. The
// other rows of the stage hold what was there before, and become results that nobody stores.
// kStepK: elements of k of a stage, whose line kLineBytes are. kHinted: L2 is told how to treat the lines.
template <Major kMajor, int kLines, int kBlock, bool kMulticast, int kStageBytes, int kStepK,
          bool kHinted = false>
class TmaOperand {
 public:
  // The operand has `rows` rows. `edge` is the map for a last tile that is cut, unless that is the only tile.
  // `peers` blocks, 2 or 4 (1 without kMulticast), share the load; this one is number `share` of them.
  __device__ TmaOperand(const CUtensorMap& map, const CUtensorMap& edge, uint32_t shared, int rows,
                        uint32_t peers, uint32_t share, uint32_t peer_mask)
      : whole_(&map),
        edge_(&edge),
        shared_(shared),
        rows_(rows),
        shift_(kMulticast ? static_cast<int>(peers >> 1) : 0),
        share_(kMulticast ? static_cast<int>(share) : 0),
        mask_(static_cast<uint16_t>(peer_mask)) {}

  // Moves to the tile that begins at row `line`. Returns the bytes that a stage gets, from all blocks
  // together.
  __device__ uint32_t start(int line, int batch0, int batch1, L2Policy policy = L2Policy::kNormal) {
    if constexpr (kHinted) policy_ = policy;
    batch0_ = batch0;
    batch1_ = batch1;
    const bool whole = line + kLines <= rows_;
    const uint32_t left = whole ? kLines : max(rows_ - line, 0);
    if constexpr (kMajor == Major::kK) {
      const uint32_t each = (left + (8u << shift_) - 1) >> (3 + shift_) << 3;  // lines of a share
      map_ = whole || line == 0 ? whole_ : edge_;
      copies_ = each > 0;
      outer_ = line + share_ * each;
      to_ = shared_ + share_ * each * 128;
      return (each << shift_) * 128;
    } else {
      map_ = whole_;
      copies_ = (left + kBlock - 1) / kBlock;
      inner_ = line;
      outer_ = share_ * (kStepK >> shift_);
      to_ = shared_ + outer_ * (kLineBytes / kStepK * kBlock);
      return copies_ * (kBlock * 128);
    }
  }

  // Moves to another operand, of `rows` rows, and its tile that begins at row `line`.
  __device__ uint32_t start_in(const CUtensorMap& map, int rows, int line) {
    whole_ = edge_ = &map;
    rows_ = rows;
    return start(line, 0, 0);
  }

  // Loads the tile's elements from `k` on into a stage.
  __device__ void load(int stage, uint32_t barrier, int k) const {
    const uint32_t to = to_ + stage * kStageBytes;
    if constexpr (kMajor == Major::kK) {
      if (copies_ > 0) copy(to, barrier, k, outer_);
    } else {
#pragma unroll
      for (int block = 0; block < kLines / kBlock; ++block) {
        if (block < copies_) copy(to + block * (kBlock * 128), barrier, inner_ + kBlock * block, k + outer_);
      }
    }
  }

  // Makes the compiler compute these here rather than at the first load.
  __device__ __forceinline__ void pin() {
    asm volatile("" : "+r"(to_), "+r"(inner_), "+r"(outer_), "+r"(copies_), "+r"(batch0_), "+r"(batch1_));
  }

 private:
  __device__ void copy(uint32_t destination, uint32_t barrier, int inner, int outer) const {
    if constexpr (kHinted)
      tma_load(destination, map_, barrier, inner, outer, batch1_, batch0_, policy_);
    else
      load_box<kMulticast>(destination, map_, barrier, inner, outer, batch1_, batch0_, mask_);
  }
  static_assert(!kHinted || !kMulticast);

  const CUtensorMap *whole_, *edge_, *map_ = nullptr;
  uint32_t shared_, to_ = 0;
  int rows_, shift_, share_;
  uint16_t mask_;
  int copies_ = 0, inner_ = 0, outer_ = 0, batch0_ = 0, batch1_ = 0;
  L2Policy policy_ = L2Policy::kNormal;
};

// Loads K-major rows in boxes of up to 64, and only boxes that hold some of the tile's: tokens of one group,
// or rows of one of many products.
template <int kLines, bool kMulticast, int kStageBytes>
class TokenOperand {
 public:
  __device__ TokenOperand(const CUtensorMap& map, uint32_t shared, uint32_t peers, uint32_t share,
                          uint32_t peer_mask)
      : map_(&map),
        first_(kMulticast ? static_cast<int>(kLines / peers * share) : 0),
        box_(min(64, kMulticast ? static_cast<int>(kLines / peers) : kLines)),
        to_(shared + first_ * 128),
        mask_(static_cast<uint16_t>(peer_mask)) {}

  // Moves to the tile that begins at token `line`, of a group that has `left` more. Returns the bytes that a
  // stage gets, from all blocks together.
  __device__ uint32_t start(int line, int left, int batch) {
    left = min(left, kLines);
    line_ = line + first_;
    batch_ = batch;
    copies_ = (left - first_ + box_ - 1) / box_;
    return (left + box_ - 1) / box_ * box_ * 128;
  }

  // Moves to another operand, of `rows` rows, and its tile that begins at row `line`.
  __device__ uint32_t start_in(const CUtensorMap& map, int rows, int line) {
    map_ = &map;
    return start(line, rows - line, 0);
  }

  __device__ void load(int stage, uint32_t barrier, int k) const {
    const uint32_t to = to_ + stage * kStageBytes;
#pragma unroll
    for (int i = 0; i < (kMulticast ? kLines / 2 + 63 : kLines + 63) / 64; ++i) {
      if (i < copies_)
        load_box<kMulticast>(to + i * (64 * 128), map_, barrier, k, line_ + 64 * i, 0, batch_, mask_);
    }
  }

 private:
  const CUtensorMap* map_;
  int first_, box_;
  uint32_t to_;
  uint16_t mask_;
  int line_ = 0, batch_ = 0, copies_ = 0;
};

// Stands for the second weight where the product is not gated.
struct NoOperand {
  __device__ uint32_t start(int, int, int, L2Policy = L2Policy::kNormal) { return 0; }
  __device__ void load(int, uint32_t, int) const {}
};

}  // namespace jaxgemm::cuda::sm90
