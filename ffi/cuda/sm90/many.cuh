// Many products of different shapes in one launch. The host knows the shapes, so it numbers the units of all
// products through; a warp finds a unit's product by comparing the number with where each product's units
// end. There are no clusters, no split of K and no epilogue.
#pragma once

#include "epilogue.cuh"
#include "groups.cuh"
#include "mainloop.cuh"

namespace jaxgemm::cuda::sm90 {

// One tile of one product.
struct ManyUnit {
  const ManyEntry& of;
  int row, col;  // its first, of x and of y
};

// Finds units. Lanes have the ends of products, 32 apart.
template <typename E>
class ManyUnits {
  static constexpr int kEach = (kManyEntries + 31) / 32;  // of a lane

 public:
  __device__ __forceinline__ explicit ManyUnits(const ManyParams& p) : p_(p) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t entry = threadIdx.x % 32 + 32 * i;
      end_[i] = entry < kManyEntries ? p.units_end[entry] : UINT32_MAX;
    }
  }

  // Unit `index`, which exists. All lanes of a warp ask for the same one.
  __device__ __forceinline__ ManyUnit operator()(uint32_t index) const {
    uint32_t before = 0;  // products whose units end before this one
#pragma unroll
    for (int i = 0; i < kEach; ++i) before += __popc(__ballot_sync(0xffffffffu, end_[i] <= index));
    const ManyEntry& of = p_.entries[before];
    const uint32_t rows = (of.rows + E::kTileM - 1) / E::kTileM,
                   columns = (of.cols + E::kTileN - 1) / E::kTileN;
    const auto [row, column] = walked_tile(index - of.first_unit, rows, columns, min(p_.walk, rows));
    return {of, static_cast<int>(row * E::kTileM), static_cast<int>(column * E::kTileN)};
  }

 private:
  const ManyParams& p_;
  uint32_t end_[kEach];
};

// Consumer warpgroup `group` of a block. Ping-pong groups take turns as in consume().
template <typename E>
__device__ __forceinline__ void consume_many(const ManyParams& p, const SharedLayout<E>& shared, int group,
                                             int warp) {
  const ClusterPlace place = own_place(p.schedule);
  const ManyUnits<E> units(p);
  RingPosition<E::kStages> ring;
  const int row = E::kPingPong ? 0 : group * E::kGroupRows;
  int turn = 0;
  for (uint32_t index = place.first_unit; index < p.schedule.units; index += place.unit_stride, ++turn) {
    const ManyUnit unit = units(index);
    const int k_blocks = unit.of.k_blocks, left = unit.of.rows - unit.row;
    if constexpr (E::kPingPong) {
      if (turn % 2 != group) {
        ring.skip(k_blocks);
        continue;
      }
      if (turn > 0) named_barrier_sync(1 + group, 256);
    } else if (row >= left) {  // no row is this warpgroup's
      pass_stages<E>(shared, place, ring, group, k_blocks);
      continue;
    }
    const auto issued = [&] {
      if constexpr (E::kPingPong) {
        if (index + place.unit_stride < p.schedule.units) named_barrier_arrive(2 - group, 256);
      }
    };
    Accumulators<E> acc;
    if (E::kBlocksM == 1 || left > 64) [[likely]]
      multiply<E, E::kTileN>(acc, shared, place, ring, row, k_blocks, [](int, int) {}, [] {}, issued);
    else if constexpr (E::kBlocksM > 1)
      multiply<E, E::kTileN, E::kBlocksM / 2>(
          acc, shared, place, ring, row, k_blocks, [](int, int) {}, [] {}, issued);
    // Products are stored in different ways, so the buffers' turns begin anew with each tile.
    EpilogueWarp<E> epilogue(unit.of, shared, warp);
    epilogue.drain();
    __syncwarp();
    epilogue.store(acc, {unit.row + row + warp % 4 * 16, unit.col, 0, 0});
  }
  EpilogueWarp<E>(p.entries[0], shared, warp).drain();
}

// The lines of one operand, `rows` in all, for the tile that begins at `line`. Adds the bytes that a stage
// gets. Boxes have 64 lines whatever the product, so that no map is needed for the last tile.
template <Major kMajor, int kLines, int kStageBytes>
__device__ __forceinline__ auto many_operand(const CUtensorMap& map, uint32_t shared, int rows, int line,
                                             uint32_t& bytes) {
  if constexpr (kMajor == Major::kK) {
    TokenOperand<kLines, false, kStageBytes> operand(map, shared, 1, 0, 1);
    bytes += operand.start(line, rows - line, 0);
    return operand;
  } else {
    TmaOperand<kMajor, kLines, 64, false, kStageBytes> operand(map, map, shared, rows, 1, 0, 1);
    bytes += operand.start(line, 0, 0);
    return operand;
  }
}

// The loading warp. Where the first load goes is computed before the barriers are `ready`.
template <typename E, typename Ready>
__device__ __forceinline__ void produce_many(const ManyParams& p, const SharedLayout<E>& shared,
                                             Ready&& ready) {
  static_assert((E::kX == Major::kK || E::kBlockX == 64) && (E::kY == Major::kK || E::kBlockY == 64));
  const ClusterPlace place = own_place(p.schedule);
  const ManyUnits<E> units(p);
  RingFill<E> ring(0, shared);
  for (uint32_t index = place.first_unit; index < p.schedule.units; index += place.unit_stride) {
    const auto [of, row, col] = units(index);
    uint32_t bytes = 0;
    const auto x = many_operand<E::kX, E::kLinesX, E::kBytesX>(of.x, shared.x, of.rows, row, bytes);
    const auto y = many_operand<E::kY, E::kLinesY, E::kBytesY>(of.y, shared.y, of.cols, col, bytes);
    if (index == place.first_unit) ready();
    ring.fill(x, y, NoOperand{}, bytes, 0, of.k_blocks);
  }
}

// The grid has no more blocks than there are units.
template <typename E>
__global__ void __launch_bounds__(E::kThreads, 1) many_sm90(const __grid_constant__ ManyParams p) {
  extern __shared__ uint8_t dynamic_shared[];
  const SharedLayout<E> shared(dynamic_shared);
  const int warp = uniform_warp();
  const auto ready = [&] {
    __syncthreads();
    wait_for_previous_kernel();
  };
  if (warp >= 4) {
    ready();
    take_registers<E::kConsumerRegisters>();
    consume_many<E>(p, shared, warp / 4 - 1, warp - 4);
    named_barrier_sync(3, 128 * E::kConsumers);  // as in gemm_sm90
    release_next_kernel();
  } else {
    give_registers<E::kProducerRegisters>();
    if (warp == 0) {
      produce_many<E>(p, shared, ready);
    } else {
      if (warp == 1 && elect_one()) {
        for (int i = 0; i < E::kStages; ++i) {
          mbarrier_init(shared.full + 8 * i, 1);
          mbarrier_init(shared.empty + 8 * i, E::kPingPong ? 1 : E::kConsumers);
        }
        mbarrier_init_fence();
      }
      __syncwarp();
      ready();
    }
  }
}

}  // namespace jaxgemm::cuda::sm90
