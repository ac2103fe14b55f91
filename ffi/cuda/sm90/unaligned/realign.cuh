// An unaligned y that is shifted on its way, so that it needs no copy.
//
// A line is a row of y (K-major), or runs along y's rows for one k (MN-major). Lines 8 apart are a multiple
// of 16 bytes apart, so the copy engine brings a stage's lines in eight boxes of every eighth line. A box
// begins with the 16-byte vector in which its lines begin, and has one vector more than a line fills. Boxes
// come to a raw stage (RawStage in ways.h). Then warps shift their lines in registers into the ring of
// stages; all lines of a box are shifted by the same distance. Where the number of lines is no multiple of 8,
// the first boxes have one line more than the others, and so a tensor map of their own.
//
// Three kinds of warps work beside the consumers: one loads x into the ring, one loads y into raw stages, and
// two teams shift. A team takes longer for a stage than multiplying it does, so teams take stages in turn.
#pragma once

#include "../../device/shift.cuh"
#include "../loads.cuh"
#include "../tile_units.cuh"

namespace jaxgemm::cuda::sm90 {

// The ring of raw stages.
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
      mbarrier_init(empty(shared, i), kRealignTeamWarps);
    }
  }
};

// The lines of y's current stage: where they begin, and how much of them exists.
template <typename E>
class StageLines {
  static constexpr bool kAlongK = E::kY == Major::kK;  // lines run along k
  static constexpr RawStage kStage = RawRing<E>::kStage;

 public:
  __device__ explicit StageLines(const UnalignedLines& lines) : lines_(lines) {}

  // Moves to a unit.
  __device__ __forceinline__ void start(const LoadStart& start) {
    row_ = start.col;
    batch0_ = start.y_batch0;
    batch1_ = start.y_batch1;
  }
  // Moves to the unit's stage at `k`.
  __device__ __forceinline__ void at(int k) {
    first_ = kAlongK ? row_ : k;
    begin_ = kAlongK ? k : row_;
  }

  // How many elements after the beginning of a 16-byte vector the lines of box `i` begin.
  __device__ __forceinline__ int misalignment_of(int i) const { return misalignment(lines_, i); }
  // Elements from the stage to the end of a line of the operand.
  __device__ __forceinline__ int left() const { return lines_.length - begin_; }

  // Has the copy engine load all boxes. `longer` is the map of boxes that have one line more than the others.
  __device__ __forceinline__ void load(const CUtensorMap* map, const CUtensorMap* longer, uint32_t to,
                                       uint32_t barrier) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int line = static_cast<int>(i * lines_.pitch) - misalignment_of(i);
      tma_load(to + i * kStage.box_bytes, i < lines_.count % 8 ? longer : map, barrier, line + begin_,
               first_ / 8, batch1_, batch0_);
    }
  }

 private:
  const UnalignedLines& lines_;
  int row_ = 0, batch0_ = 0, batch1_ = 0;
  int first_ = 0, begin_ = 0;  // the stage's first line, and its first element of a line
};

// Moves a box's lines into a stage, shifted down by 2 kWords elements, and by one more if `odd`. `from` is
// the box, `to` this lane's first vector in the stage, swizzled as the copy engine would. `left`: elements
// that exist from the stage's first k on.
template <typename E, int kWords>
__device__ __forceinline__ void realign_box(uint32_t from, uint32_t to, bool odd, int left) {
  constexpr RawStage kStage = RawRing<E>::kStage;
  constexpr int kVectors = kStage.vectors - 1, kLinesAtOnce = 32 / kVectors;
  constexpr int kPasses = kStage.box_lines / kLinesAtOnce, kInFlight = kPasses < 4 ? kPasses : 4;
  const int lane = static_cast<int>(threadIdx.x % 32), bits = odd ? 16 : 0;
  from += lane / kVectors * kStage.line_bytes + 16 * (lane % kVectors);
#pragma unroll
  for (int i = 0; i < kPasses; i += kInFlight) {
    uint4 v[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const uint32_t line = from + (i + j) * kLinesAtOnce * kStage.line_bytes;
      const uint4 a = load_shared(line), b = load_shared(line + 16);
      const uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      v[j] = make_uint4(__funnelshift_r(w[kWords], w[kWords + 1], bits),
                        __funnelshift_r(w[kWords + 1], w[kWords + 2], bits),
                        __funnelshift_r(w[kWords + 2], w[kWords + 3], bits),
                        __funnelshift_r(w[kWords + 3], w[kWords + 4], bits));
      // What follows a line's end in memory may be infinite, and infinity times x's zeros is no zero.
      if (left < kStepK16) v[j] = keep_first<uint16_t>(v[j], left - 8 * (lane % kVectors));
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) store_shared(to + (i + j) * kLinesAtOnce * 1024, v[j]);
  }
}

