// The two sides of the ring of stages: one warp that issues copies, and warpgroups that multiply.
#pragma once

#include <type_traits>

#include "../device/mbarrier.cuh"
#include "eighths.cuh"
#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

// Where one operand's tile comes from: the copy engine, straight into the swizzled stage. Blocks of a cluster
// that need the same tile load a slice each and multicast it, if the compiler is told so (kMulticast). Stages
// may hold more than these lines.
//
// Lines that do not exist take the copy engine longer than others. So of a tile at the operand's edge it is
// asked for whole periods of the swizzle, or whole blocks, that there is something of. What lies in a stage
// in the others' place becomes results that nobody stores.
template <Major kMajor, int kLines, int kBlock, bool kMulticast, int kStageBytes>
class TmaOperand {
 public:
  // Of `rows` rows; `edge` is the map of a last tile that is cut and not the first. `peers` blocks, 2 or 4 (1
  // without kMulticast), share the tile; this one is number `slice` of them.
  __device__ TmaOperand(const CUtensorMap& map, const CUtensorMap& edge, uint32_t shared, int rows,
                        uint32_t peers, uint32_t slice, uint32_t peer_mask)
      : whole_(&map),
        edge_(&edge),
        shared_(shared),
        rows_(rows),
        shift_(kMulticast ? static_cast<int>(peers >> 1) : 0),
        slice_(kMulticast ? static_cast<int>(slice) : 0),
        mask_(static_cast<uint16_t>(peer_mask)) {}

