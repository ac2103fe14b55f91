// Sums of a tile whose K the blocks of a cluster share, a slice each.
//
// Every block multiplies its slice for the whole tile. Then the rows of the tile are divided among finishing
// blocks, as several blocks receive sooner than one. Where four warps multiply a tile, each of two blocks
// finishes the rows of two warps; of four or eight blocks the first four finish one warp's rows each. Where
// eight warps do, blocks finish those of four, two or one. A warp whose rows another block finishes sends its
// sums there. All slices are added in their order, so results do not depend on which block comes first, nor
// on the part of the tile that they are in.
//
// What is sent waits in the staging buffers of those warps that finish nothing in the receiving block, so
// there is always room for it (TileConfig::can_slice).
#pragma once

#include "../device/mbarrier.cuh"
#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

template <typename E>
class Gather {
 public:
  // For warp `warp` of those that multiply the tile, in the block that has slice number `slice` of `slices`.
  __device__ Gather(const SharedLayout<E>& shared, uint32_t slices, uint32_t slice, uint32_t warp)
      : staging_(shared.staging), slices_(slices), slice_(slice) {
    const uint32_t warps = finished_warps(slices);
    owner_ = warp / warps;
    const uint32_t number = warp % warps;
    barrier_ = shared.gathered + 8 * number;
    first_ = (owner_ + 1) * warps + number * (slices - 1) * kBuffers;
  }

  // Called by one thread of each block, before the cluster's blocks meet.
  __device__ static void init(const SharedLayout<E>& shared, uint32_t slices, uint32_t slice) {
    const uint32_t warps = finished_warps(slices);
    for (uint32_t i = 0; i < warps; ++i) {
      mbarrier_init(shared.gathered + 8 * i, 1);
      if (slice * warps < kWarps) mbarrier_arrive_expect(shared.gathered + 8 * i, (slices - 1) * kBytes);
    }
  }

  // Whether this warp finishes its rows of the tile.
  __device__ __forceinline__ bool finishes() const { return owner_ == slice_; }

  // Sends this warp's sums to the block that finishes them, or adds the other blocks' sums to them. Called by
  // a whole warp.
  __device__ __forceinline__ void operator()(Accumulators<E>& acc) const {
    Sum* const own = acc.value[0];
    if (!finishes()) {
      const uint32_t staging = map_to_rank(staging_, owner_), barrier = map_to_rank(barrier_, owner_);
      const uint32_t from = slice_ - (slice_ > owner_);
#pragma unroll
      for (int i = 0; i < kValues / 4; ++i) {
        const float x[4] = {as_fp32(own[4 * i]), as_fp32(own[4 * i + 1]), as_fp32(own[4 * i + 2]),
                            as_fp32(own[4 * i + 3])};
        store_remote(staging + at(from, i), x, barrier);
      }
      return;
    }
    mbarrier_wait<true>(barrier_, 0);
#pragma unroll
    for (int first = 0; first < kValues; first += kAtOnce) {
      Sum sum[kAtOnce] = {};
#pragma unroll 1
      for (uint32_t slice = 0; slice < slices_; ++slice) {
        if (slice == slice_) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) sum[i] += own[first + i];
          continue;
        }
        const uint32_t from = slice - (slice > slice_);
#pragma unroll
        for (int i = 0; i < kAtOnce; i += 4) {
          float x[4];
          load(x, staging_ + at(from, (first + i) / 4));
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[i + e] += from_fp32<Sum>(x[e]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) own[first + i] = sum[i];
    }
  }

 private:
  using Sum = typename E::Product::Sum;
  static constexpr uint32_t kWarps = E::kTile.sharing_warps();

  // The same as TileConfig::finished_warps, without a division.
  __device__ static __forceinline__ uint32_t finished_warps(uint32_t slices) {
    return slices == 2 ? kWarps / 2 : slices == 4 ? kWarps / 4 : 1;
  }

  // Where values 4 i to 4 i + 3 of this lane lie in the finishing block's staging buffers, from sender
  // `from`.
  __device__ __forceinline__ uint32_t at(uint32_t from, int i) const {
    const uint32_t buffer = (first_ + from * kBuffers + i * 512 / kStagingBytes) % 8;
    return buffer * kStagingBytes + i * 512 % kStagingBytes + threadIdx.x % 32 * 16;
  }

  __device__ static __forceinline__ void load(float (&x)[4], uint32_t address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(address)
                 : "memory");
  }

  static constexpr int kValues = E::kBlocksM * E::kAccumulators;  // of a thread
  static constexpr int kAtOnce = kValues < 32 ? kValues : 32;     // values that are added at a time
  static constexpr uint32_t kBytes = 32 * kValues * 4;            // a warp's sums
  static constexpr uint32_t kBuffers = E::kTile.sent_buffers();   // staging areas that a warp's sums take

  uint32_t staging_, slices_, slice_;
  uint32_t owner_, barrier_, first_;
};

}  // namespace jaxgemm::cuda::sm90
