// The loading warp: it walks over its block's units and fills the ring of stages. A stage holds E::kStepK
// elements of k of a tile's x and y.
#pragma once

#include <type_traits>

#include "loads.cuh"
#include "units.cuh"

namespace jaxgemm::cuda::sm90 {

// Which operands' loads the blocks of a cluster share.
enum class Sharing : uint8_t { kNone, kX, kY, kBoth };

// What the loading warp loads: x, y and a gated product's second weight.
template <typename E, Sharing kSharing>
struct Loads {
  static constexpr bool kShareX = kSharing == Sharing::kX || kSharing == Sharing::kBoth;
  static constexpr bool kShareY = kSharing == Sharing::kY || kSharing == Sharing::kBoth;
  // Operands that come in boxes of a fixed number of rows: tokens, and K-major operands of many products.
  static constexpr bool kBoxesX = E::kTokens == Axis::kRows || (E::kMany && E::kX == Major::kK);
  static constexpr bool kBoxesY = E::kTokens == Axis::kColumns || (E::kMany && E::kY == Major::kK);
  using X =
      std::conditional_t<kBoxesX, TokenOperand<E::kLoadedX, kShareX, E::kBytesX>,
                         std::conditional_t<E::kEveryEighth, EveryEighth<E::kLoadedX, kShareX, E::kBytesX>,
                                            TmaOperand<E::kX, E::kLoadedX, E::kBlockX, kShareX, E::kBytesX,
                                                       E::kStepK, E::kTokens == Axis::kColumns>>>;
  using Y = std::conditional_t<
      kBoxesY, TokenOperand<E::kLoadedY, kShareY, E::kBytesY>,
      TmaOperand<E::kY, E::kLoadedY, E::kBlockY, kShareY, E::kBytesY, E::kStepK, E::kTokens == Axis::kRows>>;
  using Up = std::conditional_t<E::kGated == Axis::kRows, X,
                                std::conditional_t<E::kGated == Axis::kColumns, Y, NoOperand>>;

  X x;
  Y y;
  Up up;

  __device__ __forceinline__ Loads(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                   const ClusterPlace& place)
      : Loads(p, first_results<E>(p), shared, place, place.row_mask(), place.column_mask()) {}

  // Elements from `k` on; of y, from `y_ahead` further on.
  __device__ __forceinline__ void load(int stage, uint32_t barrier, int k, int y_ahead) const {
    x.load(stage, barrier, k);
    y.load(stage, barrier, k + y_ahead);
    up.load(stage, barrier, k);
  }
  // Makes the compiler compute here the values that the first load needs.
  __device__ __forceinline__ void pin() {
    if constexpr (E::kIsDense) {
      x.pin();
      y.pin();
    }
  }

 private:
  __device__ __forceinline__ Loads(const typename E::Parameters& p, const typename E::Results& maps,
                                   const SharedLayout<E>& shared, const ClusterPlace& place, uint32_t x_mask,
                                   uint32_t y_mask)
      : x([&] {
          if constexpr (kBoxesX)
            return X(maps.x, shared.x, place.cols, place.col, x_mask);
          else if constexpr (E::kEveryEighth)
            return X(p.x_from, shared.x, place.cols, place.col, x_mask);
          else if constexpr (E::kMany)
            return X(maps.x, maps.x, shared.x, 0, 1, 0, 1);
          else
            return X(p.x, p.x_edge, shared.x, p.rows, place.cols, place.col, x_mask);
        }()),
        y([&] {
          if constexpr (kBoxesY)
            return Y(maps.y, shared.y, place.rows, place.row, y_mask);
          else if constexpr (E::kMany)
            return Y(maps.y, maps.y, shared.y, 0, 1, 0, 1);
          else
            return Y(p.y, p.y_edge, shared.y, p.cols, place.rows, place.row, y_mask);
        }()),
        up([&] {
          if constexpr (E::kGated == Axis::kRows)
            return X(p.up, p.up, shared.x + E::kBytesX / 2, p.rows, place.cols, place.col, x_mask);
          else if constexpr (E::kGated == Axis::kColumns)
            return Y(p.up, p.up, shared.y + E::kBytesY / 2, p.cols, place.rows, place.row, y_mask);
          else
            return NoOperand{};
        }()) {}
};

// The stages that the loading warp fills. `ring_` is the next stage. If `idle_stages` are to stay empty,
// that many stages after it must have been read, too; `ahead_` is the last of them.
template <typename E>
class RingFill {
 public:
  __device__ __forceinline__ RingFill(int idle_stages, const SharedLayout<E>& shared)
      : shared_(shared), elected_(elect_one()), idles_(E::kIsDense && idle_stages > 0) {
    ahead_.skip(idle_stages);
  }

