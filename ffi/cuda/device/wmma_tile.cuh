// The way of a WMMA accumulator to and from memory. Which lane holds which element of a fragment is not
// specified, so everything that depends on an element's place, the epilogue and the ragged edge, goes through
// a small tile of shared memory that belongs to the warp.
#pragma once

#include <mma.h>

#include "tile.cuh"

namespace jaxgemm::cuda {

// Finishes and stores one accumulator, whose first element is D(row, col). `stage` holds kM * kN elements and
// is the warp's own.
template <typename T, int kM, int kN, int kK>
__device__ __forceinline__ void store_fragment(
    const TiledProduct<T>& p, const Epilogue<T>& epilogue, int64_t batch, int64_t row, int64_t col,
    typename T::Acc* stage,
    const nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kM, kN, kK, typename T::Acc>& acc) {
  __syncwarp();  // the stage may still be read for something else
  nvcuda::wmma::store_matrix_sync(stage, acc, kN, nvcuda::wmma::mem_row_major);
  __syncwarp();
  const int rows = p.m - row < kM ? static_cast<int>(p.m - row) : kM;
  const int cols = p.n - col < kN ? static_cast<int>(p.n - col) : kN;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < kM * kN; i += 32) {
    if (i / kN < rows && i % kN < cols) {
      epilogue.store(batch * p.m * p.n, row + i / kN, col + i % kN, stage[i]);
    }
  }
}

}  // namespace jaxgemm::cuda
