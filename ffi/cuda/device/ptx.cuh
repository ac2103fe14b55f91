// One-instruction wrappers for what Hopper adds and C++ does not name: roles, named barriers, clusters,
// proxies.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Warp index as a value the compiler knows to be the same in every lane, so that roles branch uniformly.
__device__ __forceinline__ int uniform_warp() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}

// True in one lane of a converged warp. Unlike `lane == 0` the compiler knows that it is exactly one.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

// Registers move between warpgroups only in multiples of 8 and only when the kernel has a register cap.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barrier 0 is __syncthreads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's ordinary shared-memory writes before later accesses by the copy engine or the tensor
// cores.
__device__ __forceinline__ void fence_shared_to_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of the cluster meet. Relaxed: orders nothing but the meeting, and barriers initialised before
// it with mbarrier_init_fence.
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}

// The address of `address` in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t map_to_rank(uint32_t address, uint32_t rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// Programmatic dependent launch: wait until the memory of the kernels before this one is visible, and let the
// next one start its preamble. Both do nothing in an ordinary launch.
// Chips before Hopper do not overlap kernels of a stream, and have no such instructions.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void release_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t load_shared_u32(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared_u32(uint32_t address, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Loads whose values are used much later. The compiler tends to convert or unpack a value right behind its
// load, which then waits for memory. It cannot here: the loads are opaque to it, and the use goes through
// as_loaded(), which hides where the value came from.
__device__ __forceinline__ uint32_t load_ahead_u32(const void* from) {
  uint32_t v;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
__device__ __forceinline__ uint32_t load_ahead_u16(const void* from) {
  uint32_t v;
  asm volatile("ld.global.u16 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
__device__ __forceinline__ uint32_t as_loaded(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

// One access of 8 bytes. The compiler splits a store through a pointer to a vector type where it does not
// believe the alignment.
__device__ __forceinline__ void store_global(void* to, uint2 v) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
}

// Stores without a branch around them.
__device__ __forceinline__ void store_global_if(bool on, void* to, uint4 v) {
  asm volatile(
      "{\n.reg .pred on;\nsetp.ne.u32 on, %0, 0;\n@on st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"(
          uint32_t{on}),
      "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
      : "memory");
}
__device__ __forceinline__ void store_global_if(bool on, void* to, uint2 v) {
  asm volatile("{\n.reg .pred on;\nsetp.ne.u32 on, %0, 0;\n@on st.global.v2.b32 [%1], {%2, %3};\n}" ::"r"(
                   uint32_t{on}),
               "l"(to), "r"(v.x), "r"(v.y)
               : "memory");
}
__device__ __forceinline__ void store_global_if(bool on, void* to, uint32_t value) {
  asm volatile(
      "{\n.reg .pred on;\nsetp.ne.u32 on, %0, 0;\n@on st.global.b32 [%1], %2;\n}" ::"r"(uint32_t{on}),
      "l"(to), "r"(value)
      : "memory");
}
__device__ __forceinline__ void store_global_if(bool on, void* to, uint16_t value) {
  asm volatile(
      "{\n.reg .pred on;\nsetp.ne.u32 on, %0, 0;\n@on st.global.b16 [%1], %2;\n}" ::"r"(uint32_t{on}),
      "l"(to), "h"(value)
      : "memory");
}

// Four 8x8 matrices of 16-bit elements from the accumulators' register layout to shared memory; lane 8i + r
// gives the address of row r of matrix i (column r for the transposed form).
__device__ __forceinline__ void store_matrix_x4(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ __forceinline__ void store_matrix_x4_transposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace jaxgemm::cuda
