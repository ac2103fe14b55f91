// The kernel: a persistent grid of blocks. The first warpgroup of a block is the producer, which loads; the
// others are consumers, which multiply and store. Tiles that realign have two more warpgroups, which shift y.
#pragma once

#include "consume.cuh"
#include "planes/scales.cuh"
#include "produce.cuh"
#include "unaligned/realign.cuh"

namespace jaxgemm::cuda::sm90 {

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
    if (!E::kMany && elect_one()) {
      if constexpr (!E::kEveryEighth) tma_prefetch_map(&first_results<E>(p).x);
      tma_prefetch_map(&first_results<E>(p).y);
      if constexpr (E::kGated != Axis::kNone) tma_prefetch_map(&p.up);
    }
  } else if (warp == 2) {
    if (elect_one()) {
      constexpr int kArrivals = E::kRealigns ? 1 + kRealignTeamWarps : 1;
      for (int i = 0; i < E::kStages; ++i) mbarrier_init(shared.full + 8 * i, kArrivals);
      if constexpr (E::kRealigns) RawRing<E>::init(shared);
      if constexpr (E::kHasAddend) {
        if (brings_addend<E>(p)) Addend<E>::init(shared.addend);
      }
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

// The maps of D and C, which are needed last.
template <typename E>
__device__ __forceinline__ void prefetch_results(const typename E::Parameters& p) {
  if constexpr (!E::kMany) {
    if (by_copy_engine(p.out.path) && elect_one()) {
      tma_prefetch_map(&p.d);
      if constexpr (E::kHasAddend) {
        if (brings_addend<E>(p)) tma_prefetch_map(&p.c);
      }
    }
  }
}

// Warp `warp` of the producer warpgroup.
template <typename E, typename Ready, typename BlockReady, typename ClusterReady>
__device__ __forceinline__ void run_producer(const typename E::Parameters& p, const SharedLayout<E>& shared,
                                             bool sliced, int warp, Ready&& ready, BlockReady&& block_ready,
                                             ClusterReady&& cluster_ready) {
  if (warp > 0) {
    set_up<E>(p, shared, sliced, warp);
    ready();
    if (warp == 1) prefetch_results<E>(p);
  }
  if constexpr (E::kRealigns) {
    if (warp == 0) {
      ready();
      produce_aligned<E>(p, shared);
    } else if (warp == 1) {
      produce_raw<E>(p, shared);
    }
  } else if (warp == 0) {
    produce_units<E>(p, shared, sliced, ready, block_ready, cluster_ready);
  }
}

template <typename E>
__global__ void __launch_bounds__(E::kThreads, E::kTile.blocks)
    gemm_sm90(const __grid_constant__ typename E::Parameters p) {
  if constexpr (E::kPlanes) {
    if (p.guard && !guarded(p.guard, p.runs_if)) return;
  }
  extern __shared__ uint8_t dynamic_shared[];
  const SharedLayout<E> shared(dynamic_shared);
  const int warp = uniform_warp();
  const bool sliced = E::kSlices && p.schedule.slices > 1;
  // Read where it is needed, as a first access to parameters holds a warp up.
  const auto in_cluster = [&] { return !E::kMany && p.schedule.cluster_shift > 0; };
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
    if (in_cluster())
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
    consume<E>(p, shared, sliced, warp / 4 - 1, warp - 4);
    // The next kernel of the stream may be launched now, and waits for this one's results itself. Earlier it
    // would take room on multiprocessors while it waits. The first warp to release it does so for the block,
    // so all consumers meet first: a ping-pong warpgroup that had no unit would be too early.
    sync<NamedBarrier::kConsumers>(0, 128 * E::kConsumers);
    release_next_kernel();
  } else {
    give_registers<E::kProducerRegisters>();
    run_producer<E>(p, shared, sliced, warp, ready, block_ready, cluster_ready);
  }
  // Blocks that share loads may still write into this block's shared memory and arrive at its barriers. Where
  // they share K, nothing more comes once a block's warps have received what they wait for.
  if (in_cluster() && !sliced) cluster_meet();
}

}  // namespace jaxgemm::cuda::sm90
