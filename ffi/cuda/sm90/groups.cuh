// Which tiles of which groups a block works on, where only the device knows how many rows each group has.
//
// Each warp finds its block's units itself, from the sizes in memory: 32 groups at a time, one a lane, by
// sums over lanes. A block's units only move forward, so a warp looks at each size once. Nothing else is
// needed: no pass before the product, no workspace, and no room in shared memory that would limit the number
// of groups.
//
// Sizes below 0 count as 0, and what they sum to beyond a batch's tokens is cut off. Tokens that remain are a
// group more, which has no weights: its results are zeros, as are those of groups whose weights are not held.
#pragma once

#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

// Where 32 groups begin and end, one a lane. Groups of all batches are counted through, each batch's with the
// tokens that are left as the last, and so are tokens.
class GroupWindow {
 public:
  __device__ __forceinline__ explicit GroupWindow(const GroupTable& table) : table_(table) { load(); }

  // Moves on to the next 32; false where there are none.
  __device__ __forceinline__ bool advance() {
    if (first_ + 32 >= table_.batches * each()) return false;
    before_ = __shfl_sync(0xffffffffu, end_, 31);
    first_ += 32;
    load();
    return true;
  }

  __device__ __forceinline__ uint32_t first() const { return first_; }
  // Groups of a batch.
  __device__ __forceinline__ uint32_t each() const { return table_.count + 1; }
  // Of this lane's group.
  __device__ __forceinline__ uint32_t begin() const { return begin_; }
  __device__ __forceinline__ uint32_t end() const { return end_; }

 private:
  __device__ __forceinline__ void load() {
    const uint32_t lane = threadIdx.x % 32, entry = first_ + lane;
    const uint32_t batch = entry / each(), group = entry - batch * each();
    uint32_t size = table_.rows;
    if (batch < table_.batches && group < table_.count) {
      const int given = table_.sizes[batch * table_.stride + group];
      size = static_cast<uint32_t>(min(max(given, 0), static_cast<int>(table_.rows)));
    }
    // A group ends `size` tokens after the one before it, but no later than its batch. Such functions of the
    // end before are composed over lanes: min(end + size, limit).
    uint32_t limit = min(batch + 1, table_.batches) * table_.rows;
    const uint32_t all = table_.batches * table_.rows;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t size_before = __shfl_up_sync(0xffffffffu, size, distance);
      const uint32_t limit_before = __shfl_up_sync(0xffffffffu, limit, distance);
      if (lane >= distance) {
        limit = min(limit_before + size, limit);
        size = min(size_before + size, all);
      }
    }
    end_ = min(before_ + size, limit);
    begin_ = __shfl_up_sync(0xffffffffu, end_, 1);
    if (lane == 0) begin_ = before_;
  }

  const GroupTable& table_;
  uint32_t first_ = 0, before_ = 0;  // the first group, and the tokens before it
  uint32_t begin_ = 0, end_ = 0;
};

// What a block does at a time: a tile of one group.
struct GroupUnit {
  int batch, group;  // the group among those that are held
  int row, end;      // the tile's first token, and the group's end, in the batch
  int tile;          // of the result along the weights; in "sums" its row of tiles, and `column` its column
  int column, product;    // "sums" only: product counts the results of all batches
  int k_begin, k_blocks;  // k_blocks is 0 where results are zeros
  int last_lines;         // "sums" only: tokens in the last step
  bool alone;             // no other tile has the same weights
};

// A tile's place among those of a group, or of one of many products.
struct WalkedTile {
  uint32_t row, column;
};

// Tile number `index` of `rows` x `columns`, which are walked `walk` rows at a time, down these first and
// then along the columns.
__device__ __forceinline__ WalkedTile walked_tile(uint32_t index, uint32_t rows, uint32_t columns,
                                                  uint32_t walk) {
  const uint32_t patch = index / (walk * columns), first_row = patch * walk;
  const uint32_t height = min(walk, rows - first_row), in_patch = index - first_row * columns;
  const uint32_t column = in_patch / height;
  return {first_row + in_patch - column * height, column};
}

// The units of a block that multiply tokens by weights. Groups follow each other; the tiles of one are walked
// `walk` rows at a time, down these first and then along the columns.
template <typename E>
class TokenUnits {
  static constexpr bool kOnRows = E::kGrouped == Grouped::kRows;
  static constexpr uint32_t kTokens = kOnRows ? E::kResultM : E::kResultN;  // of a tile

 public:
  __device__ __forceinline__ TokenUnits(const GroupedParams& p, const ClusterPlace& place)
      : table_(p.groups),
        place_(place),
        window_(p.groups),
        index_(place.first_unit),
        first_(*p.groups.offset) {
    count_tiles(0);
  }

