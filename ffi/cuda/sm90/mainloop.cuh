// The two sides of the ring of stages: one warp that issues copies, and warpgroups that multiply. A stage
// holds kTileK elements of k of a tile's x and y.
#pragma once

#include <type_traits>

#include "../device/mbarrier.cuh"
#include "engine.cuh"
#include "unaligned/every_eighth.cuh"

namespace jaxgemm::cuda::sm90 {

// Loads one operand's part of a stage by the copy engine, which swizzles it. Blocks of a cluster that need
// the same part load a slice of it each and multicast it (kMulticast). kLines: rows of the operand;
// kStageBytes: the distance of stages, which may be more than these lines take.
//
// The copy engine takes longer for lines outside of the operand than for others. So at the operand's edge it
// is asked only for periods of the swizzle (K-major) or blocks (MN-major) that have a row that exists. The
// other rows of the stage hold what was there before, and become results that nobody stores.
// kHinted: L2 is told how to treat the lines.
template <Major kMajor, int kLines, int kBlock, bool kMulticast, int kStageBytes, bool kHinted = false>
class TmaOperand {
 public:
  // The operand has `rows` rows. `edge` is the map for a last tile that is cut, unless that is the only tile.
  // `peers` blocks, 2 or 4 (1 without kMulticast), share the load; this one is number `slice` of them.
  __device__ TmaOperand(const CUtensorMap& map, const CUtensorMap& edge, uint32_t shared, int rows,
                        uint32_t peers, uint32_t slice, uint32_t peer_mask)
      : whole_(&map),
        edge_(&edge),
        shared_(shared),
        rows_(rows),
        shift_(kMulticast ? static_cast<int>(peers >> 1) : 0),
        slice_(kMulticast ? static_cast<int>(slice) : 0),
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
      const uint32_t each = (left + (8u << shift_) - 1) >> (3 + shift_) << 3;  // lines of a slice
      map_ = whole || line == 0 ? whole_ : edge_;
      copies_ = each > 0;
      outer_ = line + slice_ * each;
      to_ = shared_ + slice_ * each * 128;
      return (each << shift_) * 128;
    } else {
      map_ = whole_;
      copies_ = (left + kBlock - 1) / kBlock;
      inner_ = line;
      outer_ = slice_ * (kTileK >> shift_);
      to_ = shared_ + outer_ * 2 * kBlock;
      return copies_ * (kBlock * 128);
    }
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
  int rows_, shift_, slice_;
  uint16_t mask_;
  int copies_ = 0, inner_ = 0, outer_ = 0, batch0_ = 0, batch1_ = 0;
  L2Policy policy_ = L2Policy::kNormal;
};

// Loads tokens of one group, which are K-major, in boxes of so many tokens that a group's last tile need not
// load all of the next group's that would fill it. Of many products it loads the rows of one.
template <int kLines, bool kMulticast, int kStageBytes>
class TokenOperand {
 public:
  __device__ TokenOperand(const CUtensorMap& map, uint32_t shared, uint32_t peers, uint32_t slice,
                          uint32_t peer_mask)
      : map_(&map),
        first_(kMulticast ? static_cast<int>(kLines / peers * slice) : 0),
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

// Where a unit's loads begin. For tiles of every eighth row, x_batch0 is the first of their rows (0 to 7) and
// x_batch1 its misalignment.
struct LoadStart {
  int row, col, k, k_blocks;
  int x_batch0, x_batch1, y_batch0, y_batch1;
};

template <typename E>
__device__ __forceinline__ LoadStart load_start(const Params& p, const Unit& of_all) {
  const Unit unit = to_tile_rows<E>(p, of_all);
  LoadStart start{};
  start.row = unit.row * E::kResultM;
  start.col = unit.col * E::kResultN;
  start.k = unit.k_begin * kTileK;
  start.k_blocks = unit.k_blocks;
  if constexpr (E::kEveryEighth) {
    start.x_batch0 = unit.batch;
    start.x_batch1 = misalignment(p.lines, unit.batch);
    start.k = -start.x_batch1;
    return start;
  }
  if (p.schedule.products > 1) {
    const int batch0 = static_cast<int>(p.batch.inner(unit.batch));
    const int batch1 = unit.batch - batch0 * static_cast<int>(p.batch.inner.divisor);
    start.x_batch0 = batch0 * p.batch.x_outer;
    start.x_batch1 = batch1 * p.batch.x_inner;
    start.y_batch0 = batch0 * p.batch.y_outer;
    start.y_batch1 = batch1 * p.batch.y_inner;
  }
  return start;
}

// How a block comes to its units and whose loads it shares. Each has code of its own: when a kernel starts
// its instructions are not cached, so the code that runs should lie together.
enum class Walk {
  kOneWave,   // one unit, from the grid's coordinates
  kBlocks,    // several units, no shared loads
  kShareX,    // blocks of the cluster share x
  kShareY,    // or y
  kShareBoth  // or both
};

// The parts of a stage that the loading warp has loaded: of x, of y and of a gated product's second weight.
template <typename E, Walk kWalk>
struct LoadedOperands {
  static constexpr bool kShareX = kWalk == Walk::kShareX || kWalk == Walk::kShareBoth;
  static constexpr bool kShareY = kWalk == Walk::kShareY || kWalk == Walk::kShareBoth;
  using X =
      std::conditional_t<E::kGrouped == Grouped::kRows, TokenOperand<E::kLoadedX, kShareX, E::kBytesX>,
                         std::conditional_t<E::kEveryEighth, EveryEighth<E::kLoadedX, kShareX, E::kBytesX>,
                                            TmaOperand<E::kX, E::kLoadedX, E::kBlockX, kShareX, E::kBytesX,
                                                       E::kGrouped == Grouped::kColumns>>>;
  using Y = std::conditional_t<
      E::kGrouped == Grouped::kColumns, TokenOperand<E::kLoadedY, kShareY, E::kBytesY>,
      TmaOperand<E::kY, E::kLoadedY, E::kBlockY, kShareY, E::kBytesY, E::kGrouped == Grouped::kRows>>;
  using Parameters = typename E::Parameters;

