// An operand whose rows begin anywhere in memory, without a copy of it.
//
// The copy engine wants rows a multiple of 16 bytes apart, and boxes that begin at one. Lines 8 apart are: so
// it brings a stage's lines in eight boxes of every eighth, each from the vector in which those begin, and
// with one vector more than a line fills. Then warps shift them in registers to where tensor cores want them,
// all lines of a box by the same distance. Where the lines are no multiple of 8, the first boxes have one
// line more than the others, and so a map of their own.
//
// A stage takes a team of warps longer than it may: teams take stages in turn.
#pragma once

#include "../device/shift.cuh"
#include "mainloop.cuh"

namespace jaxgemm::cuda::sm90 {

// The second ring, of stages as they come. Its barriers follow the addend's.
template <typename E>
struct RawRing {
  static constexpr RawStage kStage{E::kTile, E::kY == Major::kMN};
  static constexpr int kStages = E::kRawStages;

  __device__ static __forceinline__ uint32_t full(const SharedLayout<E>& shared, int stage) {
    return shared.raw_barriers + 8 * stage;
  }
  __device__ static __forceinline__ uint32_t empty(const SharedLayout<E>& shared, int stage) {
    return shared.raw_barriers + 8 * (kStages + stage);
  }
  __device__ static __forceinline__ void init(const SharedLayout<E>& shared) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full(shared, i), 1);
      mbarrier_init(empty(shared, i), kTeamWarps);
    }
  }
};

// A stage's lines: where they begin, and what there is of them.
template <typename E>
class StageLines {
  static constexpr bool kAlongK = E::kY == Major::kK;  // lines are
  static constexpr RawStage kStage = RawRing<E>::kStage;

 public:
  __device__ explicit StageLines(const Lines& lines) : lines_(lines) {}

  __device__ __forceinline__ void start(const LoadStart& start) {
    row_ = start.col;
    batch0_ = start.y_batch0;
    batch1_ = start.y_batch1;
  }
  __device__ __forceinline__ void at(int k) {
    first_ = kAlongK ? row_ : k;
    begin_ = kAlongK ? k : row_;
  }

  // How many elements after the beginning of a vector line `i` of a stage begins.
  __device__ __forceinline__ int late(int i) const { return late_of(lines_, i); }
  // Elements of a line from here on, of the whole operand.
  __device__ __forceinline__ int left() const { return lines_.length - begin_; }

  // All boxes, by the copy engine. `first` is the map of those that have one line more.
  __device__ __forceinline__ void load(const CUtensorMap* map, const CUtensorMap* first, uint32_t to,
                                       uint32_t barrier) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int line = static_cast<int>(i * lines_.pitch) - late(i);
      tma_load(to + i * kStage.box_bytes, i < lines_.count % 8 ? first : map, barrier, line + begin_,
               first_ / 8, batch1_, batch0_);
    }
  }

 private:
  const Lines& lines_;
  int row_ = 0, batch0_ = 0, batch1_ = 0;
  int first_ = 0, begin_ = 0;  // line of the operand, and element of it
};

// Moves a box's lines into a stage, a lane so many vectors of them: kWords words from where they have come to
// where they belong, and an element more if `odd`. Places are those of the copy engine's swizzle.
template <typename E, int kWords>
__device__ __forceinline__ void realign_box(uint32_t from, uint32_t to, bool odd, int left) {
  constexpr RawStage kStage = RawRing<E>::kStage;
  constexpr int kVectors = kStage.vectors - 1, kTogether = 32 / kVectors;
  constexpr int kPasses = kStage.box_lines / kTogether, kInFlight = kPasses < 4 ? kPasses : 4;
  const int lane = static_cast<int>(threadIdx.x % 32), bits = odd ? 16 : 0;
  from += lane / kVectors * kStage.line_bytes + 16 * (lane % kVectors);
#pragma unroll
  for (int i = 0; i < kPasses; i += kInFlight) {
    uint4 v[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const uint32_t line = from + (i + j) * kTogether * kStage.line_bytes;
      const uint4 a = load_shared(line), b = load_shared(line + 16);
      const uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      v[j] = make_uint4(__funnelshift_r(w[kWords], w[kWords + 1], bits),
                        __funnelshift_r(w[kWords + 1], w[kWords + 2], bits),
                        __funnelshift_r(w[kWords + 2], w[kWords + 3], bits),
                        __funnelshift_r(w[kWords + 3], w[kWords + 4], bits));
      // What follows a line's end in memory must not meet what may be the other operand's.
      if (left < kTileK) v[j] = keep_first<uint16_t>(v[j], left - 8 * (lane % kVectors));
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) store_shared(to + (i + j) * kTogether * 1024, v[j]);
  }
}

