// Views of the operands, and the map from thread blocks to output tiles and batches.
#pragma once

#include "types.cuh"

namespace jaxgemm::cuda {

// op(X) of one product: element (row, col) with the transposition folded into two strides, one of which is 1.
template <typename T>
struct View {
  const T* data;
  int64_t row_stride, col_stride;
  __device__ __forceinline__ T operator()(int64_t row, int64_t col) const {
    return data[row * row_stride + col * col_stride];
  }
};

// op(X) of every product in the batch.
template <typename T>
struct Operand {
  const T* data;
  int64_t ld;
  int64_t batch_stride[2];
  int64_t inner;  // batch = outer * inner_count + inner
  bool transposed;

  Operand(const void* p, const Matrix& x, const GemmProblem& problem)
      : data(static_cast<const T*>(p)),
        ld(x.ld),
        batch_stride{x.batch_stride[0], x.batch_stride[1]},
        inner(problem.batch[1]),
        transposed(x.transposed) {}

  __device__ __forceinline__ const T* at_batch(int64_t batch) const {
    if (batch == 0) return data;  // spares the usual unbatched product a 64-bit division
    return data + batch / inner * batch_stride[0] + batch % inner * batch_stride[1];
  }
  __device__ __forceinline__ View<T> view(int64_t batch) const {
    return {at_batch(batch), transposed ? 1 : ld, transposed ? ld : 1};
  }
};

// Blocks along x are output tiles, neighbours along n first; blocks along y walk the batch with a stride, as
// a grid's y extent ends at 65535 and a batch need not.
struct TileGrid {
  int64_t tiles_m, tiles_n, batch;

  TileGrid(const GemmProblem& p, int64_t tile_m, int64_t tile_n)
      : tiles_m((p.m + tile_m - 1) / tile_m), tiles_n((p.n + tile_n - 1) / tile_n), batch(p.batch_count()) {}

  dim3 blocks() const {
    return dim3(static_cast<unsigned>(tiles_m * tiles_n),
                static_cast<unsigned>(batch < 65535 ? batch : 65535));
  }
  // A grid's x extent ends at 2^31 - 1 blocks; tiles of 16 x 16 reach that at 5e11 outputs.
  bool fits() const { return tiles_m <= INT32_MAX / tiles_n; }

  __device__ __forceinline__ int64_t tile_row() const { return blockIdx.x / static_cast<unsigned>(tiles_n); }
  __device__ __forceinline__ int64_t tile_col() const { return blockIdx.x % static_cast<unsigned>(tiles_n); }
};

}  // namespace jaxgemm::cuda
