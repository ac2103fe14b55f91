// C in an epilogue: the copy engine brings strips of it into the staging buffers that results leave from.
//
// A warp has two buffers, which its strips use in turn. A buffer holds a strip of C, then that strip's
// results, and when those have left, C of the next strip but one.
#pragma once

#include "../device/mbarrier.cuh"
#include "../device/mma.cuh"
#include "../device/pair.cuh"
#include "engine.cuh"
#include "narrow.cuh"
#include "staged.cuh"

namespace jaxgemm::cuda::sm90 {

// C for one warp. Its lane 0 issues the copies.
template <typename E>
class Addend {
  static constexpr int kCols = E::kStripColumns;
  static_assert(E::kBuffers == 2);  // store_finished() fetches C of strip i + 1 into strip i - 1's

 public:
  __device__ static void init(uint32_t barriers) {
    for (int i = 0; i < E::kAddendBarriers; ++i) mbarrier_init(barriers + 8 * i, 1);
  }

  __device__ Addend(const typename E::Parameters& p, uint32_t staging, uint32_t barriers)
      : p_(p), staging_(staging), barriers_(barriers) {}

  // Asks for C of a strip. Called by lane 0, once the copy engine has read the results that the buffer held.
  __device__ __forceinline__ void load(const Strip& s, int buffer) const {
    const uint32_t barrier = barriers_ + 8 * buffer;
    const int row = static_cast<int>(s.row), col = static_cast<int>(s.col);
    mbarrier_arrive_expect(barrier, 16 * kCols * 2);
    tma_load(staging_ + buffer * E::kStagingBufferBytes, c_map<E>(p_, s.batch), barrier,
             p_.out.swap ? row : col, p_.out.swap ? col : row, s.batch);
  }

  // Adds beta C to a lane's values of the strip, in the order of the accumulators. Afterwards the buffer is
  // free for the strip's results.
  template <bool kSwap, int kValues>
  __device__ __forceinline__ void add(float (&x)[kValues], int buffer, int lane) {
    mbarrier_wait(barriers_ + 8 * buffer, phases_ >> buffer & 1);
    phases_ ^= 1u << buffer;
    const float beta = p_.out.beta;
#pragma unroll
    for (int j = 0; j < kCols; j += 16) {
      if constexpr (kSwap && E::kTurned) {
        add_pairs<kValues>(x, buffer, lane, j);
        add_pairs<kValues>(x, buffer, lane, j + PairedColumns::kColumns);
        continue;
      }
      uint32_t r[4];
      load_matrix_x4<kSwap>(
          r, staging_ + buffer * E::kStagingBufferBytes + staged_matrix<kSwap, kCols, E::kTurned>(j, lane));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 c = unpack_narrow<E>(p_.out, r[i]);
        x[j / 2 + 2 * i] = fmaf(beta, c.x, x[j / 2 + 2 * i]);
        x[j / 2 + 2 * i + 1] = fmaf(beta, c.y, x[j / 2 + 2 * i + 1]);
      }
    }
    __syncwarp();
  }

 private:
  // Adds to a lane's two pairs of rows in 8 columns.
  template <int kValues>
  __device__ __forceinline__ void add_pairs(float (&x)[kValues], int buffer, int lane, int column) const {
    const PairedColumns pairs(lane);
    const uint32_t from =
        staging_ + buffer * E::kStagingBufferBytes + staged_matrix<true, kCols, true>(0, lane);
    uint32_t a = load_shared_u32(from + pairs.first(column)),
             b = load_shared_u32(from + pairs.second(column));
    pairs.order(a, b);
    const float2 left = unpack_narrow<E>(p_.out, a), right = unpack_narrow<E>(p_.out, b);
    float* const values = x + column / 2;
    values[0] = fmaf(p_.out.beta, left.x, values[0]);
    values[1] = fmaf(p_.out.beta, right.x, values[1]);
    values[2] = fmaf(p_.out.beta, left.y, values[2]);
    values[3] = fmaf(p_.out.beta, right.y, values[3]);
  }

  const typename E::Parameters& p_;
  uint32_t staging_, barriers_;
  uint32_t phases_ = 0;  // a bit for each buffer: the parity of its barrier
};

}  // namespace jaxgemm::cuda::sm90
