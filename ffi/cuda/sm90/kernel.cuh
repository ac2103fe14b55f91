// The kernel: a persistent grid of blocks. The first warpgroup of a block is the producer, which loads; the
// others are consumers, which multiply and store. Tiles that realign have two more warpgroups, which shift y.
#pragma once

#include "epilogue.cuh"
#include "gather.cuh"
#include "grouped.cuh"
#include "mainloop.cuh"
#include "unaligned/realign.cuh"

namespace jaxgemm::cuda::sm90 {

// Consumer warpgroup `group` of a block. Cooperative groups share every unit. Where a block has one unit
// only, its groups start one after the other, as short products were measured to end sooner so. Ping-pong
// groups alternate, and a named barrier for each hands the tensor cores over in turn, since two main loops at
// once would both finish late. `sliced`: the blocks of a cluster share K.
template <typename E>
__device__ __forceinline__ void consume(const Params& p, const SharedLayout<E>& shared, bool sliced,
                                        int group, int warp) {
  const ClusterPlace place = own_place(p.schedule);
  EpilogueWarp<E> epilogue(p, shared, warp);
  const Gather<E> gather(shared, sliced ? p.schedule.slices : 2, place.slice, warp % 4);
  const bool finishes = !E::kSlices || !sliced || gather.finishes();
  RingPosition<E::kStages> ring;
  const int row = E::kPingPong ? 0 : group * E::kGroupRows;
  int turn = 0;
  for (uint32_t index = place.first_unit; index < p.schedule.units;
       index = place.next(p.schedule, index), ++turn) {
    const Unit unit =
        to_tile_rows<E>(p, p.schedule.one_wave ? only_unit(p.schedule) : unit_at(p.schedule, place, index));
    if constexpr (E::kPingPong) {
      if (turn % 2 != group) {
        ring.skip(unit.k_blocks);
        continue;
      }
      if (turn > 0) named_barrier_sync(1 + group, 256);
    }
    const Strip strip{int64_t(unit.row) * E::kResultM + row + warp % 4 * 16, int64_t(unit.col) * E::kResultN,
                      unit.split, unit.batch};
    if (finishes) epilogue.prefetch(strip);
    if constexpr (!E::kPingPong) {
      if (p.schedule.one_wave && group > 0) named_barrier_sync(group, 256);
    }
    const auto arrived = [&](int block, int stage) {
      if constexpr (E::kEveryEighth) {
        if (block == 0) clear_before_rows<E>(p, shared, stage, row, group, unit.batch);
      }
    };
    const auto started = [&] {
      if (finishes) epilogue.fetch(strip);
      if constexpr (!E::kPingPong) {
        if (p.schedule.one_wave && group + 1 < E::kConsumers) named_barrier_arrive(group + 1, 256);
      }
    };
    const auto issued = [&] {
      if constexpr (E::kPingPong) {
        if (place.next(p.schedule, index) < p.schedule.units) named_barrier_arrive(2 - group, 256);
      }
    };
    Accumulators<E> acc;
    if (!E::kHasNarrow || unit.col != p.schedule.narrow_col) [[likely]]
      multiply<E, E::kTileN>(acc, shared, place, ring, row, unit.k_blocks, arrived, started, issued);
    else if constexpr (E::kHasNarrow)
      multiply<E, kNarrowColumns>(acc, shared, place, ring, row, unit.k_blocks, arrived, started, issued);
    if constexpr (E::kSlices) {
      if (sliced) gather(acc);
      if (!finishes) continue;
    }
    epilogue.store(acc, strip);
  }
  epilogue.drain();
}

// The producer warpgroup's warps before the barriers are ready. The first accesses to parameters are slow, as
// they are not cached, and the loading warp, 0, has the most of them. So the others set the barriers up and
// prefetch the tensor maps.
template <typename E>
__device__ __forceinline__ void set_up(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                       bool sliced, int warp) {
  if (warp == 1) {
    if constexpr (E::kEveryEighth) {
      const int first = static_cast<int>(threadIdx.x % 32);
      if (first < min(8, p.rows)) tma_prefetch_map(&p.x_from[first]);
    }
    if (elect_one()) {
      if constexpr (!E::kEveryEighth) tma_prefetch_map(&p.x);
      tma_prefetch_map(&p.y);
      if constexpr (E::kGated != Gated::kNo) tma_prefetch_map(&p.up);
    }
  } else if (warp == 2) {
    if (elect_one()) {
      constexpr int kArrivals = E::kRealigns ? 1 + kRealignTeamWarps : 1;
      for (int i = 0; i < E::kStages; ++i) mbarrier_init(shared.full + 8 * i, kArrivals);
      if constexpr (E::kRealigns) RawRing<E>::init(shared);
      if (p.out.c && p.out.path == StorePath::kTmaFinished) Addend<E>::init(shared.addend);
      mbarrier_init_fence();
    }
  } else if (elect_one()) {
    const uint32_t readers = (E::kPingPong ? 1 : E::kConsumers) * own_place(p.schedule).peers();
    for (int i = 0; i < E::kStages; ++i) mbarrier_init(shared.empty + 8 * i, readers);
    if constexpr (E::kSlices) {
      if (sliced) Gather<E>::init(shared, p.schedule.slices, cluster_rank());
    }
    mbarrier_init_fence();
  }
  __syncwarp();
}

// The loading warp, by the way that its block comes to units.
template <typename E, typename Ready, typename BlockReady, typename ClusterReady>
__device__ __forceinline__ void load_units(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                           bool sliced, Ready&& ready, BlockReady&& block_ready,
                                           ClusterReady&& cluster_ready) {
  if constexpr (E::kIsGrouped) {
    load_groups<E>(p, shared, ready);
  } else if constexpr (E::kRealigns) {
    ready();
    produce_aligned<E>(p, shared);
  } else if (p.schedule.one_wave) {
    produce<E, Walk::kOneWave>(p, shared, block_ready);
  } else if (p.schedule.cluster_shift == 0 || sliced) {
    produce<E, Walk::kBlocks>(p, shared, ready);
  } else if (p.schedule.cluster_m == 1) {
    produce<E, Walk::kShareX>(p, shared, cluster_ready);
  } else if (p.schedule.cluster_n == 1) {
    produce<E, Walk::kShareY>(p, shared, cluster_ready);
  } else {
    produce<E, Walk::kShareBoth>(p, shared, cluster_ready);
  }
}

template <typename E>
__global__ void __launch_bounds__(E::kThreads, E::kTile.blocks)
    gemm_sm90(const __grid_constant__ typename E::Parameters p) {
  extern __shared__ uint8_t dynamic_shared[];
  const SharedLayout<E> shared(dynamic_shared);
  const int warp = uniform_warp();
  const bool sliced = E::kSlices && p.schedule.slices > 1;
  // Barriers are ready. In a cluster a peer's copies and arrivals may reach this block as soon as the peer
  // runs, so all its blocks meet.
  const auto block_ready = [&] {
    __syncthreads();
    wait_for_previous_kernel();
  };
  const auto cluster_ready = [&] {
    cluster_meet();
    wait_for_previous_kernel();
  };
  const auto ready = [&] {
    if (p.schedule.cluster_shift > 0)
      cluster_ready();
    else
      block_ready();
  };

  if (warp >= 4 + 4 * E::kConsumers) {
    if constexpr (E::kRealigns) {
      give_registers<E::kRealignerRegisters>();
      ready();
      realign<E>(p, shared, warp - 4 - 4 * E::kConsumers);
    }
  } else if (warp >= 4) {
    ready();
    take_registers<E::kConsumerRegisters>();
    if constexpr (E::kIsGrouped)
      consume_groups<E>(p, shared, warp / 4 - 1, warp - 4);
    else
      consume<E>(p, shared, sliced, warp / 4 - 1, warp - 4);
    // The next kernel of the stream may be launched now, and waits for this one's results itself. Earlier it
    // would take room on multiprocessors while it waits. The first warp to release it does so for the block,
    // so all consumers meet first: a ping-pong group that had no unit would be too early.
    named_barrier_sync(3, 128 * E::kConsumers);
    release_next_kernel();
  } else {
    give_registers<E::kProducerRegisters>();
    if (warp == 0) {
      load_units<E>(p, shared, sliced, ready, block_ready, cluster_ready);
    } else {
      set_up<E>(p, shared, sliced, warp);
      ready();
      if (warp == 1 && by_copy_engine(p.out.path) && elect_one()) {
        tma_prefetch_map(&p.d);
        if (p.out.c && p.out.path == StorePath::kTmaFinished) tma_prefetch_map(&p.c);
      }
      if constexpr (E::kRealigns) {
        if (warp == 1) produce_raw<E>(p, shared);
      }
    }
  }
  // Blocks that share loads may still write into this block's shared memory and arrive at its barriers. Where
  // they share K, nothing more comes once a block's warps have received what they wait for.
  if (p.schedule.cluster_shift > 0 && !sliced) cluster_meet();
}

}  // namespace jaxgemm::cuda::sm90
