// The roles of a block in a grouped product. What differs from other products is how a block comes to its
// units, that a unit may have nothing to multiply, and that what lies behind a group's last token is another
// group's: results of such rows are dropped, and where tokens are summed over they are cleared.
#pragma once

#include <utility>

#include "epilogue.cuh"
#include "groups.cuh"
#include "mainloop.cuh"
#include "zeros.cuh"

namespace jaxgemm::cuda::sm90 {

// Clears what the last step of a sum holds of other groups' tokens: the lines from `lines` on, of both
// operands, as infinity times zero is no zero. A line is one token's, so whole lines are cleared.
template <typename E>
__device__ __forceinline__ void clear_after_tokens(const SharedLayout<E>& shared, int stage, int lines,
                                                   int group) {
  if (lines == kTileK) return;
  constexpr int kThreads = E::kPingPong ? 128 : 128 * E::kConsumers;
  const int thread = static_cast<int>(threadIdx.x) - 128 - (E::kPingPong ? 128 * group : 0);
  const uint32_t x = shared.x + stage * E::kBytesX, y = shared.y + stage * E::kBytesY;
#pragma unroll 1
  for (int at = lines * 128 + thread * 16; at < kTileK * 128; at += kThreads * 16) {
#pragma unroll
    for (int block = 0; block < E::kBytesX; block += kTileK * 128) store_shared(x + block + at, uint4{});
#pragma unroll
    for (int block = 0; block < E::kBytesY; block += kTileK * 128) store_shared(y + block + at, uint4{});
  }
  fence_shared_to_async();
  named_barrier_sync(4 + (E::kPingPong ? group : 0), kThreads);
}

// Where a warp's first strip of a unit lies. `row`: its first row in the tile.
template <typename E>
__device__ __forceinline__ Strip strip_of(const GroupUnit& unit, int row) {
  if constexpr (E::kGrouped == Grouped::kSums)
    return {unit.tile * E::kResultM + row, unit.column * E::kResultN, 0, unit.product};
  else if constexpr (E::kGrouped == Grouped::kRows)
    return {unit.row + row, int64_t(unit.tile) * E::kResultN, 0, unit.batch, unit.end, unit.group};
  else
    return {int64_t(unit.tile) * E::kResultM + row, unit.row, 0, unit.batch, unit.end, unit.group};
}

// Consumer warpgroup `group` of a block. Ping-pong groups take turns as in consume().
template <typename E>
__device__ __forceinline__ void consume_groups(const GroupedParams& p, const SharedLayout<E>& shared,
                                               int group, int warp) {
  const ClusterPlace place = own_place(p.schedule);
  EpilogueWarp<E> epilogue(p, shared, warp);
  RingPosition<E::kStages> ring;
  const int row = E::kPingPong ? 0 : group * E::kGroupRows;
  GroupUnits<E> units(p, place);
  bool more = units.find();
  for (int turn = 0; more; ++turn) {
    const GroupUnit unit = units.unit();
    if constexpr (E::kPingPong) {
      if (turn % 2 != group) {
        ring.skip(unit.k_blocks);
        more = units.next();
        continue;
      }
      if (turn > 0) named_barrier_sync(1 + group, 256);
    }
    const Strip strip = strip_of<E>(unit, row + warp % 4 * 16);
    const auto arrived = [&](int block, int stage) {
      if constexpr (E::kGrouped == Grouped::kSums) {
        if (block == unit.k_blocks - 1) clear_after_tokens<E>(shared, stage, unit.last_lines, group);
      }
    };
    const auto issued = [&] {
      more = units.next();
      if constexpr (E::kPingPong) {
        if (more) named_barrier_arrive(2 - group, 256);
      }
    };
    if (unit.k_blocks == 0) {
      issued();
      store_zeros<E>(p.out, shared, strip_of<E>(unit, row), warp);
      continue;
    }
    if (E::kGrouped == Grouped::kRows && unit.row + row >= unit.end) {  // no token is this warpgroup's
      pass_stages<E>(shared, place, ring, group, unit.k_blocks);
      issued();
      continue;
    }
    epilogue.prefetch(strip);
    Accumulators<E> acc;
    const auto multiply_columns = [&]<int kColumns>() {
      multiply<E, kColumns>(acc, shared, place, ring, row, unit.k_blocks, arrived, [] {}, issued);
    };
    if constexpr (E::kTokenForms == 1) {
      multiply_columns.template operator()<E::kTileN>();
    } else {
      const int tokens = unit.end - unit.row;
      [&]<int... kForm>(std::integer_sequence<int, kForm...>) {
        ((tokens <= 64 * (kForm + 1) || kForm == E::kTokenForms - 1
              ? (multiply_columns.template operator()<64 * (kForm + 1)>(), true)
              : false) ||
         ...);
      }(std::make_integer_sequence<int, E::kTokenForms>{});
    }
    epilogue.store(acc, strip);
  }
  epilogue.drain();
}

// The loading warp.
template <typename E, Walk kWalk, typename Ready>
__device__ __forceinline__ void produce_groups(const GroupedParams& p, const SharedLayout<E>& shared,
                                               Ready&& ready) {
  using Operands = LoadedOperands<E, kWalk>;
  const ClusterPlace place = own_place(p.schedule);
  const uint32_t x_mask = place.row_mask(), y_mask = place.column_mask();
  auto x = Operands::x(p, shared, place, x_mask);
  auto y = Operands::y(p, shared, place, y_mask);
  auto up = Operands::up(p, shared, place, x_mask, y_mask);
  GroupUnits<E> units(p, place);
  bool more = units.find();
  ready();
  RingFill<E> ring(p.idle_stages, shared);
  for (; more; more = units.next()) {
    const GroupUnit& unit = units.unit();
    if (unit.k_blocks == 0) continue;
    const int x_batch = unit.batch * p.batch.x_outer, y_batch = unit.batch * p.batch.y_outer;
    uint32_t bytes;
    if constexpr (E::kGrouped == Grouped::kSums) {
      bytes = x.start(unit.tile * E::kResultM, x_batch, 0) + y.start(unit.column * E::kResultN, y_batch, 0);
      ring.fill(x, y, up, bytes, unit.k_begin, unit.k_blocks);
      continue;
    }
    // Tiles of a group that has several in a row read the same weights at about the same time.
    const L2Policy policy = unit.alone ? L2Policy::kStreamed : L2Policy::kNormal;
    if constexpr (E::kGrouped == Grouped::kRows) {
      const int weights = unit.tile * E::kResultN;
      bytes = x.start(unit.row, unit.end - unit.row, x_batch) +
              y.start(weights, y_batch, unit.group, policy) + up.start(weights, y_batch, unit.group, policy);
    } else {
      const int weights = unit.tile * E::kResultM;
      bytes = x.start(weights, x_batch, unit.group, policy) +
              y.start(unit.row, unit.end - unit.row, y_batch) +
              up.start(weights, x_batch, unit.group, policy);
    }
    ring.fill(x, y, up, bytes, unit.k_begin, unit.k_blocks);
  }
}

template <typename E, typename Ready>
__device__ __forceinline__ void load_groups(const GroupedParams& p, const SharedLayout<E>& shared,
                                            Ready&& ready) {
  // Clusters share tokens, which all tiles of a cluster have; in "sums" they may share either operand.
  if (p.schedule.cluster_shift == 0) {
    produce_groups<E, Walk::kBlocks>(p, shared, ready);
  } else {
    if constexpr (E::kGrouped != Grouped::kColumns) {
      if (p.schedule.cluster_m == 1) return produce_groups<E, Walk::kShareX>(p, shared, ready);
    }
    if constexpr (E::kGrouped != Grouped::kRows) produce_groups<E, Walk::kShareY>(p, shared, ready);
  }
}

}  // namespace jaxgemm::cuda::sm90
