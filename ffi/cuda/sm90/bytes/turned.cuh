// The main loop for an x of 8 bits that is MN-major, which wgmma does not take from shared memory: x comes
// from registers.
//
// A stage has a line for each k, of 128 rows of x. A warp's part of an instruction is 16 rows by 32 of k.
// ldmatrix transposes pairs of rows, as its elements have 16 bits: a lane gets two rows of two lines in each
// register, and PRMT makes one row of four lines of two registers. So the lane's rows, which in the
// instruction are 8 apart, are neighbours in x (row_of_line in staged.cuh). Each of ldmatrix's rows is a line
// of the stage. Lanes name the lines in such an order that a lane gets the lines that it needs side by side,
// without bank conflicts.
//
// Two sets of fragments take turns: one set is loaded while the other is multiplied. A stage is released when
// its last product is done.
#pragma once

#include "../../device/mma.cuh"
#include "../multiply.cuh"

namespace jaxgemm::cuda::sm90 {

// Loads a lane's fragments of a stage of x, of 16 rows from `row` on.
class TurnedRows {
 public:
  __device__ __forceinline__ TurnedRows(int row, int lane) {
    // ldmatrix takes the addresses of matrices 0 to 3 from 8 lanes each. Matrices 0 and 1 are for the first
    // 16 lines, matrices 2 and 3 for the other lines. Of each four lines (a quad), lanes with lane % 4 < 2
    // have the first two lines from the even matrix and the last two (`late`) from the odd matrix, and other
    // lanes the other way round.
    const int matrix = lane / 8, line = lane % 8, quad = line / 2;
    const int late = (matrix % 2 == 0) == (quad < 2) ? 0 : 2;
    const int k = matrix / 2 * 16 + quad * 4 + late + line % 2;
    offset_ = k * kLineBytes + ((row / 16 ^ k % 8) << 4);
    even_ = lane % 4 < 2 ? 0x6420 : 0x2064;
  }

  // Loads the fragments of instruction number `step` of the stage at address `stage`.
  __device__ __forceinline__ void load(uint32_t (&x)[4], uint32_t stage, int step) const {
    uint32_t pairs[4];
    load_matrix_x4<true>(pairs, stage + step * (kInstructionBytes * kLineBytes) + offset_);
    x[0] = __byte_perm(pairs[0], pairs[1], even_);
    x[1] = __byte_perm(pairs[0], pairs[1], even_ ^ kOdd);
    x[2] = __byte_perm(pairs[2], pairs[3], even_);
    x[3] = __byte_perm(pairs[2], pairs[3], even_ ^ kOdd);
  }

 private:
  // `even_` is PRMT's selector for the even row; XOR with kOdd makes it the selector for the odd row.
  uint32_t offset_, even_;
  static constexpr uint32_t kOdd = 0x1111;
};

// Fragments of x that are loaded and multiplied together.
template <typename E>
struct TurnedSet {
  // Instructions of a stage, and of a set. Wide tiles leave registers for two sets of half a stage.
  static constexpr int kSteps = kLineBytes / kInstructionBytes;
  static constexpr int kSize = E::kTileN > 128 ? kSteps / 2 : kSteps, kOfStage = kSteps / kSize;
  using Y = OperandTile<Major::kK>;
  using Mma = Wgmma<typename E::Product, E::kTileN, E::kX, E::kY>;

  uint32_t x[kSize][4];

  // Loads set `number` of the stage at address `stage`.
  __device__ __forceinline__ void load(const TurnedRows& rows, uint32_t stage, int number) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) rows.load(x[i], stage, number * kSize + i);
  }
  // Issues the products of set `number` by the stage's part of y.
  __device__ __forceinline__ void multiply(Accumulators<E>& acc, uint64_t y, int number,
                                           uint32_t& accumulate) {
    // Keeps the loads before the products.
#pragma unroll
    for (int i = 0; i < 4 * kSize; ++i) asm volatile("" : "+r"(x[i / 4][i % 4])::"memory");
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      Mma::mma(acc.value[0], x[i], advance(y, (number * kSize + i) * Y::kStep), accumulate);
      accumulate = 1;
    }
    wgmma_commit();
  }
};

// The main loop, with the parameters of multiply().
template <typename E, typename Arrived, typename Started, typename Issued>
__device__ __forceinline__ void multiply_turned(Accumulators<E>& acc, const SharedLayout<E>& shared,
                                                const ClusterPlace& place, RingPosition<E::kStages>& ring,
                                                int row, int k_blocks, Arrived&& arrived, Started&& started,
                                                Issued&& issued) {
  static_assert(E::kBlocksM == 1 && E::kStepK == kLineBytes);
  using Set = TurnedSet<E>;
  constexpr int kSets = Set::kOfStage;
  const uint64_t y_base = Set::Y::descriptor(shared.y);
  const int thread = static_cast<int>(threadIdx.x % 128);
  const TurnedRows rows(row + thread / 32 * 16, thread % 32);
  StageRelease<E> release(shared, place);

  Set x[2];
  const auto load = [&](Set& set, int stage, int number) {
    set.load(rows, shared.x + stage * E::kBytesX, number);
  };
  const auto arrive = [&](int block, Set& set) {
    mbarrier_wait(shared.full + 8 * ring.stage, ring.parity);
    arrived(block, ring.stage);
    load(set, ring.stage, 0);
  };
  arrive(0, x[0]);
  uint32_t accumulate = 0;
  int stage = 0;
  // Multiplies set `number` of a stage, and meanwhile loads the next set.
  const auto multiply_set = [&](int block, int number, Set& set, Set& next) {
    if (number == 0) {
      stage = ring.stage;
      ring.next();
    }
    set.multiply(acc, advance(y_base, stage * (E::kBytesY / 16)), number, accumulate);
    if (block == 0 && number == kSets - 1) started();
    wgmma_wait<1>();
    if (number == 0) {
      release();
      release.hold(stage);
    }
    if (number + 1 < kSets)
      load(next, stage, number + 1);
    else if (block + 1 < k_blocks)
      arrive(block + 1, next);
  };
#pragma unroll 1
  for (int block = 0; block < k_blocks; block += 2 / kSets) {
    multiply_set(block, 0, x[0], x[1]);
    if (kSets == 2)
      multiply_set(block, 1, x[1], x[0]);
    else if (block + 1 < k_blocks)
      multiply_set(block + 1, 0, x[1], x[0]);
  }
  issued();
  wgmma_wait<0>();
  wgmma_pin(acc.value[0]);
  release();
}

}  // namespace jaxgemm::cuda::sm90