// Calls `begin` with where each of a block's units begins, and `step` with the k of each of its stages.
template <typename E, typename Begin, typename Step>
__device__ __forceinline__ void walk_steps(const typename E::Parameters& p, Begin&& begin, Step&& step) {
  const ClusterPlace place = own_place(p.schedule);
  TileUnits<E> units(p, place);
  for (bool more = units.find(); more; more = units.next()) {
    const LoadStart start = load_start<E>(p, units.unit());
    begin(start);
    for (int i = 0; i < start.k_blocks; ++i) step(start.k + i * kStepK16);
  }
}

// The warp that loads x, which is aligned, into the ring of stages.
template <typename E>
__device__ __forceinline__ void produce_aligned(const typename E::Parameters& p,
                                                const SharedLayout<E>& shared) {
  TmaOperand<E::kX, E::kLoadedX, E::kBlockX, false, E::kBytesX, E::kStepK> x(p.x, p.x_edge, shared.x, p.rows,
                                                                             1, 0, 1);
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

// The warp that loads y into raw stages.
template <typename E>
__device__ __forceinline__ void produce_raw(const typename E::Parameters& p, const SharedLayout<E>& shared) {
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

// Warp `warp` of those that shift: it moves some of the boxes of its team's stages.
template <typename E>
__device__ __forceinline__ void realign(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                        int warp) {
  using Ring = RawRing<E>;
  constexpr int kVectors = Ring::kStage.vectors - 1;
  const int lane = static_cast<int>(threadIdx.x % 32), vector = lane % kVectors;
  const int team = warp / kRealignTeamWarps;
  static_assert(E::kStages % kRealignTeams == 0);  // the same team always fills a stage of the ring
  StageLines<E> lines(p.lines);
  const uint32_t to = shared.y + vector / 8 * (E::kBlockY * 128) + lane / kVectors * 8 * 128;
  RingPosition<Ring::kStages> raw_ring;
  RingPosition<E::kStages> ring;
  int turn = 0;
  walk_steps<E>(
      p, [&](const LoadStart& start) { lines.start(start); },
      [&](int k) {
        // Also for the other team's stages: waiting tells a barrier's phases apart by parity, so none may be
        // missed.
        mbarrier_wait(Ring::full(shared, raw_ring.stage), raw_ring.parity);
        if (turn == team) {
          lines.at(k);
          const int left = E::kY == Major::kK ? lines.left() : kStepK16;
          mbarrier_wait(shared.empty + 8 * ring.stage, ring.parity ^ 1);
#pragma unroll 1
          for (int box = warp % kRealignTeamWarps; box < 8; box += kRealignTeamWarps) {
            const uint32_t raw =
                shared.raw + raw_ring.stage * Ring::kStage.bytes + box * Ring::kStage.box_bytes;
            const uint32_t stage = to + ring.stage * E::kBytesY + box * 128 + 16 * ((vector ^ box) & 7);
            const int shift = lines.misalignment_of(box), words = shift / 2;
            if (words < 2) {
              if (words == 0)
                realign_box<E, 0>(raw, stage, shift % 2, left);
              else
                realign_box<E, 1>(raw, stage, shift % 2, left);
            } else if (words == 2) {
              realign_box<E, 2>(raw, stage, shift % 2, left);
            } else {
              realign_box<E, 3>(raw, stage, shift % 2, left);
            }
          }
          fence_shared_to_async();
          __syncwarp();
          if (lane == 0) {
            mbarrier_arrive(shared.full + 8 * ring.stage);
            mbarrier_arrive(Ring::empty(shared, raw_ring.stage));
          }
        }
        turn = turn + 1 < kRealignTeams ? turn + 1 : 0;
        raw_ring.next();
        ring.next();
      });
}

}  // namespace jaxgemm::cuda::sm90