// Calls `begin` with where each of a block's units begins, and `step` with each k of it.
template <typename E, typename Begin, typename Step>
__device__ __forceinline__ void walk_steps(const Params& p, Begin&& begin, Step&& step) {
  const ClusterPlace place(p.schedule);
  for (uint32_t index = place.first_unit; index < p.schedule.units; index = place.next(p.schedule, index)) {
    const LoadStart start =
        load_start<E>(p, p.schedule.one_wave ? only_unit(p.schedule) : unit_at(p.schedule, place, index));
    begin(start);
    for (int i = 0; i < start.k_blocks; ++i) step(start.k + i * kTileK);
  }
}

// A warp that has the copy engine load x, the operand that it can.
template <typename E>
__device__ __forceinline__ void produce_aligned(const Params& p, const SharedLayout<E>& shared) {
  TmaOperand<E::kX, E::kLoadedX, E::kBlockX, false, E::kBytesX> x(p.x, p.x_edge, shared.x, p.rows, 1, 0, 1);
  const bool elected = elect_one();
  uint32_t bytes = 0;
  RingPosition<E::kStages> ring;
  walk_steps<E>(
      p, [&](const LoadStart& start) { bytes = x.start(start.row, start.x_batch0, start.x_batch1); },
      [&](int k) {
        const uint32_t full = shared.full + 8 * ring.stage;
        mbarrier_wait(shared.empty + 8 * ring.stage, ring.parity ^ 1);
        if (elected) {
          mbarrier_arrive_expect(full, bytes);
          x.load(ring.stage, full, k);
        }
        ring.next();
      });
}

// A warp that has it load y, as far as it can.
template <typename E>
__device__ __forceinline__ void produce_raw(const Params& p, const SharedLayout<E>& shared) {
  using Ring = RawRing<E>;
  StageLines<E> lines(p.lines);
  const bool elected = elect_one();
  RingPosition<Ring::kStages> ring;
  walk_steps<E>(
      p, [&](const LoadStart& start) { lines.start(start); },
      [&](int k) {
        const uint32_t full = Ring::full(shared, ring.stage);
        lines.at(k);
        mbarrier_wait(Ring::empty(shared, ring.stage), ring.parity ^ 1);
        if (elected) {
          mbarrier_arrive_expect(full, Ring::kStage.bytes);
          lines.load(&p.y, &p.y_edge, shared.raw + ring.stage * Ring::kStage.bytes, full);
        }
        ring.next();
      });
}

// Warp `warp` of those that realign what has come: some of the boxes of its team's stages.
template <typename E>
__device__ __forceinline__ void realign(const Params& p, const SharedLayout<E>& shared, int warp) {
  using Ring = RawRing<E>;
  constexpr int kVectors = Ring::kStage.vectors - 1;
  const int lane = static_cast<int>(threadIdx.x % 32), vector = lane % kVectors;
  const int team = warp / kTeamWarps;
  static_assert(E::kStages % kRealigningTeams == 0);  // a stage of the ring is always the same team's
  StageLines<E> lines(p.lines);
  const uint32_t to = shared.y + vector / 8 * (E::kBlockY * 128) + lane / kVectors * 8 * 128;
  RingPosition<Ring::kStages> come;
  RingPosition<E::kStages> ring;
  int turn = 0;
  walk_steps<E>(
      p, [&](const LoadStart& start) { lines.start(start); },
      [&](int k) {
        // Also what is another team's: a barrier's phases are told apart by parity, so none may be missed.
        mbarrier_wait(Ring::full(shared, come.stage), come.parity);
        if (turn == team) {
          lines.at(k);
          const int left = E::kY == Major::kK ? lines.left() : kTileK;
          mbarrier_wait(shared.empty + 8 * ring.stage, ring.parity ^ 1);
#pragma unroll 1
          for (int box = warp % kTeamWarps; box < 8; box += kTeamWarps) {
            const uint32_t raw = shared.raw + come.stage * Ring::kStage.bytes + box * Ring::kStage.box_bytes;
            const uint32_t stage = to + ring.stage * E::kBytesY + box * 128 + 16 * ((vector ^ box) & 7);
            const int late = lines.late(box), words = late / 2;
            if (words < 2) {
              if (words == 0)
                realign_box<E, 0>(raw, stage, late % 2, left);
              else
                realign_box<E, 1>(raw, stage, late % 2, left);
            } else if (words == 2) {
              realign_box<E, 2>(raw, stage, late % 2, left);
            } else {
              realign_box<E, 3>(raw, stage, late % 2, left);
            }
          }
          fence_shared_to_async();
          __syncwarp();
          if (lane == 0) {
            mbarrier_arrive(shared.full + 8 * ring.stage);
            mbarrier_arrive(Ring::empty(shared, come.stage));
          }
        }
        turn = turn + 1 < kRealigningTeams ? turn + 1 : 0;
        come.next();
        ring.next();
      });
}

}  // namespace jaxgemm::cuda::sm90
