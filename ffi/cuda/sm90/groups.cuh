// Which tiles of which groups a block works on, where only the device knows how many rows each group has.
//
// Each warp finds its block's units itself, from the sizes in memory: 32 groups at a time, one a lane, by
// sums over lanes. A block's units only move forward, so a warp looks at each size once. Nothing else is
// needed: no kernel before the product, no workspace, and no room in shared memory that would limit the
// number of groups.
//
// Sizes below 0 count as 0, and what they sum to beyond a batch's tokens is cut off. Tokens that remain are a
// group more, which has no weights: its results are zeros, as are those of groups whose weights are not held.
#pragma once

#include "tile_units.cuh"

namespace jaxgemm::cuda::sm90 {

// Where 32 groups begin and end, one a lane. Groups are numbered through all batches, and so are tokens. Each
// batch has one entry more, its last: the tokens that its groups leave over.
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

// A tile of tokens of one group, and of its weights' columns.
struct TokenUnit {
  int batch, group;  // the group among those that are held
  int row, end;      // the tile's first token, wherever tokens lie, and the group's end, in the batch
  int tile;          // its number along the weights' columns
  int k_blocks;      // 0 where results are zeros
  bool alone;        // the group has one tile of tokens, so that no other reads these weights
};

// The units of a block that multiply tokens by weights. Groups follow each other; the tiles of one are walked
// `walk_height` rows at a time, down these first and then along the columns.
template <typename E>
class TokenUnits {
  static constexpr bool kOnRows = E::kTokens == Axis::kRows;
  static constexpr uint32_t kTileTokens = kOnRows ? E::kResultM : E::kResultN;   // tokens of a tile
  static constexpr uint32_t kTileWeights = kOnRows ? E::kResultN : E::kResultM;  // and columns of weights

 public:
  __device__ __forceinline__ TokenUnits(const typename E::Parameters& p, const ClusterPlace& place)
      : p_(p), place_(place), window_(p.groups), index_(place.first_unit), first_(*p.groups.offset) {
    count_tiles(0);
  }

