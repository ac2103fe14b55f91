// Ampere's copies from global to shared memory that pass no register and are waited for in groups.
#pragma once

#include <cstdint>

namespace jaxgemm::cuda {

// Writes zeros, and does not read, where `valid` is false. 16 bytes bypass the L1; 4 and 8 go through it, as
// neighbouring lanes' copies share sectors.
template <int kBytes>
__device__ __forceinline__ void cp_async_or_zero(uint32_t shared, const void* global, bool valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
                 "r"(valid ? kBytes : 0)
                 : "memory");
  }
}

// The first `bytes` of 16, 0 or more, and zeros behind them. What is not copied is not read either.
__device__ __forceinline__ void cp_async_part(uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}

// Writes nothing, and does not read, where `on` is false. A predicate rather than a branch, so that the
// compiler can spread the copies among other instructions.
template <int kBytes>
__device__ __forceinline__ void cp_async_if(uint32_t shared, const void* global, bool on) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(shared),
        "l"(global), "r"(int(on))
        : "memory");
  } else {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %3, 0; @p cp.async.ca.shared.global [%0], [%1], %2; }" ::"r"(shared),
        "l"(global), "n"(kBytes), "r"(int(on))
        : "memory");
  }
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's latest groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace jaxgemm::cuda
