// Stages a strip of 16-bit results in shared memory, where the copy engine takes them from.
#pragma once

#include "../device/mma.cuh"
#include "narrow.cuh"
#include "staged.cuh"

namespace jaxgemm::cuda::sm90 {

// By 8 x 8 matrices.
template <typename E, bool kTransposed, int kValues>
__device__ __forceinline__ void fill_matrices(const Output& out, uint32_t first, uint32_t buffer,
                                              const float (&x)[kValues]) {
#pragma unroll
  for (int j = 0; j < 2 * kValues; j += 16) {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = pack_narrow<E>(out, x[j / 2 + 2 * i], x[j / 2 + 2 * i + 1]);
    const uint32_t to = next_matrix<kTransposed>(first, j) + buffer;
    if constexpr (kTransposed)
      store_matrix_x4_transposed(to, r);
    else
      store_matrix_x4(to, r);
  }
}

// By pairs of even and odd rows.
template <typename E, int kValues>
__device__ __forceinline__ void fill_pairs(const Output& out, uint32_t to, const float (&x)[kValues],
                                           int lane) {
  const PairedColumns pairs(lane);
#pragma unroll
  for (int j = 0; j < 2 * kValues; j += PairedColumns::kColumns) {
    const float* const values = x + j / 2;
    uint32_t a = pack_narrow<E>(out, values[0], values[2]), b = pack_narrow<E>(out, values[1], values[3]);
    pairs.order(a, b);
    store_shared_u32(to + pairs.first(j), a);
    store_shared_u32(to + pairs.second(j), b);
  }
}

// A lane's values, in the order of the accumulators, as 16-bit rows of a strip's columns, or as columns of 16
// rows when transposed, in the copy engine's swizzle. `first`: this lane's address for the first 16 columns
// (staged_matrix), in the first buffer; `buffer`: the offset of another.
template <typename E, bool kTransposed, int kValues>
__device__ __forceinline__ void fill(const Output& out, uint32_t first, uint32_t buffer,
                                     const float (&x)[kValues], int lane) {
  if constexpr (kTransposed && E::kTurned)
    fill_pairs<E>(out, first + buffer, x, lane);
  else
    fill_matrices<E, kTransposed>(out, first, buffer, x);
}

}  // namespace jaxgemm::cuda::sm90
