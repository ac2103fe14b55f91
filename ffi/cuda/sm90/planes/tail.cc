#include "tail.h"

#include <algorithm>
#include <cmath>

#include "../../planning.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// How many first rows of A have tiles that fill whole waves, or all but a little of the last whole wave; 0 if
// there is no whole wave, or no row beyond whole waves.
int64_t rows_of_whole_waves(const GemmProblem& p, const Config& c) {
  const TileConfig& t = kTiles[c.tile];
  const UnitCounts u(Shape(p, c.swap), t, c, kModelSms);
  const double across = c.swap ? u.rows : u.columns, along = c.swap ? u.columns : u.rows;
  const auto whole = static_cast<int64_t>(std::floor(u.all() / u.resident) * u.resident / across);
  if (double(whole) >= along) return 0;
  return whole * (c.swap ? t.result_n() * c.cluster_n : t.result_m() * c.cluster_m);
}

}  // namespace

bool has_tail(const GemmProblem& slab, const Config& config) {
  const bool single = slab.batch_count() == 1 && !slab.grouped();
  return single && of_planes(slab) && rows_of_whole_waves(slab, config) > 0;
}

double tail_units(const GemmProblem& slab, const Config& config) {
  const GemmProblem tail = row_parts(slab, config)[1].of(slab);
  return UnitCounts(Shape(tail, config.swap), kTiles[config.tile], config, kModelSms).all();
}

RowParts row_parts(const GemmProblem& slab, const Config& config) {
  RowParts parts{{{.rows = slab.m, .config = config}, {}}};
  if (config.tail == 1) return parts;
  auto& [head, tail] = parts;
  head.config.tail = 1;
  tail.config = head.config;
  head.rows = tail.begin = rows_of_whole_waves(slab, config);
  tail.rows = slab.m - tail.begin;
  const int64_t steps = std::max<int64_t>(1, ceil_div(slab.k, kStepK16));
  tail.config.split_k = static_cast<int>(std::min<int64_t>(config.tail, steps));
  return parts;
}

Cost cost_of_parts(const GemmProblem& slab, const Config& config, const Machine& machine) {
  Cost all{};
  for (const RowPart& part : row_parts(slab, config)) {
    const GemmProblem p = part.of(slab);
    const Cost x = cost(p, Shape(p, config.swap), kTiles[config.tile], part.config, machine);
    all.launch += x.launch;
    all.main_loop += x.main_loop;
    all.epilogue += x.epilogue;
    all.memory += x.memory;
    all.split += x.split;
    all.total += x.total - x.copies;
  }
  all.copies = split_time(slab);
  all.total += all.copies;
  return all;
}

}  // namespace jaxgemm::cuda::sm90
