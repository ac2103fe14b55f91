#include <algorithm>

#include "../../arithmetic.h"
#include "maps.h"
#include "tensor_map.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// Of an operand, or what there is of it from `base` on: `outer` rows of `inner` elements, `pitch` apart, in
// boxes of so many.
Status encode_rows(const PlannedOperand& x, const void* base, int64_t inner, int64_t outer, int64_t pitch,
                   int box_inner, int box_outer, const GemmProblem& p, CUtensorMap* map) {
  const int64_t batch1 = x.batch_stride[1] ? p.batch[1] : 1, batch0 = x.batch_stride[0] ? p.batch[0] : 1;
  return encode_tensor_map({.base = base,
                            .rank = 4,
                            .extent = {inner, outer, batch1, batch0},
                            .stride = {1, pitch, x.batch_stride[1], x.batch_stride[0]},
                            .box = {box_inner, box_outer, 1, 1},
                            .bf16 = p.a.dtype == DType::kBF16},
                           map);
}

// Of an operand for tiles that have `rows` of it, `tile_rows` at most, which `share` blocks of a cluster load
// together.
Status operand_map(const PlannedOperand& x, const void* base, int64_t rows, int tile_rows, int share,
                   const GemmProblem& p, CUtensorMap* map) {
  const bool k_major = x.major == Major::kK;
  return encode_rows(x, base, x.inner(), x.outer(), x.ld, k_major ? kTileK : rows_block(tile_rows),
                     (k_major ? loaded_rows(rows, tile_rows, share) : kTileK) / share, p, map);
}

// For the first tile and all whole ones, and for a last one that is cut.
Status operand_maps(const PlannedOperand& x, const void* base, int tile_rows, int share, const GemmProblem& p,
                    CUtensorMap* map, CUtensorMap* edge) {
  const Status status = operand_map(x, base, x.rows, tile_rows, share, p, map);
  if (!status.ok() || x.major != Major::kK || x.rows < tile_rows || x.rows % tile_rows == 0) return status;
  return operand_map(x, base, x.rows % tile_rows, tile_rows, share, p, edge);
}

// Of an operand that is realigned, every eighth line. Where lines are no multiple of 8, `edge` is the map of
// the first of every 8, which are one more: up to the last one's end, as what is behind it is another's. The
// others' map ends with the last whole 8; if there are none, what it has of others' lines is shifted out.
Status lines_maps(const PlannedOperand& y, const void* base, const TileConfig& tile, const GemmProblem& p,
                  CUtensorMap* map, CUtensorMap* edge) {
  const RawStage stage(tile, y.major == Major::kMN);
  const auto encode = [&](int64_t of_8, int64_t count, CUtensorMap* to) {
    return encode_rows(y, base, (of_8 - 1) * y.ld + y.inner(), count, 8 * y.ld, 8 * stage.vectors,
                       stage.box_lines, p, to);
  };
  const int64_t whole = y.outer() / 8, rest = y.outer() % 8;
  Status status = rest ? encode(rest, whole + 1, edge) : Status{};
  if (whole == 0)
    *map = *edge;
  else if (status.ok())
    status = encode(8, whole, map);
  return status;
}

// Of x's rows that are every eighth, from each of the first eight on, so many of them at a time.
Status every_eighth_maps(const PlannedOperand& x, const void* base, int rows, const GemmProblem& p,
                         int64_t align, CUtensorMap (&maps)[8]) {
  for (int64_t first = 0; first < std::min<int64_t>(8, x.rows); ++first) {
    const int64_t late = first * x.ld % align;
    const uint8_t* const from = static_cast<const uint8_t*>(base) + 2 * (first * x.ld - late);
    const Status status = encode_rows(x, from, late + x.k, ceil_div(x.rows - first, 8), 8 * x.ld, kTileK,
                                      rows, p, &maps[first]);
    if (!status.ok()) return status;
  }
  return {};
}

Lines lines_of(const PlannedOperand& x, const void* base, int align) {
  return {base,
          x.ld,
          {x.batch_stride[0], x.batch_stride[1]},
          static_cast<int>(x.inner()),
          static_cast<int>(x.outer()),
          align,
          {},
          {}};
}

// Of so many rows of so many products of D, or of C, which is as D is.
Status result_map(const GemmProblem& p, const Output& out, const void* base, int64_t rows, int64_t products,
                  int columns, CUtensorMap* map) {
  return encode_tensor_map({.base = base,
                            .rank = 3,
                            .extent = {p.n, rows, products},
                            .stride = {1, out.pitch, out.batch_stride},
                            .box = {out.swap ? 16 : columns, out.swap ? columns : 16, 1},
                            .bf16 = p.d == DType::kBF16},
                           map);
}

}  // namespace

Status load_maps(const Plan& plan, const void* x_base, const void* y_base, const GemmProblem& p,
                 EighthsParams* params) {
  const PlannedOperand &x = plan.x(), &y = plan.y();
  const Config& c = plan.config;
  const TileConfig& tile = kTiles[c.tile];
  Status status;
  if (tile.eighths()) {
    const int align = eighths_align(x.ld);
    params->lines = lines_of(x, x_base, align);
    status = every_eighth_maps(x, x_base, tile.tile_m / c.cluster_n, p, align, params->every);
  } else {
    status = operand_maps(x, x_base, tile.result_m(), c.cluster_n, p, &params->x, &params->x_edge);
  }
  if (!status.ok()) return status;
  if (!tile.realigns())
    return operand_maps(y, y_base, tile.result_n(), c.cluster_m, p, &params->y, &params->y_edge);
  params->lines = lines_of(y, y_base, 8);
  return lines_maps(y, y_base, tile, p, &params->y, &params->y_edge);
}

Status up_map(const Plan& plan, const void* b_up, const GemmProblem& p, CUtensorMap* map) {
  const Config& c = plan.config;
  const TileConfig& tile = kTiles[c.tile];
  const int rows = c.swap ? tile.result_m() : tile.result_n(), share = c.swap ? c.cluster_n : c.cluster_m;
  return operand_map(plan.b_up, b_up, plan.b_up.rows, rows, share, p, map);
}

Status result_maps(const Plan& plan, const GemmProblem& p, EighthsParams* params) {
  const Output& out = params->out;
  const TileConfig& tile = kTiles[plan.config.tile];
  const auto encode = [&](const void* base, CUtensorMap* map, CUtensorMap* more) {
    const int columns = tile.strip_columns();
    if (!tile.eighths()) return result_map(p, out, base, p.m, p.batch_count(), columns, map);
    const int64_t rows = p.m / 8, rest = p.m % 8;
    const Status status = rest ? result_map(p, out, base, rows + 1, rest, columns, more) : Status{};
    if (rows == 0) *map = *more;
    return status.ok() && rows ? result_map(p, out, base, rows, 8, columns, map) : status;
  };
  if (!by_copy_engine(out.way)) return {};
  const Status status = encode(out.d, &params->d, &params->d_more);
  if (!status.ok() || !out.c) return status;
  return encode(out.c, &params->c, &params->c_more);
}

}  // namespace jaxgemm::cuda::sm90
