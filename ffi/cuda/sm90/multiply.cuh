// The consumers' main loop: stages of the ring are multiplied as they arrive, and released.
#pragma once

#include "../device/mbarrier.cuh"
#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

// Tells the producers of all blocks that wrote a stage that this warpgroup has read it. A thread for each
// block holds the address of that block's barrier. Nothing may delay the next stage's products, so a release
// is one predicated instruction, which also runs if there is no stage to release yet.
template <typename E>
class StageRelease {
 public:
  __device__ StageRelease(const SharedLayout<E>& shared, const ClusterPlace& place) {
    uint32_t lane = threadIdx.x % 128;
    if constexpr (E::kStartsSoon) asm volatile("" : "+r"(lane));  // not computed before the first product
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

// Releases the next `count` stages, of which this warpgroup multiplies nothing. Only the warpgroup's first
// warp waits for the stages, since no wgmma keeps the other warps in step with it. A warp that still writes
// results of the tile before might find that a barrier has moved on by two phases, which looks as if it had
// not moved.
template <typename E>
__device__ __forceinline__ void pass_stages(const SharedLayout<E>& shared, const ClusterPlace& place,
                                            RingPosition<E::kStages>& ring, int warpgroup, int count) {
  StageRelease<E> release(shared, place);
  for (int left = threadIdx.x % 128 < 32 ? count : 0; left > 0; --left) {
    mbarrier_wait(shared.full + 8 * ring.stage, ring.parity);
    release.hold(ring.stage);
    release();
    ring.next();
  }
  if (threadIdx.x % 128 >= 32) ring.skip(count);
  sync<NamedBarrier::kOwn>(warpgroup, 128);
}

// acc = rows [row, row + kWarpgroupRows) of x, or the first kBlocks blocks of 64 of them, times the first
// kColumns rows of y, over the next k_blocks >= 1 stages. One stage's products are in flight while the next
// stage's are issued, and only then is the stage released. Three hooks: `arrived` is called with the number
// of each block of k and its stage when the stage has arrived, `started` when the products of the first stage
// have been issued, and `issued` when all products have been issued but not yet waited for.
template <typename E, int kColumns, int kBlocks = E::kBlocksM, typename Arrived, typename Started,
          typename Issued>
__device__ __forceinline__ void multiply(Accumulators<E>& acc, const SharedLayout<E>& shared,
                                         const ClusterPlace& place, RingPosition<E::kStages>& ring, int row,
                                         int k_blocks, Arrived&& arrived, Started&& started,
                                         Issued&& issued) {
  using X = OperandTile<E::kX>;
  using Y = OperandTile<E::kY, E::kY == Major::kMN ? E::kBlockY : 64>;
  using Mma = Wgmma<typename E::Product, kColumns, E::kX, E::kY>;
  const uint64_t x_base = X::descriptor(shared.x) + row / 64 * X::kRows64;
  const uint64_t y_base = Y::descriptor(shared.y);
  StageRelease<E> release(shared, place);

  // The first stage stays in the loop: with code of its own before the loop, the compiler finds no
  // registers to keep the products of large tiles in flight, and makes each product wait for the one
  // before.
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
    for (int step = 0; step < kLineBytes / kInstructionBytes; ++step) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        Mma::mma(reinterpret_cast<typename E::Product::Sum(&)[kColumns / 2]>(acc.value[i]),
                 advance(x, i * X::kRows64 + step * X::kStep), advance(y, step * Y::kStep), accumulate);
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
