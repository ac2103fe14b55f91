// A consumer warpgroup: it multiplies its block's units and stores their results.
#pragma once

#include <utility>

#include "bytes/turned.cuh"
#include "epilogue.cuh"
#include "gather.cuh"
#include "multiply.cuh"
#include "planes/multiply_planes.cuh"
#include "units.cuh"
#include "zeros.cuh"

namespace jaxgemm::cuda::sm90 {

// Whether a warpgroup passes over tiles that end before its rows; and how many rows a unit has from its
// first row on. With planes, warpgroups multiply in turns, and none passes.
template <typename E>
constexpr bool kCutsRows = E::kMany || (E::kTokens == Axis::kRows && !E::kPlanes);
template <typename E, typename Unit>
__device__ __forceinline__ int rows_left(const Unit& unit) {
  if constexpr (E::kMany)
    return unit.of.rows - unit.row;
  else
    return unit.end - unit.row;
}

// Calls run.operator()<columns, blocks of 64 rows>() with the part of a tile that is multiplied: the part
// that holds results, if the tile has a form for it, or else the whole tile.
template <typename E, typename Unit, typename Run>
__device__ __forceinline__ void with_form(const typename E::Parameters& p, const Unit& unit, Run&& run) {
  if constexpr (E::kMany && E::kBlocksM > 1) {
    if (rows_left<E>(unit) > 64) [[likely]]
      run.template operator()<E::kTileN, E::kBlocksM>();
    else
      run.template operator()<E::kTileN, E::kBlocksM / 2>();
  } else if constexpr (E::kTokenForms > 1) {
    const int tokens = unit.end - unit.row;
    [&]<int... kForm>(std::integer_sequence<int, kForm...>) {
      ((tokens <= 64 * (kForm + 1) || kForm == E::kTokenForms - 1
            ? (run.template operator()<64 * (kForm + 1), E::kBlocksM>(), true)
            : false) ||
       ...);
    }(std::make_integer_sequence<int, E::kTokenForms>{});
  } else if constexpr (E::kHasNarrow) {
    if (unit.col != p.schedule.narrow_col) [[likely]]
      run.template operator()<E::kTileN, E::kBlocksM>();
    else
      run.template operator()<kNarrowColumns, E::kBlocksM>();
  } else {
    run.template operator()<E::kTileN, E::kBlocksM>();
  }
}

// Whose turn it is to multiply. Ping-pong warpgroups alternate, one unit each: a named barrier for each hands
// the tensor cores over, since two main loops at once would both finish late. Cooperative warpgroups share
// every unit. If a block has only one unit, they start one after the other: short products were measured to
// end sooner this way.
template <typename E>
struct Turns {
  const typename E::Parameters& p;
  int warpgroup;

  __device__ __forceinline__ bool staggers() const {
    return E::kIsDense && !E::kPlanes && !E::kPingPong && p.schedule.one_wave;
  }