  // Goes to the tile that begins at `line`: the bytes that a stage gets of it, from all blocks.
  __device__ uint32_t start(int line, int batch0, int batch1) {
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

  // The tile at `k`.
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

  // Keeps the compiler from computing all this only where it is used.
  __device__ __forceinline__ void pin() {
    asm volatile("" : "+r"(to_), "+r"(inner_), "+r"(outer_), "+r"(copies_), "+r"(batch0_), "+r"(batch1_));
  }

 private:
  __device__ void copy(uint32_t destination, uint32_t barrier, int inner, int outer) const {
    load_box<kMulticast>(destination, map_, barrier, inner, outer, batch1_, batch0_, mask_);
  }

  const CUtensorMap *whole_, *edge_, *map_ = nullptr;
  uint32_t shared_, to_ = 0;
  int rows_, shift_, slice_;
  uint16_t mask_;
  int copies_ = 0, inner_ = 0, outer_ = 0, batch0_ = 0, batch1_ = 0;
};

// The second weight of an engine that has none.
struct NoOperand {
  __device__ uint32_t start(int, int, int) { return 0; }
  __device__ void load(int, uint32_t, int) const {}
};

// Where a unit's loads begin. Where tiles have every eighth row, x's place in a batch is which of the first
// eight rows theirs begin with, and how late that begins.
struct LoadStart {
  int row, col, k, k_blocks;
  int x_batch0, x_batch1, y_batch0, y_batch1;
};

template <typename E>
__device__ __forceinline__ LoadStart load_start(const Params& p, const Unit& of_all) {
  const Unit unit = unit_of_rows<E>(p, of_all);
  LoadStart start{};
  start.row = unit.row * E::kResultM;
  start.col = unit.col * E::kResultN;
  start.k = unit.k_begin * kTileK;
  start.k_blocks = unit.k_blocks;
  if constexpr (E::kEighths) {
    start.x_batch0 = unit.batch;
    start.x_batch1 = late_of(p.lines, unit.batch);
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

// How a block comes to its units, each with code of its own: instructions are as cold as parameters when a
// kernel starts, so the usual ways should not step over the others'.
enum class Walk { kOneWave, kBlocks, kShareX, kShareY, kShareBoth };

// The loading warp's part of a block. Where the first load goes is computed before the barriers are `ready`.
// All its lanes walk, so that what they walk with lies in uniform registers, where copies need it.
template <typename E, Walk kWalk, typename F>
__device__ __forceinline__ void produce(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                        F&& ready) {
  constexpr bool kShareX = kWalk == Walk::kShareX || kWalk == Walk::kShareBoth;
  constexpr bool kShareY = kWalk == Walk::kShareY || kWalk == Walk::kShareBoth;
  const ClusterPlace place(p.schedule);
  using X = std::conditional_t<E::kEighths, EveryEighth<E::kLoadedX, kShareX, E::kBytesX>,
                               TmaOperand<E::kX, E::kLoadedX, E::kBlockX, kShareX, E::kBytesX>>;
  using Y = TmaOperand<E::kY, E::kLoadedY, E::kBlockY, kShareY, E::kBytesY>;
  const uint32_t m = place.rows, n = place.cols;
  const uint32_t x_mask = place.row_mask(), y_mask = place.column_mask();
  X x = [&] {
    if constexpr (E::kEighths)
      return X(p.every, shared.x, n, place.col, x_mask);
    else
      return X(p.x, p.x_edge, shared.x, p.rows, n, place.col, x_mask);
  }();
  Y y(p.y, p.y_edge, shared.y, p.cols, m, place.row, y_mask);
  auto up = [&] {
    if constexpr (E::kGated == Gated::kRows)
      return X(p.up, p.up, shared.x + E::kBytesX / 2, p.rows, n, place.col, x_mask);
    else if constexpr (E::kGated == Gated::kColumns)
      return Y(p.up, p.up, shared.y + E::kBytesY / 2, p.cols, m, place.row, y_mask);
    else
      return NoOperand{};
  }();

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
  const bool elected = elect_one();
  // What was read long enough ago: where fewer stages are used, stages of the ring before its next one.
  RingPosition<E::kStages> ring, read;
  const bool fewer = p.idle_stages > 0;
  read.skip(p.idle_stages);
  for (;;) {
    do {
      const uint32_t full = shared.full + 8 * ring.stage;
      mbarrier_wait(shared.empty + 8 * ring.stage, ring.parity ^ 1);
      if (fewer) {
        mbarrier_wait(shared.empty + 8 * read.stage, read.parity ^ 1);
        read.next();
      }
      if (elected) {
        mbarrier_arrive_expect(full, bytes);
        x.load(ring.stage, full, k);
        y.load(ring.stage, full, k);
        up.load(ring.stage, full, k);
      }
      k += kTileK;
      ring.next();
    } while (--left > 0);
    if constexpr (kWalk == Walk::kOneWave) return;
    index = place.next(p.schedule, index);
    if (index >= p.schedule.units) return;
    start(unit_at(p.schedule, place, index));
  }
}

// Tells the producers of all blocks that wrote a stage that a warpgroup has read it: a thread for each block,
// with the address of that block's barrier at hand. Between the last product of a stage and the first of the
// next there is little time and much to do, so this is one predicated instruction, also where there is
// nothing to hand back yet.
template <typename E>
class StageRelease {
 public:
  __device__ StageRelease(const SharedLayout<E>& shared, const ClusterPlace& place) {
    const uint32_t lane = threadIdx.x % 128;
    arrives_ = lane < place.peers();
    first_ = map_to_rank(shared.empty, place.peer(lane));
    asm volatile("" : "+r"(arrives_), "+r"(first_));  // computed here, not at every stage
  }
  // The stage that the next call is about.
  __device__ __forceinline__ void hold(int stage) {
    held_ = arrives_;
    barrier_ = first_ + 8 * stage;
  }
  __device__ __forceinline__ void operator()() const { mbarrier_arrive_remote_if(held_, barrier_); }

 private:
  uint32_t first_, arrives_;
  uint32_t barrier_ = 0, held_ = 0;
};

// acc = x rows [row, row + kGroupRows) times the first kColumns of y over k_blocks >= 1 stages from the ring.
// One stage's products stay in flight while the next are issued; a stage goes back once the products that
// follow it have been issued. `arrived` is called with the first stage when it is there, `started` when its
// products have been issued, `issued` when the last product has been issued but not yet waited for.
template <typename E, int kColumns, typename Arrived, typename Started, typename Issued>
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

  // The first stage stays in the loop: with code of its own before it, the compiler finds no registers to keep
  // the products of large tiles in flight, and makes each wait for the one before.
  uint32_t accumulate = 0;
  for (int block = 0; block < k_blocks; ++block) {
    mbarrier_wait(shared.full + 8 * ring.stage, ring.parity);
    const int stage = ring.stage;
    ring.next();
    if (block == 0) arrived(stage);
    const uint64_t x = advance(x_base, stage * (E::kBytesX / 16));
    const uint64_t y = advance(y_base, stage * (E::kBytesY / 16));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / 16; ++step) {
#pragma unroll
      for (int i = 0; i < E::kBlocksM; ++i) {
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
  for (int i = 0; i < E::kBlocksM; ++i) wgmma_pin(acc.value[i]);
  release();
}

}  // namespace jaxgemm::cuda::sm90
