// The bulk copy engine: tiles of tensors of rank 4 into shared memory, tiles of rank 3 and lines out of it.
//
// The rank is fixed because extents of 1 cost nothing: operands are {inner, outer, batch 1, batch 0}, results
// {column, row, batch}. Coordinates outside of the tensor read as zero and are not written, which is what
// makes ragged edges free.
#pragma once

#include <cuda.h>

#include "ptx.cuh"

namespace jaxgemm::cuda {

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tma_load(uint32_t destination, const CUtensorMap* map, uint32_t barrier,
                                         int inner, int outer, int batch1, int batch0) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(inner), "r"(outer), "r"(batch1), "r"(batch0)
      : "memory");
}

// Loads a box of a tensor of rank 3, such as C.
__device__ __forceinline__ void tma_load(uint32_t destination, const CUtensorMap* map, uint32_t barrier,
                                         int column, int row, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(batch)
      : "memory");
}

// Loads a box of an operand into every block of the cluster whose bit is set in `mask`, at the same
// shared-memory offset. Each receiving block's own barrier counts the bytes.
__device__ __forceinline__ void tma_load_multicast(uint32_t destination, const CUtensorMap* map,
                                                   uint32_t barrier, int inner, int outer, int batch1,
                                                   int batch0, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(inner), "r"(outer), "r"(batch1), "r"(batch0), "h"(mask)
      : "memory");
}

// How L2 is to treat lines: kStreamed are the first to leave, as they are not read again. The values are what
// the instruction createpolicy makes of these words for all of an access.
enum class L2Policy : uint64_t { kNormal = 0x1000000000000000, kStreamed = 0x12f0000000000000 };

__device__ __forceinline__ void tma_load(uint32_t destination, const CUtensorMap* map, uint32_t barrier,
                                         int inner, int outer, int batch1, int batch0, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(inner), "r"(outer), "r"(batch1), "r"(batch0),
      "l"(static_cast<uint64_t>(policy))
      : "memory");
}

// tma_load_multicast or, without kMulticast, tma_load.
template <bool kMulticast>
__device__ __forceinline__ void load_box(uint32_t destination, const CUtensorMap* map, uint32_t barrier,
                                         int inner, int outer, int batch1, int batch0, uint16_t mask) {
  if constexpr (kMulticast)
    tma_load_multicast(destination, map, barrier, inner, outer, batch1, batch0, mask);
  else
    tma_load(destination, map, barrier, inner, outer, batch1, batch0);
}

__device__ __forceinline__ void tma_store(const CUtensorMap* map, uint32_t source, int column, int row,
                                          int batch) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(source), "r"(column), "r"(row), "r"(batch)
               : "memory");
}
// The same for results that nothing reads soon.
__device__ __forceinline__ void tma_store_streamed(const CUtensorMap* map, uint32_t source, int column,
                                                   int row, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], [%1], %5;" ::
          "l"(map),
      "r"(source), "r"(column), "r"(row), "r"(batch), "l"(static_cast<uint64_t>(L2Policy::kStreamed))
      : "memory");
}
// Copies `bytes` of shared memory, a multiple of 16; both ends begin at multiples of 16 bytes.
__device__ __forceinline__ void bulk_store(void* destination, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's committed stores still read shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace jaxgemm::cuda
