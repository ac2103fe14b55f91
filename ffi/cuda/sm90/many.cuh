// Many products of different shapes in one launch. The host knows the shapes, so it numbers the units of all
// products through; a warp finds a unit's product by comparing the number with where each product's units
// end. There are no clusters, no split of K and no epilogue.
#pragma once

#include "groups.cuh"

namespace jaxgemm::cuda::sm90 {

// One tile of one product.
struct ManyUnit {
  const ManyEntry& of;
  int row, col;  // its first, of x and of y
  int k_blocks;
};

// The units of a block. Lanes have the ends of products, 32 apart.
template <typename E>
class ManyUnits {
  static constexpr int kEach = (kManyEntries + 31) / 32;  // of a lane

 public:
  __device__ __forceinline__ ManyUnits(const ManyParameters& p, const ClusterPlace& place)
      : p_(p), place_(place), index_(place.first_unit) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t entry = threadIdx.x % 32 + 32 * i;
      end_[i] = entry < kManyEntries ? p.units_end[entry] : UINT32_MAX;
    }
  }

  // A grid has no more blocks than there are units.
  __device__ __forceinline__ bool find() const { return true; }
  __device__ __forceinline__ bool next() {
    index_ += place_.unit_stride;
    return index_ < p_.schedule.units;
  }
  __device__ __forceinline__ ManyUnit unit() const {
    uint32_t before = 0;  // products whose units end before this one
#pragma unroll
    for (int i = 0; i < kEach; ++i) before += __popc(__ballot_sync(0xffffffffu, end_[i] <= index_));
    const ManyEntry& of = p_.entries[before];
    const uint32_t rows = (of.rows + E::kTileM - 1) / E::kTileM,
                   columns = (of.cols + E::kTileN - 1) / E::kTileN;
    const auto [row, column] = walked_tile(index_ - of.first_unit, rows, columns, min(p_.walk_height, rows));
    return {of, static_cast<int>(row * E::kTileM), static_cast<int>(column * E::kTileN), of.k_blocks};
  }

  template <typename Loads>
  __device__ __forceinline__ StageStart start(Loads& loads, const ManyUnit& unit) const {
    return {loads.x.start_in(unit.of.x, unit.of.rows, unit.row) +
                loads.y.start_in(unit.of.y, unit.of.cols, unit.col),
            0};
  }

  __device__ __forceinline__ Strip strip(const ManyUnit& unit, int row) const {
    return {unit.row + row, unit.col, 0, 0};
  }

 private:
  const ManyParameters& p_;
  const ClusterPlace& place_;
  uint32_t index_;
  uint32_t end_[kEach];
};

}  // namespace jaxgemm::cuda::sm90
