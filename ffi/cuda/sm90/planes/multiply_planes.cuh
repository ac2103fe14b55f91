// The consumers' main loop over planes (planes.h).
#pragma once

#include "../multiply.cuh"

namespace jaxgemm::cuda::sm90 {

// For the sums of all products of planes but the product of both first planes. If an operand is not finite,
// its first plane is not finite either, and its other planes hold meaningless values: their contribution to a
// sum that is not finite is left out.
template <typename E>
__device__ __forceinline__ void drop_non_finite(Accumulators<E>& sum) {
#pragma unroll
  for (int i = 0; i < E::kBlocksM; ++i) {
#pragma unroll
    for (int e = 0; e < E::kAccumulators; ++e)
      sum.value[i][e] = isfinite(sum.value[i][e]) ? sum.value[i][e] : 0.f;
  }
}

// acc = the sum of all products of planes, over `k_blocks` steps each. The tensor core adds up the products
// of one step and truncates each addition; the sums of the step are then added to `acc` with rounding.
// Warpgroups multiply one after the other: each adds its sums while the tensor core works for the others. The
// hooks are those of multiply().
template <typename E, typename Arrived, typename Started, typename Issued>
__device__ __forceinline__ void multiply_planes(Accumulators<E>& acc, const typename E::Parameters& p,
                                                const SharedLayout<E>& shared, const ClusterPlace& place,
                                                RingPosition<E::kStages>& ring, int row, int k_blocks,
                                                Arrived&& arrived, Started&& started, Issued&& issued) {
  using X = OperandTile<E::kX>;
  using Y = OperandTile<E::kY>;
  using Mma = Wgmma<typename E::Product, E::kTileN, E::kX, E::kY>;
  static_assert(E::kBlocksM == 1);
  const uint64_t x_base = X::descriptor(shared.x) + row / 64 * X::kRows64;
  const uint64_t y_base = Y::descriptor(shared.y);
  StageRelease<E> release(shared, place);
  const int last = p.plane_product_count - 1, warpgroup = row / 64;

#pragma unroll
  for (int e = 0; e < E::kAccumulators; ++e) acc.value[0][e] = 0.f;
#pragma unroll 1
  for (int product = 0; product <= last; ++product) {
    const float scale = p.plane_products[product].scale;
    if (product == last && last > 0) drop_non_finite(acc);
#pragma unroll 1
    for (int block = 0; block < k_blocks; ++block) {
      const bool first = product + block == 0, end = product == last && block + 1 == k_blocks;
      mbarrier_wait(shared.full + 8 * ring.stage, ring.parity);
      const int stage = ring.stage;
      ring.next();
      arrived(block, stage);
      const uint64_t x = advance(x_base, stage * (E::kBytesX / 16));
      const uint64_t y = advance(y_base, stage * (E::kBytesY / 16));
      float sum[E::kAccumulators];
      if (warpgroup > 0 || !first) sync<NamedBarrier::kTurn>(warpgroup, kTwoWarpgroups);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kLineBytes / kInstructionBytes; ++step) {
        Mma::mma(sum, advance(x, step * X::kStep), advance(y, step * Y::kStep), step > 0);
        if (step == kLineBytes / kInstructionBytes - 2) wgmma_commit();
      }
      wgmma_commit();
      if (first) started();
      // Releases the stage before: all four warps have begun the products of this stage together, and so are
      // done with the stage before.
      release();
      release.hold(stage);
      // The last product of this stage is under way when the next warpgroup begins.
      wgmma_wait<1>();
      if (warpgroup + 1 < E::kConsumers || !end)
        arrive<NamedBarrier::kTurn>((warpgroup + 1) % E::kConsumers, kTwoWarpgroups);
      wgmma_wait<0>();
      wgmma_pin(sum);
#pragma unroll
      for (int e = 0; e < E::kAccumulators; ++e) acc.value[0][e] = fmaf(scale, sum[e], acc.value[0][e]);
    }
  }
  issued();
  sync<NamedBarrier::kOwn>(row / 64, 128);  // all four warps are done with the last stage
  release();
}

}  // namespace jaxgemm::cuda::sm90
