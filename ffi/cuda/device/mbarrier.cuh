// Shared-memory barriers that count arrivals and bytes: what a producer and its consumers hand stages over
// with.
//
// A barrier completes a phase when its pending arrivals and its pending bytes are both zero; waiting names
// the parity of the phase waited for. A fresh barrier is in phase 0, so waiting for parity 1 returns at once:
// that is how a producer finds an unused ring empty.
#pragma once

#include "ptx.cuh"

namespace jaxgemm::cuda {

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival, and `bytes` more to come before the phase completes.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// One arrival, which publishes what this thread has written.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives if `condition` is not 0, at a barrier of any block of the cluster by the address that it has in the
// cluster. Relaxed: it says that tensor cores have read a stage, and there are no writes to publish.
// (Releasing to a cluster drains all memory operations of the warp, which halves the speed of a main loop.)
__device__ __forceinline__ void mbarrier_arrive_remote_if(uint32_t condition, uint32_t barrier) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.u32 p, %0, 0;\n"
      "@p mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%1];\n}" ::"r"(condition),
      "r"(barrier)
      : "memory");
}

// kCluster: also for what other blocks of the cluster have written.
template <bool kCluster = false>
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    if constexpr (kCluster) {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    } else {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    }
  } while (!done);
}

// Four values to the shared memory of another block, a barrier of which counts their bytes.
__device__ __forceinline__ void store_remote(uint32_t address, const float* x, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
      : "memory");
}

// A position in a ring of kStages, with the parity of the current lap.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(int count) {
    stage += count;
    parity ^= static_cast<uint32_t>(stage / kStages) & 1;
    stage %= kStages;
  }
};

}  // namespace jaxgemm::cuda