  static __device__ __forceinline__ X x(const Parameters& p, const SharedLayout<E>& shared,
                                        const ClusterPlace& place, uint32_t mask) {
    if constexpr (E::kGrouped == Grouped::kRows)
      return X(p.x, shared.x, place.cols, place.col, mask);
    else if constexpr (E::kEveryEighth)
      return X(p.x_from, shared.x, place.cols, place.col, mask);
    else
      return X(p.x, p.x_edge, shared.x, p.rows, place.cols, place.col, mask);
  }
  static __device__ __forceinline__ Y y(const Parameters& p, const SharedLayout<E>& shared,
                                        const ClusterPlace& place, uint32_t mask) {
    if constexpr (E::kGrouped == Grouped::kColumns)
      return Y(p.y, shared.y, place.rows, place.row, mask);
    else
      return Y(p.y, p.y_edge, shared.y, p.cols, place.rows, place.row, mask);
  }
  static __device__ __forceinline__ auto up(const Parameters& p, const SharedLayout<E>& shared,
                                            const ClusterPlace& place, uint32_t x_mask, uint32_t y_mask) {
    if constexpr (E::kGated == Gated::kRows)
      return X(p.up, p.up, shared.x + E::kBytesX / 2, p.rows, place.cols, place.col, x_mask);
    else if constexpr (E::kGated == Gated::kColumns)
      return Y(p.up, p.up, shared.y + E::kBytesY / 2, p.cols, place.rows, place.row, y_mask);
    else
      return NoOperand{};
  }
};

// The stages that the loading warp fills. `ring_` is the next one. Where `idle_stages` are to stay empty, so
// many of the stages that come after it must have been read, too: `ahead_` is the last of them.
template <typename E>
class RingFill {
 public:
  __device__ __forceinline__ RingFill(int idle_stages, const SharedLayout<E>& shared)
      : shared_(shared), elected_(elect_one()), idles_(idle_stages > 0) {
    ahead_.skip(idle_stages);
  }

  // Fills `left` > 0 stages from `k` on, with `bytes` each.
  template <typename X, typename Y, typename Up>
  __device__ __forceinline__ void fill(const X& x, const Y& y, const Up& up, uint32_t bytes, int k,
                                       int left) {
    do {
      const uint32_t full = shared_.full + 8 * ring_.stage;
      mbarrier_wait(shared_.empty + 8 * ring_.stage, ring_.parity ^ 1);
      if (idles_) {
        mbarrier_wait(shared_.empty + 8 * ahead_.stage, ahead_.parity ^ 1);
        ahead_.next();
      }
      if (elected_) {
        mbarrier_arrive_expect(full, bytes);
        x.load(ring_.stage, full, k);
        y.load(ring_.stage, full, k);
        up.load(ring_.stage, full, k);
      }
      k += kTileK;
      ring_.next();
    } while (--left > 0);
  }

