// The units of a block whose tiles are all of one product, or of a batch of equal ones.
//
// Every kind of product has such a class, which says which units a block has and where they lie:
//   find()             whether there is a first unit
//   next()             moves to the next one; false where there is none
//   unit()             the current one, with k_blocks, the steps of k that it multiplies
//   start(loads, unit) moves the operands that the loading warp loads to a unit
//   strip(unit, row)   where the results lie of the rows of a tile that begin at `row`
// GroupUnits (groups.cuh) are those of grouped products, ManyUnits (many.cuh) those of many products.
#pragma once

#include "engine.cuh"
#include "unaligned/every_eighth.cuh"

namespace jaxgemm::cuda::sm90 {

// Of a unit's loads: the bytes that each stage gets, and the first k.
struct StageStart {
  uint32_t bytes;
  int k;
};

// Where a unit's loads begin. For tiles of every eighth row, x_batch0 is the first of their rows (0 to 7) and
// x_batch1 its misalignment.
struct LoadStart {
  int row, col, k, k_blocks;
  int x_batch0, x_batch1, y_batch0, y_batch1;
};

template <typename E>
__device__ __forceinline__ LoadStart load_start(const typename E::Parameters& p, const Unit& unit) {
  LoadStart start{};
  start.row = unit.row * E::kResultM;
  start.col = unit.col * E::kResultN;
  start.k = unit.k_begin * E::kStepK;
  start.k_blocks = unit.k_blocks;
  if constexpr (E::kEveryEighth) {
    start.x_batch0 = unit.batch;
    start.x_batch1 = misalignment(p.lines, unit.batch);
    start.k = -start.x_batch1;
    return start;
  }
  if (p.schedule.products > 1) {
    const int batch0 = static_cast<int>(p.batch.inner(unit.batch));
    const int batch1 = unit.batch - batch0 * static_cast<int>(p.batch.inner.divisor);
    start.x_batch0 = batch0 * p.batch.x_outer;
    start.x_batch1 = batch1 * p.batch.x_inner;
    start.y_batch0 = batch0 * p.batch.y_outer;
    start.y_batch1 = batch1 * p.batch.y_inner;
  }
  return start;
}

// How many units a block has, where that is known when the kernel is compiled.
enum class Waves : uint8_t { kAny, kOne, kSeveral };

template <typename E, Waves kWaves = Waves::kAny>
class TileUnits {
 public:
  __device__ __forceinline__ TileUnits(const typename E::Parameters& p, const ClusterPlace& place)
      : p_(p), place_(place), index_(place.first_unit) {}

  // A grid has no more clusters than there are units.
  __device__ __forceinline__ bool find() const { return true; }
  __device__ __forceinline__ bool next() {
    if constexpr (kWaves == Waves::kOne) return false;
    index_ = place_.next(p_.schedule, index_);
    return index_ < p_.schedule.units;
  }
  __device__ __forceinline__ Unit unit() const {
    const bool one = kWaves == Waves::kAny ? p_.schedule.one_wave : kWaves == Waves::kOne;
    return to_tile_rows<E>(p_, one ? only_unit(p_.schedule) : unit_at(p_.schedule, place_, index_));
  }

  template <typename Loads>
  __device__ __forceinline__ StageStart start(Loads& loads, const Unit& unit) const {
    const LoadStart at = load_start<E>(p_, unit);
    const uint32_t bytes = loads.x.start(at.row, at.x_batch0, at.x_batch1) +
                           loads.y.start(at.col, at.y_batch0, at.y_batch1) +
                           loads.up.start(E::kGated == Axis::kRows ? at.row : at.col, 0, 0);
    return {bytes, at.k};
  }

  __device__ __forceinline__ Strip strip(const Unit& unit, int row) const {
    return {int64_t(unit.row) * E::kResultM + row, int64_t(unit.col) * E::kResultN, unit.split, unit.batch};
  }

 private:
  const typename E::Parameters& p_;
  const ClusterPlace& place_;
  uint32_t index_;
};

}  // namespace jaxgemm::cuda::sm90