  // Whether this warpgroup has unit number `turn` of the block.
  __device__ __forceinline__ bool has(int turn) const { return !E::kPingPong || turn % 2 == warpgroup; }
  __device__ __forceinline__ void wait(int turn) const {
    if (E::kPingPong ? turn > 0 : staggers() && warpgroup > 0)
      sync<NamedBarrier::kTurn>(warpgroup, kTwoWarpgroups);
  }
  // All wgmmas of this warpgroup's first stage have been issued.
  __device__ __forceinline__ void started() const {
    if (staggers() && warpgroup + 1 < E::kConsumers)
      arrive<NamedBarrier::kTurn>(warpgroup + 1, kTwoWarpgroups);
  }
  // All wgmmas of this warpgroup's unit have been issued, and the block has `more` units.
  __device__ __forceinline__ void issued(bool more) const {
    if (E::kPingPong && more) arrive<NamedBarrier::kTurn>(1 - warpgroup, kTwoWarpgroups);
  }
};

// Clears the elements of a stage that are other rows of x (every eighth row) or other groups' tokens
// (sums): infinity times zero would not be zero.
template <typename E, typename Unit>
__device__ __forceinline__ void clear_others(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                             const Unit& unit, int block, int stage, int row, int warpgroup) {
  if constexpr (E::kEveryEighth) {
    if (block == 0) clear_before_rows<E>(p, shared, stage, row, warpgroup, unit.batch);
  } else if constexpr (E::kTokens == Axis::kK) {
    if (block == unit.k_blocks - 1) clear_after_tokens<E>(shared, stage, unit.last_lines, warpgroup);
  }
}

// Whether this warpgroup multiplies nothing of its unit. Then it is done with the unit: it has stored zeros,
// or released the stages of a tile that ends before its rows.
template <typename E, typename Unit, typename Issued>
__device__ __forceinline__ bool passes(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                       const ClusterPlace& place, const Units<E>& units, const Unit& unit,
                                       RingPosition<E::kStages>& ring, int row, int warpgroup, int warp,
                                       Issued&& issued) {
  if constexpr (E::kHasGroups) {
    if (unit.k_blocks == 0) {
      const Strip strip = units.strip(unit, row);
      issued();
      store_zeros<E>(p, shared, strip, warp);
      return true;
    }
  }
  if constexpr (!E::kPingPong && kCutsRows<E>) {
    if (row >= rows_left<E>(unit)) {  // no row is this warpgroup's
      pass_stages<E>(shared, place, ring, warpgroup, unit.k_blocks);
      issued();
      return true;
    }
  }
  return false;
}

// Consumer warpgroup `warpgroup` of a block. `sliced`: the blocks of a cluster share K.
template <typename E>
__device__ __forceinline__ void consume(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                        bool sliced, int warpgroup, int warp) {
  const ClusterPlace place = own_place(p.schedule);
  Units<E> units(p, place);
  EpilogueWarp<E> epilogue(first_results<E>(p), shared, warp);
  const Gather<E> gather(shared, sliced ? p.schedule.slices : 2, place.slice, E::kPingPong ? warp % 4 : warp);
  const bool finishes = !E::kSlices || !sliced || gather.finishes();
  const Turns<E> turns{p, warpgroup};
  RingPosition<E::kStages> ring;
  const int row = E::kPingPong ? 0 : warpgroup * E::kWarpgroupRows;
  bool more = units.find();
  for (int turn = 0; more; ++turn) {
    const auto unit = units.unit();
    // Here, not on both paths below, so that the code of next() is there once.
    if constexpr (E::kStartsSoon) more = units.next();
    if (!turns.has(turn)) {
      ring.skip(unit.k_blocks);
      if constexpr (!E::kStartsSoon) more = units.next();
      continue;
    }
    if constexpr (E::kPingPong) turns.wait(turn);
    const auto issued = [&] {
      if constexpr (!E::kStartsSoon) more = units.next();
      turns.issued(more);
    };
    if (passes<E>(p, shared, place, units, unit, ring, row, warpgroup, warp, issued)) continue;
    const Strip strip = units.strip(unit, row + warp % 4 * 16);
    if (finishes) epilogue.prefetch(strip);
    if constexpr (!E::kPingPong) turns.wait(turn);
    const auto arrived = [&](int block, int stage) {
      clear_others<E>(p, shared, unit, block, stage, row, warpgroup);
    };
    const auto started = [&] {
      if (finishes) epilogue.fetch(strip);
      turns.started();
    };
    Accumulators<E> acc;
    if constexpr (E::kPlanes) {
      multiply_planes<E>(acc, p, shared, place, ring, row, unit.k_blocks, arrived, started, issued);
    } else if constexpr (E::kTurned) {
      multiply_turned<E>(acc, shared, place, ring, row, unit.k_blocks, arrived, started, issued);
    } else {
      with_form<E>(p, unit, [&]<int kColumns, int kBlocks>() {
        multiply<E, kColumns, kBlocks>(acc, shared, place, ring, row, unit.k_blocks, arrived, started,
                                       issued);
      });
    }
    if constexpr (E::kSlices) {
      if (sliced) gather(acc);
      if (!finishes) continue;
    }
    if constexpr (E::kMany)
      EpilogueWarp<E>(unit.of, shared, warp).store_after_another(acc, strip);
    else
      epilogue.store(acc, strip);
  }
  epilogue.drain();
}

}  // namespace jaxgemm::cuda::sm90
