#include <algorithm>
#include <bit>

#include "plan.h"
#include "schedule.cuh"
#include "unit_counts.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr bool every_first_unit_is_dealt_once() {
  for (const uint32_t size : {2, 4, 8}) {
    for (uint32_t count = 1; count <= kModelSms; ++count) {
      bool dealt[kModelSms] = {};
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t unit = gpc_ordered_unit(i, count, size);
        if (unit >= count || dealt[unit]) return false;
        dealt[unit] = true;
      }
    }
  }
  return true;
}
static_assert(every_first_unit_is_dealt_once());

// The order of tiles: in swaths of `height` rows of clusters.
void set_walk(int64_t height, int64_t columns, TileSchedule* s) {
  const int64_t rows = s->rows, last = rows % height ? rows % height : height;
  const uint32_t walked = static_cast<uint32_t>(s->narrow_stride > 0 ? columns - 1 : columns);
  s->product_tiles = Divisor(s->rows * walked);
  s->swath_tiles = Divisor(static_cast<uint32_t>(height) * walked);
  s->swath_rows = Divisor(static_cast<uint32_t>(height));
  s->last_swath_rows = Divisor(static_cast<uint32_t>(last));
}

// The pieces of K: partial results, or a cluster's slices.
void set_pieces(const Config& c, int64_t steps, TileSchedule* s) {
  s->splits = Divisor(static_cast<uint32_t>(c.partials()));
  s->slices = static_cast<uint8_t>(c.slices());
  s->k_each = static_cast<uint32_t>(steps / c.split_k);
  s->k_extra = static_cast<uint32_t>(steps % c.split_k);
}

}  // namespace

TileSchedule make_schedule(const Plan& plan, const GemmProblem& p, int multiprocessors) {
  const Config& c = plan.config;
  const TileConfig& tile = kTiles[c.tile];
  const PlannedOperand &x = plan.x(), &y = plan.y();
  const int64_t rows = unit_rows(tile, x.rows, c.cluster_m);
  const int64_t tile_columns = ceil_div(y.rows, tile.result_n());
  const int64_t columns = ceil_div(tile_columns, c.cluster_n);
  const int64_t products = p.batch_count() * c.partials();
  const int64_t units = rows * columns * products;
  TileSchedule s{};
  if (units > INT32_MAX / 4) return s;
  const int64_t resident =
      std::min<int64_t>(units, tile.blocks * resident_clusters(multiprocessors, c.cluster()));
  const int64_t height = std::min<int64_t>(c.walk_height, rows);
  s.units = static_cast<uint32_t>(units);
  s.cluster_m = static_cast<uint8_t>(c.cluster_m);
  s.cluster_n = static_cast<uint8_t>(c.cluster_n);
  s.cluster_shift = static_cast<uint8_t>(std::countr_zero(static_cast<unsigned>(c.cluster())));
  s.one_wave = one_wave(units, resident, c.cluster()) && (height == 1 || height == rows);
  s.columns_first = s.one_wave && height < rows;
  s.resident = static_cast<uint16_t>(resident);
  s.products = static_cast<uint32_t>(products);
  s.rows = static_cast<uint32_t>(rows);
  const bool narrow = has_narrow_edge(tile, y.rows);
  s.narrow_col = narrow ? static_cast<int>(tile_columns - 1) : -1;
  if (narrow && !s.one_wave)
    s.narrow_stride = static_cast<uint32_t>(narrow_stride(c, rows, columns, products, resident));
  // A grid with a block for each tile has a block for each narrow tile, too.
  if (s.narrow_stride > 0 && c.grid == Grid::kTiles) s.narrow_stride = s.rows;
  set_walk(height, columns, &s);
  set_pieces(c, ceil_div(p.k, step_k(p)), &s);
  return s;
}

std::array<uint32_t, 3> grid_of(const TileSchedule& s, const Plan& plan) {
  const Config& c = plan.config;
  if (!s.one_wave) return {(c.grid == Grid::kResident ? s.resident : s.units) << s.cluster_shift, 1, 1};
  const uint32_t columns = s.units / s.rows / s.products;  // a wave without clusters: units are tiles
  return s.columns_first ? std::array{columns, s.rows, s.products} : std::array{s.rows, columns, s.products};
}

}  // namespace jaxgemm::cuda::sm90
