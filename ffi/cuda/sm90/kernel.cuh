// The kernel: a persistent grid of blocks whose first warpgroup loads and whose other warpgroups multiply and
// store.
#pragma once

#include "epilogue.cuh"
#include "gather.cuh"
#include "mainloop.cuh"
#include "realign.cuh"

namespace jaxgemm::cuda::sm90 {

// Consumer `group` of a block. Cooperative groups share every unit, and where it is the only one start one
// after the other: timings say that short products end sooner so. Ping-pong groups alternate, and a named
// barrier for each hands the tensor cores over in turn, since two main loops at once would both finish late.
// `sliced`: the blocks of a cluster share K.
template <typename E>
__device__ __forceinline__ void consume(const Params& p, const SharedLayout<E>& shared, bool sliced,
                                        int group, int warp) {
  const ClusterPlace place(p.schedule);
  EpilogueWarp<E> epilogue(p, shared, warp);
  const Gather<E> gather(shared, sliced ? p.schedule.slices : 2, place.slice, warp % 4);
  const bool finishes = !E::kSlices || !sliced || gather.finishes();
  RingPosition<E::kStages> ring;
  const int row = E::kPingPong ? 0 : group * E::kGroupRows;
  int turn = 0;
  for (uint32_t index = place.first_unit; index < p.schedule.units;
       index = place.next(p.schedule, index), ++turn) {
    const Unit unit =
        unit_of_rows<E>(p, p.schedule.one_wave ? only_unit(p.schedule) : unit_at(p.schedule, place, index));
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
    const auto arrived = [&](int stage) {
      if constexpr (E::kEighths) clear_before<E>(p, shared, stage, row, group, unit.batch);
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
    if (!E::kNarrows || unit.col != p.schedule.narrow_col) [[likely]]
      multiply<E, E::kTileN>(acc, shared, place, ring, row, unit.k_blocks, arrived, started, issued);
    else if constexpr (E::kNarrows)
      multiply<E, kNarrow>(acc, shared, place, ring, row, unit.k_blocks, arrived, started, issued);
    if constexpr (E::kSlices) {
      if (sliced) gather(acc);
      if (!finishes) continue;
    }
    epilogue.store(acc, strip);
  }
  epilogue.drain();
}

template <typename E>
__global__ void __launch_bounds__(E::kThreads, E::kTile.blocks)
    gemm_sm90(const __grid_constant__ typename E::Parameters p) {
  extern __shared__ uint8_t dynamic_shared[];
  const SharedLayout<E> shared(dynamic_shared);
  const int warp = uniform_warp();
  const bool sliced = E::kSlices && p.schedule.slices > 1;
  const auto block_ready = [&] {
    __syncthreads();
    wait_for_previous_kernel();
  };
  const auto cluster_ready = [&] {
    // A peer's copies and arrivals may reach this block's barriers as soon as the peer runs.
    cluster_meet();
    wait_for_previous_kernel();
  };
  const auto ready = [&] {
    if (p.schedule.cluster_shift > 0)
      cluster_ready();
    else
      block_ready();
  };

  // Every access to a parameter is slow at first. The loading warp has the most of them, so it does nothing
  // else, and the warps beside it do the rest.
  if (warp >= 4 + 4 * E::kConsumers) {
    if constexpr (E::kRealigns) {
      give_registers<E::kRealignerRegisters>();
      ready();
      realign<E>(p, shared, warp - 4 - 4 * E::kConsumers);
    }
  } else if (warp >= 4) {
    ready();
    take_registers<E::kConsumerRegisters>();
    consume<E>(p, shared, sliced, warp / 4 - 1, warp - 4);
    // What follows in the stream may be launched, and waits for this kernel's results itself. Sooner it would
    // only wait longer, in the multiprocessors' way: the first warp to say so speaks for the block, and a
    // ping-pong group may have had no unit.
    named_barrier_sync(3, 128 * E::kConsumers);
    release_next_kernel();
  } else {
    give_registers<E::kProducerRegisters>();
    if (warp != 0) {
      if (warp == 1) {
        if constexpr (E::kEighths) {
          const int first = static_cast<int>(threadIdx.x % 32);
          if (first < min(8, p.rows)) tma_prefetch_map(&p.every[first]);
        }
        if (elect_one()) {
          if constexpr (!E::kEighths) tma_prefetch_map(&p.x);
          tma_prefetch_map(&p.y);
          if constexpr (E::kGated != Gated::kNo) tma_prefetch_map(&p.up);
        }
      } else if (warp == 2) {
        if (elect_one()) {
          constexpr int kArrivals = E::kRealigns ? 1 + kTeamWarps : 1;
          for (int i = 0; i < E::kStages; ++i) mbarrier_init(shared.full + 8 * i, kArrivals);
          if constexpr (E::kRealigns) RawRing<E>::init(shared);
          if (p.out.c && p.out.way == Way::kActivated) Addend<E>::init(shared.addend);
          mbarrier_init_fence();
        }
      } else if (elect_one()) {
        const uint32_t readers = (E::kPingPong ? 1 : E::kConsumers) * ClusterPlace(p.schedule).peers();
        for (int i = 0; i < E::kStages; ++i) mbarrier_init(shared.empty + 8 * i, readers);
        if constexpr (E::kSlices) {
          if (sliced) Gather<E>::init(shared, p.schedule.slices, cluster_rank());
        }
        mbarrier_init_fence();
      }
      __syncwarp();
      ready();
      if (warp == 1 && by_copy_engine(p.out.way) && elect_one()) {
        tma_prefetch_map(&p.d);
        if (p.out.c && p.out.way == Way::kActivated) tma_prefetch_map(&p.c);
      }
      if constexpr (E::kRealigns) {
        if (warp == 1) produce_raw<E>(p, shared);
      }
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
  // A peer may still need this block's shared memory. Where K is shared nothing reaches a block whose warps
  // have what they wait for.
  if (p.schedule.cluster_shift > 0 && !sliced) cluster_meet();
}

}  // namespace jaxgemm::cuda::sm90