  // Moves to unit `index_`, or a later call's; false where there is none.
  __device__ __forceinline__ bool find() {
    for (;;) {
      const uint32_t found = __ballot_sync(0xffffffffu, index_ < tiles_end_ * table_.columns);
      if (found != 0) {
        take(__ffs(found) - 1);
        return true;
      }
      const uint32_t before = __shfl_sync(0xffffffffu, tiles_end_, 31);
      if (!window_.advance()) return false;
      count_tiles(before);
    }
  }
  __device__ __forceinline__ bool next() {
    index_ += place_.unit_stride;
    return find();
  }
  __device__ __forceinline__ const GroupUnit& unit() const { return unit_; }

 private:
  __device__ __forceinline__ uint32_t tiles() const {
    return (window_.end() - window_.begin() + kTokens - 1) / kTokens;
  }

  __device__ __forceinline__ void count_tiles(uint32_t before) {
    tiles_end_ = tiles();
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, tiles_end_, distance);
      if (threadIdx.x % 32 >= distance) tiles_end_ += other;
    }
    tiles_end_ += before;
  }

  // Takes the unit, which is of this lane's group.
  __device__ __forceinline__ void take(int lane) {
    const uint32_t begin = __shfl_sync(0xffffffffu, window_.begin(), lane);
    const uint32_t end = __shfl_sync(0xffffffffu, window_.end(), lane);
    const uint32_t rows = (end - begin + kTokens - 1) / kTokens;
    const uint32_t within = index_ - (__shfl_sync(0xffffffffu, tiles_end_, lane) - rows) * table_.columns;
    // As rows and columns of the engine, whichever of them are tokens.
    const auto [engine_row, engine_column] =
        walked_tile(within, kOnRows ? rows : table_.columns, kOnRows ? table_.columns : rows, table_.walk);
    const uint32_t row = kOnRows ? engine_row : engine_column, column = kOnRows ? engine_column : engine_row;
    const uint32_t entry = window_.first() + lane, batch = entry / window_.each();
    const uint32_t group = entry - batch * window_.each(), before = batch * table_.rows;
    const uint32_t held = group - first_;  // far above all others where it comes before the first
    unit_.batch = static_cast<int>(batch);
    unit_.group = static_cast<int>(held);
    unit_.row = static_cast<int>(begin - before + row * kTokens);
    unit_.end = static_cast<int>(end - before);
    unit_.tile =
        static_cast<int>(kOnRows ? column * place_.cols + place_.col : column * place_.rows + place_.row);
    unit_.k_begin = 0;
    unit_.alone = rows == 1;
    const bool has_weights = group < table_.count && held < table_.held;
    unit_.k_blocks = has_weights ? static_cast<int>(table_.k_blocks) : 0;
  }

  const GroupTable& table_;
  const ClusterPlace& place_;
  GroupWindow window_;
  uint32_t index_, tiles_end_ = 0;  // tiles of tokens up to this lane's group's end
  uint32_t first_;                  // the group of the first weights
  GroupUnit unit_{};
};

// The units of a block that sum over tokens. The schedule counts them, as every group has a result.
template <typename E>
class SumUnits {
 public:
  __device__ __forceinline__ SumUnits(const GroupedParams& p, const ClusterPlace& place)
      : p_(p), place_(place), window_(p.groups), index_(place.first_unit), first_(*p.groups.offset) {}

  __device__ __forceinline__ bool find() {
    if (index_ >= p_.schedule.units) return false;
    const Unit unit = unit_at(p_.schedule, place_, index_);
    const GroupTable& table = p_.groups;
    const uint32_t product = static_cast<uint32_t>(unit.batch), batch = product / table.held;
    const uint32_t group = first_ + (product - batch * table.held);  // of an offset below 0, far above all
    uint32_t begin = 0, end = 0;
    if (group < table.count) {
      const uint32_t entry = batch * window_.each() + group;
      while (entry >= window_.first() + 32) window_.advance();
      begin = __shfl_sync(0xffffffffu, window_.begin(), entry - window_.first());
      end = __shfl_sync(0xffffffffu, window_.end(), entry - window_.first());
    }
    const int tokens = static_cast<int>(end - begin);
    unit_.batch = static_cast<int>(batch);
    unit_.product = unit.batch;
    unit_.tile = unit.row;
    unit_.column = unit.col;
    unit_.k_begin = static_cast<int>(begin - batch * table.rows);
    unit_.k_blocks = (tokens + kTileK - 1) / kTileK;
    unit_.last_lines = tokens - (unit_.k_blocks - 1) * kTileK;
    return true;
  }
  __device__ __forceinline__ bool next() {
    index_ += place_.unit_stride;
    return find();
  }
  __device__ __forceinline__ const GroupUnit& unit() const { return unit_; }

 private:
  const GroupedParams& p_;
  const ClusterPlace& place_;
  GroupWindow window_;
  uint32_t index_;
  uint32_t first_;  // the group of the first result
  GroupUnit unit_{};
};

template <typename E>
using GroupUnits = std::conditional_t<E::kGrouped == Grouped::kSums, SumUnits<E>, TokenUnits<E>>;

}  // namespace jaxgemm::cuda::sm90