  // Fills `left` > 0 stages.
  template <typename Loads>
  __device__ __forceinline__ void fill(const Loads& loads, StageStart start, int left, int y_ahead = 0) {
    int k = start.k;
    do {
      const uint32_t full = shared_.full + 8 * ring_.stage;
      mbarrier_wait(shared_.empty + 8 * ring_.stage, ring_.parity ^ 1);
      if (idles_) {
        mbarrier_wait(shared_.empty + 8 * ahead_.stage, ahead_.parity ^ 1);
        ahead_.next();
      }
      if (elected_) {
        mbarrier_arrive_expect(full, start.bytes);
        loads.load(ring_.stage, full, k, y_ahead);
      }
      k += E::kStepK;
      ring_.next();
    } while (--left > 0);
  }

 private:
  const SharedLayout<E>& shared_;
  const bool elected_, idles_;
  RingPosition<E::kStages> ring_, ahead_;
};

// The loading warp's part of a block. Where the first load goes is computed before the barriers are `ready`.
// All lanes compute it, so that the results lie in uniform registers, where the copy instruction needs
// them. So sizes and offsets of groups are read before wait_for_previous_kernel(): a kernel that this one
// overlaps must not write them, nor start before the kernel that wrote them (Launch::overlaps).
template <typename E, typename Units, Sharing kSharing, typename Ready>
__device__ __forceinline__ void produce(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                        Ready&& ready) {
  const ClusterPlace place = own_place(p.schedule);
  Loads<E, kSharing> loads(p, shared, place);
  Units units(p, place);
  StageStart at{};
  int left = 0;
  bool more = units.find();
  const auto start = [&] {
    const auto& unit = units.unit();
    left = unit.k_blocks;
    if (!E::kHasGroups || left > 0) at = units.start(loads, unit);
  };
  if (more) start();
  loads.pin();
  if constexpr (E::kIsDense) asm volatile("" : "+r"(at.bytes), "+r"(at.k), "+r"(left));
  ready();
  RingFill<E> ring(p.idle_stages, shared);
  while (more) {
    if (!E::kHasGroups || left > 0) {  // a group without weights has no stages
      if constexpr (E::kPlanes) {
#pragma unroll 1
        for (int i = 0; i < p.plane_product_count; ++i) {
          const PlaneProduct& product = p.plane_products[i];
          ring.fill(loads, {at.bytes, at.k + product.x}, left, product.y - product.x);
        }
      } else {
        ring.fill(loads, at, left);
      }
    }
    more = units.next();
    if (more) start();
  }
}

// Calls produce() for the way in which the block comes to units, and for the blocks that share its loads.
// Each case has code of its own: when a kernel starts, its instructions are not cached, so the code that
// runs should lie together.
template <typename E, typename Ready, typename BlockReady, typename ClusterReady>
__device__ __forceinline__ void produce_units(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                              bool sliced, Ready&& ready, BlockReady&& block_ready,
                                              ClusterReady&& cluster_ready) {
  using Several = std::conditional_t<E::kIsDense, TileUnits<E, Waves::kSeveral>, Units<E>>;
  if constexpr (E::kIsDense) {
    if (p.schedule.one_wave)
      return produce<E, TileUnits<E, Waves::kOne>, Sharing::kNone>(p, shared, block_ready);
  }
  if (E::kMany || p.schedule.cluster_shift == 0 || sliced)
    return produce<E, Several, Sharing::kNone>(p, shared, ready);
  if constexpr (!E::kMany) {
    // Clusters share the loads of tokens, which all tiles of a cluster have in common. If tokens are summed
    // over, clusters share the loads of either operand.
    if constexpr (E::kTokens != Axis::kColumns) {
      if (E::kTokens == Axis::kRows || p.schedule.cluster_m == 1)
        return produce<E, Several, Sharing::kX>(p, shared, cluster_ready);
    }
    if constexpr (E::kTokens != Axis::kRows) {
      if (E::kHasGroups || p.schedule.cluster_n == 1)
        return produce<E, Several, Sharing::kY>(p, shared, cluster_ready);
    }
    if constexpr (E::kIsDense) produce<E, Several, Sharing::kBoth>(p, shared, cluster_ready);
  }
}

}  // namespace jaxgemm::cuda::sm90
