#include <algorithm>
#include <bit>

#include "../../arithmetic.h"
#include "group_table.h"
#include "parameters.cuh"
#include "plan.h"
#include "unit_counts.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// Columns of clusters along the weights.
int64_t weight_columns(const Plan& plan) {
  const Config& c = plan.config;
  const TileConfig& t = kTiles[c.tile];
  return t.tokens == Axis::kRows ? ceil_div(ceil_div(plan.y().rows, t.result_n()), c.cluster_n)
                                 : ceil_div(ceil_div(plan.x().rows, t.result_m()), c.cluster_m);
}

// The engine's rows of tiles that are walked together. The kernel counts the tiles of so many rows in 32
// bits, and a group may have all tokens.
int64_t walk_height(const Plan& plan, const GemmProblem& p) {
  const TileConfig& t = kTiles[plan.config.tile];
  const int64_t columns = t.tokens == Axis::kColumns ? ceil_div(p.m, t.result_n()) : weight_columns(plan);
  return std::clamp<int64_t>(INT32_MAX / std::max<int64_t>(1, columns), 1, plan.config.walk_height);
}

}  // namespace

GroupTable group_table(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers) {
  const bool sums = p.groups.form == Form::kSums;
  return {.sizes = buffers.sizes,
          .offset = buffers.offset,
          .count = static_cast<uint32_t>(p.groups.count),
          .stride = static_cast<uint32_t>(p.groups.sizes_batched ? p.groups.count : 0),
          .held = static_cast<uint32_t>(p.batch[1]),
          .batches = static_cast<uint32_t>(p.batch[0]),
          .rows = static_cast<uint32_t>(sums ? p.k : p.m),
          .columns = static_cast<uint32_t>(weight_columns(plan)),
          .walk_height = static_cast<uint32_t>(walk_height(plan, p)),
          .k_blocks = static_cast<uint32_t>(ceil_div(p.k, step_k(p)))};
}

TileSchedule make_grouped_schedule(const Plan& plan, const GemmProblem& p, int multiprocessors) {
  const Config& c = plan.config;
  const TileConfig& t = kTiles[c.tile];
  TileSchedule s{};
  if (t.tokens == Axis::kK) {
    s = make_schedule(plan, p, multiprocessors);
  } else {
    // Every group may have a last tile that is cut, and so may the tokens without a group.
    const int64_t tile = t.tokens == Axis::kRows ? t.result_m() : t.result_n();
    const int64_t tiles = p.batch[0] * (ceil_div(p.m, tile) + p.groups.count + 1);
    s.units = static_cast<uint32_t>(tiles * weight_columns(plan));
    s.cluster_m = static_cast<uint8_t>(c.cluster_m);
    s.cluster_n = static_cast<uint8_t>(c.cluster_n);
    s.cluster_shift = static_cast<uint8_t>(std::countr_zero(static_cast<unsigned>(c.cluster())));
    s.slices = 1;
    s.products = 1;
    const int64_t resident = t.blocks * resident_clusters(multiprocessors, c.cluster());
    s.resident = static_cast<uint16_t>(std::min<int64_t>(s.units, resident));
  }
  s.one_wave = s.columns_first = false;
  s.narrow_col = -1;
  return s;
}

}  // namespace jaxgemm::cuda::sm90
