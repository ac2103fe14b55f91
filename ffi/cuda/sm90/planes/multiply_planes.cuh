// The consumers' main loop over planes (planes.h).
#pragma once

#include "../multiply.cuh"

namespace jaxgemm::cuda::sm90 {

// Steps that the tensor core adds up by itself. Fewer would lose less to what it cuts off, and have the
// warpgroups add more often.
constexpr int kStepsAdded = 2;

// Of two planes that are not the first ones. Where an operand is not finite, its first plane says so, and the
// others hold what has no meaning; what they add to such a sum is left out.
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
// of kStepsAdded steps, cutting each addition off; such sums are then added to `acc`, rounded. Meanwhile
// the tensor core works for the other warpgroups. Hooks as those of multiply().
template <typename E, typename Started, typename Issued>
__device__ __forceinline__ void multiply_planes(Accumulators<E>& acc, const typename E::Parameters& p,
                                                const SharedLayout<E>& shared, const ClusterPlace& place,
                                                RingPosition<E::kStages>& ring, int row, int k_blocks,
                                                Started&& started, Issued&& issued) {
  using X = OperandTile<E::kX>;
  using Y = OperandTile<E::kY>;
  using Mma = Wgmma<typename E::In, E::kTileN, E::kX, E::kY>;
  static_assert(E::kBlocksM == 1);
  const uint64_t x_base = X::descriptor(shared.x) + row / 64 * X::kRows64;
  const uint64_t y_base = Y::descriptor(shared.y);
  StageRelease<E> release(shared, place);
  const int last = p.plane_product_count - 1;

#pragma unroll
  for (int e = 0; e < E::kAccumulators; ++e) acc.value[0][e] = 0.f;
#pragma unroll 1
  for (int product = 0; product <= last; ++product) {
    const float scale = p.plane_products[product].scale;
    if (product == last && last > 0) drop_non_finite(acc);
    const auto add = [&]<int kSteps>(bool first) {
      float sum[E::kAccumulators];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        mbarrier_wait(shared.full + 8 * ring.stage, ring.parity);
        const int stage = ring.stage;
        ring.next();
        const uint64_t x = advance(x_base, stage * (E::kBytesX / 16));
        const uint64_t y = advance(y_base, stage * (E::kBytesY / 16));
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step)
          Mma::mma(sum, advance(x, step * X::kStepK16), advance(y, step * Y::kStepK16), i + step > 0);
        wgmma_commit();
        if (first && i == 0) started();
        // The stage before: all four warps have begun these products together, and so are done with it.
        if (i > 0) wgmma_wait<1>();
        release();
        release.hold(stage);
      }
      wgmma_wait<0>();
      wgmma_pin(sum);
#pragma unroll
      for (int e = 0; e < E::kAccumulators; ++e) acc.value[0][e] = fmaf(scale, sum[e], acc.value[0][e]);
    };
    int block = 0;
#pragma unroll 1
    for (; block + kStepsAdded <= k_blocks; block += kStepsAdded)
      add.template operator()<kStepsAdded>(product + block == 0);
    if (kStepsAdded > 1 && block < k_blocks) add.template operator()<1>(product + block == 0);
  }
  issued();
  sync<NamedBarrier::kOwn>(row / 64, 128);  // all four warps are done with the last stage
  release();
}

}  // namespace jaxgemm::cuda::sm90