  // Moves to the block's unit `index_`, in this window of groups or a later one; false where no unit is left.
  __device__ __forceinline__ bool find() {
    for (;;) {
      const uint32_t found = __ballot_sync(0xffffffffu, index_ < tiles_end_ * p_.groups.columns);
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
  __device__ __forceinline__ const TokenUnit& unit() const { return unit_; }

  template <typename Loads>
  __device__ __forceinline__ StageStart start(Loads& loads, const TokenUnit& unit) const {
    const int x_batch = unit.batch * p_.batch.x_outer, y_batch = unit.batch * p_.batch.y_outer;
    const int weights = unit.tile * kTileWeights;
    // Where a group has several tiles of tokens, these read the same weights at about the same time.
    const L2Policy policy = unit.alone ? L2Policy::kStreamed : L2Policy::kNormal;
    if constexpr (kOnRows) {
      return {loads.x.start(unit.row, unit.end - unit.row, x_batch) +
                  loads.y.start(weights, y_batch, unit.group, policy) +
                  loads.up.start(weights, y_batch, unit.group, policy),
              0};
    } else {
      return {loads.x.start(weights, x_batch, unit.group, policy) +
                  loads.y.start(unit.row, unit.end - unit.row, y_batch) +
                  loads.up.start(weights, x_batch, unit.group, policy),
              0};
    }
  }

  __device__ __forceinline__ Strip strip(const TokenUnit& unit, int row) const {
    const int weights = unit.tile * static_cast<int>(kTileWeights);
    return {(kOnRows ? unit.row : weights) + row,
            kOnRows ? weights : unit.row,
            0,
            unit.batch,
            unit.end,
            unit.group};
  }

 private:
  __device__ __forceinline__ uint32_t tiles() const {
    return (window_.end() - window_.begin() + kTileTokens - 1) / kTileTokens;
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
    const GroupTable& table = p_.groups;
    const uint32_t begin = __shfl_sync(0xffffffffu, window_.begin(), lane);
    const uint32_t end = __shfl_sync(0xffffffffu, window_.end(), lane);
    const uint32_t rows = (end - begin + kTileTokens - 1) / kTileTokens;
    const uint32_t within = index_ - (__shfl_sync(0xffffffffu, tiles_end_, lane) - rows) * table.columns;
    // As rows and columns of the engine, whichever of them are tokens.
    const auto [engine_row, engine_column] = walked_tile(within, kOnRows ? rows : table.columns,
                                                         kOnRows ? table.columns : rows, table.walk_height);
    const uint32_t row = kOnRows ? engine_row : engine_column, column = kOnRows ? engine_column : engine_row;
    const uint32_t entry = window_.first() + lane, batch = entry / window_.each();
    const uint32_t group = entry - batch * window_.each(), before = batch * table.rows;
    const uint32_t held = group - first_;  // far above all others where it comes before the first
    unit_.batch = static_cast<int>(batch);
    unit_.group = static_cast<int>(held);
    unit_.row = static_cast<int>(begin - before + row * kTileTokens);
    unit_.end = static_cast<int>(end - before);
    unit_.tile =
        static_cast<int>(kOnRows ? column * place_.cols + place_.col : column * place_.rows + place_.row);
    unit_.alone = rows == 1;
    const bool has_weights = group < table.count && held < table.held;
    unit_.k_blocks = has_weights ? static_cast<int>(table.k_blocks) : 0;
  }

  const typename E::Parameters& p_;
  const ClusterPlace& place_;
  GroupWindow window_;
  uint32_t index_, tiles_end_ = 0;  // tiles of tokens up to this lane's group's end
  uint32_t first_;                  // the group of the first weights
  TokenUnit unit_{};
};

// A tile of the sum over one group's tokens.
struct SumUnit {
  int batch, product;     // product counts the results of all batches
  int row, col;           // in tiles
  int k_begin, k_blocks;  // the first token; k_blocks is 0 where there are none
  int last_lines;         // tokens in the last step
};

// The units of a block that sum over tokens. The schedule counts them, as every group has a result.
template <typename E>
class SumUnits {
 public:
  __device__ __forceinline__ SumUnits(const typename E::Parameters& p, const ClusterPlace& place)
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
    unit_.row = unit.row;
    unit_.col = unit.col;
    unit_.k_begin = static_cast<int>(begin - batch * table.rows);
    unit_.k_blocks = (tokens + E::kStepK - 1) / E::kStepK;
    unit_.last_lines = tokens - (unit_.k_blocks - 1) * E::kStepK;
    return true;
  }
  __device__ __forceinline__ bool next() {
    index_ += place_.unit_stride;
    return find();
  }
  __device__ __forceinline__ const SumUnit& unit() const { return unit_; }

  template <typename Loads>
  __device__ __forceinline__ StageStart start(Loads& loads, const SumUnit& unit) const {
    return {loads.x.start(unit.row * E::kResultM, unit.batch * p_.batch.x_outer, 0) +
                loads.y.start(unit.col * E::kResultN, unit.batch * p_.batch.y_outer, 0),
            unit.k_begin};
  }

  __device__ __forceinline__ Strip strip(const SumUnit& unit, int row) const {
    return {unit.row * E::kResultM + row, unit.col * E::kResultN, 0, unit.product};
  }

 private:
  const typename E::Parameters& p_;
  const ClusterPlace& place_;
  GroupWindow window_;
  uint32_t index_;
  uint32_t first_;  // the group of the first result
  SumUnit unit_{};
};

// Clears what the last step of a sum holds of other groups' tokens: the lines from `lines` on, of both
// operands, as infinity times zero is no zero. A line is one token's, so whole lines are cleared.
template <typename E>
__device__ __forceinline__ void clear_after_tokens(const SharedLayout<E>& shared, int stage, int lines,
                                                   int warpgroup) {
  if (lines == E::kStepK) return;
  constexpr int kThreads = E::kPingPong ? 128 : 128 * E::kConsumers;
  const int thread = static_cast<int>(threadIdx.x) - 128 - (E::kPingPong ? 128 * warpgroup : 0);
  const uint32_t x = shared.x + stage * E::kBytesX, y = shared.y + stage * E::kBytesY;
#pragma unroll 1
  for (int at = lines * 128 + thread * 16; at < E::kStepK * kLineBytes; at += kThreads * 16) {
#pragma unroll
    for (int block = 0; block < E::kBytesX; block += E::kStepK * kLineBytes)
      store_shared(x + block + at, uint4{});
#pragma unroll
    for (int block = 0; block < E::kBytesY; block += E::kStepK * kLineBytes)
      store_shared(y + block + at, uint4{});
  }
  fence_shared_to_async();
  // With planes a warpgroup may be at the barrier that is its own while another is here.
  constexpr auto kBarrier = E::kPlanes ? NamedBarrier::kConsumers : NamedBarrier::kOwn;
  sync<kBarrier>(E::kPingPong ? warpgroup : 0, kThreads);
}

template <typename E>
using GroupUnits = std::conditional_t<E::kTokens == Axis::kK, SumUnits<E>, TokenUnits<E>>;

}  // namespace jaxgemm::cuda::sm90
