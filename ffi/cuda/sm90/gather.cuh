// A sum whose K the blocks of a cluster share, a slice each: the first block adds the others' sums to its
// own, in their order, so that results do not move between runs.
//
// Where the first block had its stages there is room for the others' sums when it has multiplied its last.
// Each of its warps says so for itself to every other block, which then sends what it has.
#pragma once

#include "../device/mbarrier.cuh"
#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

template <typename E>
class Gather {
 public:
  // By one thread of each block, before the blocks meet.
  __device__ static void init(const SharedLayout<E>& shared, uint32_t slices, uint32_t slice) {
    mbarrier_init(shared.free, 4);
    mbarrier_init(shared.gathered, 1);
    if (slice == 0) mbarrier_arrive_expect(shared.gathered, (slices - 1) * kBytes);
  }

  // Whether this block has the whole sum now. By the warpgroup that has multiplied.
  __device__ static __forceinline__ bool add(Accumulators<E>& acc, const SharedLayout<E>& shared,
                                             uint32_t slices, uint32_t slice) {
    const uint32_t offset = threadIdx.x % 128 * 16, lane = threadIdx.x % 32;
    float* const sum = acc.value[0];
    if (slice > 0) {
      const uint32_t to = map_to_rank(shared.x, 0) + (slice - 1) * kBytes + offset;
      const uint32_t barrier = map_to_rank(shared.gathered, 0);
      mbarrier_wait<true>(shared.free, 0);
#pragma unroll
      for (int i = 0; i < kValues / 4; ++i) store_remote(to + i * 2048, sum + 4 * i, barrier);
      return false;
    }
    mbarrier_arrive_remote_if(lane > 0 && lane < slices, map_to_rank(shared.free, lane));
    mbarrier_wait<true>(shared.gathered, 0);
    uint32_t from = shared.x + offset;
#pragma unroll 1
    for (uint32_t other = 1; other < slices; ++other, from += kBytes) {
#pragma unroll
      for (int i = 0; i < kValues / 4; ++i) {
        float x[4];
        load(x, from + i * 2048);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[4 * i + e] += x[e];
      }
    }
    return true;
  }

 private:
  __device__ static __forceinline__ void load(float (&x)[4], uint32_t address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(address)
                 : "memory");
  }

  static constexpr int kValues = E::kBlocksM * E::kAccumulators;  // of a thread
  static constexpr uint32_t kBytes = 128 * kValues * 4;           // of a block
};

}  // namespace jaxgemm::cuda::sm90
