// The loop over k: copies run kStages - 1 tiles ahead, fragments one step of 16 ahead of the products.
//
// There is one barrier for each tile, before the last step's products: it frees the stage that was just read
// and publishes the next one, whose first fragments load while the tensor cores still work on registers.
#pragma once

#include "engine.cuh"

namespace jaxgemm::cuda::sm80 {

template <typename E>
__device__ __forceinline__ void clear(typename E::Accumulators& acc) {
#pragma unroll
  for (int i = 0; i < E::kBlocksM; ++i) {
#pragma unroll
    for (int j = 0; j < E::kBlocksN; ++j) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0.f;
  }
}

template <typename E>
__device__ __forceinline__ void multiply(typename E::Accumulators& acc,
                                         const uint32_t (&a)[E::ReaderA::kBlocks][4],
                                         const uint32_t (&b)[E::ReaderB::kBlocks][4]) {
#pragma unroll
  for (int i = 0; i < E::kBlocksM; ++i) {
#pragma unroll
    for (int jj = 0; jj < E::kBlocksN; ++jj) {
      // Back and forth along n, so that neighbouring instructions share an operand.
      const int j = i % 2 ? E::kBlocksN - 1 - jj : jj;
      mma_16x8x16<typename E::In>(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

// One unit's loop: `tiles` tiles, only `tail` of k in the last.
template <typename E>
class Loop {
  static constexpr int kSteps = E::kK / 16;
  static constexpr uint32_t kEnd = E::kStages * E::kStageBytes;
  static_assert(kSteps % 2 == 0, "fragments alternate between two sets of registers");

 public:
  Loop() = default;
  __device__ __forceinline__ Loop(const typename E::CopyA& copy_a, const typename E::CopyB& copy_b, int tiles,
                                  int tail)
      : copy_a_(copy_a), copy_b_(copy_b), tiles_(tiles), to_copy_(tiles), tail_(tail) {}

  // Starts the first copies, into all stages but the last. No thread may be reading those.
  __device__ __forceinline__ void fill(uint32_t stages) {
#pragma unroll
    for (int s = 0; s < E::kStages - 1; ++s) {
      begin(stages + s * E::kStageBytes);
      finish(stages + s * E::kStageBytes);
    }
  }

  // Adds the unit's products to acc. Until its first barrier the epilogue may still use the last stage; after
  // its last one no thread reads any stage.
  __device__ __forceinline__ void run(typename E::Accumulators& acc, uint32_t stages) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const typename E::ReaderA reader_a(warp / E::kWarpsN * E::kWarpM);
    const typename E::ReaderB reader_b(warp % E::kWarpsN * E::kWarpN);
    uint32_t a[2][E::ReaderA::kBlocks][4], b[2][E::ReaderB::kBlocks][4];
    uint32_t read = 0, write = (E::kStages - 1) * E::kStageBytes;

    cp_async_wait<E::kStages - 2>();
    __syncthreads();
    reader_a.load(a[0], stages, 0);
    reader_b.load(b[0], stages + E::kTileBytesA, 0);
#pragma unroll 1
    for (; tiles_ > 0; --tiles_) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps - 1) {
          finish(stages + write);
          write = read;
          read = read + E::kStageBytes == kEnd ? 0 : read + E::kStageBytes;
          cp_async_wait<E::kStages - 2>();
          __syncthreads();
        }
        const int next = (step + 1) % kSteps;
        reader_a.load(a[(step + 1) % 2], stages + read, next);
        reader_b.load(b[(step + 1) % 2], stages + read + E::kTileBytesA, next);
        if (step == 0) begin(stages + write);
        multiply<E>(acc, a[step % 2], b[step % 2]);
      }
    }
    cp_async_wait<0>();
    __syncthreads();
  }

 private:
  __device__ __forceinline__ void begin(uint32_t stage) {
    // Tiles beyond the end are filled with zeros that are not multiplied: cheaper than a branch.
    const int valid = to_copy_ > 1 ? E::kK : to_copy_ == 1 ? tail_ : 0;
    --to_copy_;
    copy_a_.begin(stage, valid);
    copy_b_.begin(stage + E::kTileBytesA, valid);
    cp_async_commit();
  }
  __device__ __forceinline__ void finish(uint32_t stage) {
    copy_a_.finish(stage);
    copy_b_.finish(stage + E::kTileBytesA);
  }

  typename E::CopyA copy_a_;
  typename E::CopyB copy_b_;
  int tiles_, to_copy_, tail_;
};

}  // namespace jaxgemm::cuda::sm80