 private:
  const SharedLayout<E>& shared_;
  const bool elected_, idles_;
  RingPosition<E::kStages> ring_, ahead_;
};

// The loading warp's part of a block. Where the first load goes is computed before the barriers are `ready`.
// All lanes compute it, so that the results lie in uniform registers, where the copy instruction needs them.
template <typename E, Walk kWalk, typename F>
__device__ __forceinline__ void produce(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                        F&& ready) {
  using Operands = LoadedOperands<E, kWalk>;
  const ClusterPlace place = own_place(p.schedule);
  const uint32_t x_mask = place.row_mask(), y_mask = place.column_mask();
  auto x = Operands::x(p, shared, place, x_mask);
  auto y = Operands::y(p, shared, place, y_mask);
  auto up = Operands::up(p, shared, place, x_mask, y_mask);

  uint32_t index = place.first_unit, bytes = 0;
  int k = 0, left = 0;
  const auto start = [&](const Unit& unit) {
    const LoadStart at = load_start<E>(p, unit);
    bytes = x.start(at.row, at.x_batch0, at.x_batch1) + y.start(at.col, at.y_batch0, at.y_batch1) +
            up.start(E::kGated == Gated::kRows ? at.row : at.col, 0, 0);
    k = at.k;
    left = at.k_blocks;
  };
  start(kWalk == Walk::kOneWave ? only_unit(p.schedule) : unit_at(p.schedule, place, index));
  x.pin();
  y.pin();
  asm volatile("" : "+r"(bytes), "+r"(k), "+r"(left));
  ready();
  RingFill<E> ring(p.idle_stages, shared);
  for (;;) {
    ring.fill(x, y, up, bytes, k, left);
    if constexpr (kWalk == Walk::kOneWave) return;
    index = place.next(p.schedule, index);
    if (index >= p.schedule.units) return;
    start(unit_at(p.schedule, place, index));
  }
}

// Tells the producers of all blocks that wrote a stage that this warpgroup has read it. A thread for each
// block holds the address of that block's barrier. Nothing may delay the next stage's products, so this is
// one predicated instruction, which also runs where there is no stage to release yet.
template <typename E>
class StageRelease {
 public:
  __device__ StageRelease(const SharedLayout<E>& shared, const ClusterPlace& place) {
    const uint32_t lane = threadIdx.x % 128;
    arrives_ = lane < place.peers();
    first_ = map_to_rank(shared.empty, place.peer(lane));
    asm volatile("" : "+r"(arrives_), "+r"(first_));  // computed here, not at every stage
  }
  // The stage that the next call releases.
  __device__ __forceinline__ void hold(int stage) {
    held_ = arrives_;
    barrier_ = first_ + 8 * stage;
  }
  __device__ __forceinline__ void operator()() const { mbarrier_arrive_remote_if(held_, barrier_); }

 private:
  uint32_t first_, arrives_;
  uint32_t barrier_ = 0, held_ = 0;
};

// Releases the next `count` stages, of which this warpgroup has nothing to multiply. Its first warp does that
// alone: no product keeps the others in step with it, and one that still writes results of the tile before
// would find barriers that have moved on by two phases, which look as if they had not moved.
template <typename E>
__device__ __forceinline__ void pass_stages(const SharedLayout<E>& shared, const ClusterPlace& place,
                                            RingPosition<E::kStages>& ring, int group, int count) {
  StageRelease<E> release(shared, place);
  for (int left = threadIdx.x % 128 < 32 ? count : 0; left > 0; --left) {
    mbarrier_wait(shared.full + 8 * ring.stage, ring.parity);
    release.hold(ring.stage);
    release();
    ring.next();
  }
  if (threadIdx.x % 128 >= 32) ring.skip(count);
  named_barrier_sync(4 + group, 128);
}

// acc = rows [row, row + kGroupRows) of x, or the first kBlocks blocks of 64 of them, times the first
// kColumns rows of y, over the next k_blocks >= 1 stages. One stage's products are in flight while the next
// stage's are issued, and only then is the stage released. Three hooks: `arrived` is called with the number
// of each stage and the stage when that has arrived, `started` when the products of the first have been
// issued, and `issued` when all products have been issued but not yet waited for.
template <typename E, int kColumns, int kBlocks = E::kBlocksM, typename Arrived, typename Started,
          typename Issued>
__device__ __forceinline__ void multiply(Accumulators<E>& acc, const SharedLayout<E>& shared,
                                         const ClusterPlace& place, RingPosition<E::kStages>& ring, int row,
                                         int k_blocks, Arrived&& arrived, Started&& started,
                                         Issued&& issued) {
  using X = OperandTile<E::kX>;
  using Y = OperandTile<E::kY, E::kY == Major::kMN ? E::kBlockY : 64>;
  using Mma = Wgmma<typename E::In, kColumns, E::kX, E::kY>;
  const uint64_t x_base = X::descriptor(shared.x) + row / 64 * X::kRows64;
  const uint64_t y_base = Y::descriptor(shared.y);
  StageRelease<E> release(shared, place);

  // The first stage stays in the loop: with code of its own before it, the compiler finds no registers to
  // keep the products of large tiles in flight, and makes each wait for the one before.
  uint32_t accumulate = 0;
  for (int block = 0; block < k_blocks; ++block) {
    mbarrier_wait(shared.full + 8 * ring.stage, ring.parity);
    const int stage = ring.stage;
    ring.next();
    arrived(block, stage);
    const uint64_t x = advance(x_base, stage * (E::kBytesX / 16));
    const uint64_t y = advance(y_base, stage * (E::kBytesY / 16));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        Mma::mma(reinterpret_cast<float (&)[kColumns / 2]>(acc.value[i]),
                 advance(x, i * X::kRows64 + step * X::kStepK16), advance(y, step * Y::kStepK16), accumulate);
      }
      accumulate = 1;
    }
    wgmma_commit();
    if (block == 0) started();
    wgmma_wait<1>();
    release();
    release.hold(stage);
  }
  issued();
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) wgmma_pin(acc.value[i]);
  release();
}

}  // namespace jaxgemm::cuda::sm90
