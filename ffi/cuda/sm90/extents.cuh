// How much of a strip exists.
#pragma once

#include "engine.cuh"
#include "unaligned/every_eighth.cuh"

namespace jaxgemm::cuda::sm90 {

template <typename E>
class Extents {
 public:
  __device__ __forceinline__ explicit Extents(const Output& out) : out_(out) {}

  // Whether the engine's rows are D's columns: known when the tile is compiled but for dense products.
  __device__ __forceinline__ bool swapped() const {
    return E::kIsDense ? out_.swap : E::kTokens == Axis::kColumns;
  }
  // The engine's rows of a strip's product; below 2^31.
  __device__ __forceinline__ int rows_of(const Strip& s) const {
    return swapped() ? rows_of<true>(s) : rows_of<false>(s);
  }
  template <bool kSwap>
  __device__ __forceinline__ int rows_of(const Strip& s) const {
    if constexpr (E::kTokens == Axis::kRows) return s.end;
    const int rows = static_cast<int>(kSwap ? out_.cols : out_.rows);
    return E::kEveryEighth ? every_eighth_of(rows, s.batch) : rows;
  }
  // And its columns.
  template <bool kSwap>
  __device__ __forceinline__ int64_t cols_of(const Strip& s) const {
    if constexpr (E::kTokens == Axis::kColumns) return s.end;
    return kSwap ? out_.rows : out_.cols;
  }
  // The rows and columns of a strip that exist; none if 0 or less.
  __device__ int rows_left(const Strip& s) const { return min(rows_of(s) - static_cast<int>(s.row), 16); }
  __device__ __forceinline__ int cols_left(const Strip& s) const {
    const int64_t cols = swapped() ? cols_of<true>(s) : cols_of<false>(s);
    return min(static_cast<int>(cols) - static_cast<int>(s.col), E::kStripColumns);
  }
  __device__ __forceinline__ bool outside(const Strip& s) const {
    return rows_left(s) <= 0 || cols_left(s) <= 0;
  }

 protected:
  const Output& out_;
};

}  // namespace jaxgemm::cuda::sm90
