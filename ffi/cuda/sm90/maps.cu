#include <algorithm>

#include "../../arithmetic.h"
#include "maps.h"
#include "tensor_map.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// A map of an operand from `base` on: `outer` lines of `inner` elements, `pitch` elements apart, in boxes of
// box_outer lines of box_inner elements.
Status encode_rows(const PlannedOperand& x, const void* base, int64_t inner, int64_t outer, int64_t pitch,
                   int box_inner, int box_outer, const GemmProblem& p, CUtensorMap* map) {
  const int64_t batch1 = x.batch_stride[1] ? p.batch[1] : 1, batch0 = x.batch_stride[0] ? p.batch[0] : 1;
  return encode_tensor_map({.base = base,
                            .rank = 4,
                            .extent = {inner, outer, batch1, batch0},
                            .stride = {1, pitch, x.batch_stride[1], x.batch_stride[0]},
                            .box = {box_inner, box_outer, 1, 1},
                            .type = p.a.dtype},
                           map);
}

// A map of an operand for tiles of `tile_rows` of its rows, if the operand has `rows` rows left. `sharers`
// blocks of a cluster load a tile together.
Status operand_map(const PlannedOperand& x, const void* base, int64_t rows, int tile_rows, int sharers,
                   const GemmProblem& p, CUtensorMap* map) {
  const bool k_major = x.major == Major::kK;
  return encode_rows(x, base, x.inner(), x.outer(), x.ld,
                     k_major ? step_k(p) : mn_block_rows(tile_rows, static_cast<int>(dtype_bytes(p.a.dtype))),
                     (k_major ? loaded_rows(rows, tile_rows, sharers) : step_k(p)) / sharers, p, map);
}

// `map` is the map for whole tiles, or for the only tile. `edge` is the map for the last tile, if the last
// tile is cut and not the only tile.
Status operand_maps(const PlannedOperand& x, const void* base, int tile_rows, int sharers,
                    const GemmProblem& p, CUtensorMap* map, CUtensorMap* edge) {
  const Status status = operand_map(x, base, x.rows, tile_rows, sharers, p, map);
  if (!status.ok() || x.major != Major::kK || x.rows < tile_rows || x.rows % tile_rows == 0) return status;
  return operand_map(x, base, x.rows % tile_rows, tile_rows, sharers, p, edge);
}

// The maps of an operand that is shifted on its way. A line of a map is 8 lines of the operand, of which a
// box takes one: the k-th of the 8 lines begins k pitches further on. If the count of lines is no multiple of
// 8, the last line of the map is cut. `edge` is then the map for the first `rest` of every 8 lines and ends
// with the operand's last line, as the memory behind that line is not the operand's. `map`, for the other
// lines, ends with the last whole 8 lines. If there are no whole 8 lines, all loads use `edge`, and shifting
// drops the elements of other lines that the loads bring.
Status lines_maps(const PlannedOperand& y, const void* base, const TileConfig& tile, const GemmProblem& p,
                  CUtensorMap* map, CUtensorMap* edge) {
  const RawStage stage(tile, y.major == Major::kMN);
  const auto encode = [&](int64_t lines, int64_t count, CUtensorMap* to) {  // `lines` of every 8
    return encode_rows(y, base, (lines - 1) * y.ld + y.inner(), count, 8 * y.ld, 8 * stage.vectors,
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

// For each `first` of 0 to 7, a map of x's rows first, first + 8, ..., with `rows` rows in a box. The map
// begins at the multiple of `align` before the first of these rows.
Status every_eighth_maps(const PlannedOperand& x, const void* base, int rows, const GemmProblem& p,
                         int64_t align, CUtensorMap (&maps)[8]) {
  for (int64_t first = 0; first < std::min<int64_t>(8, x.rows); ++first) {
    const int64_t before = first * x.ld % align;
    const uint8_t* const from = static_cast<const uint8_t*>(base) + 2 * (first * x.ld - before);
    const Status status = encode_rows(x, from, before + x.k, ceil_div(x.rows - first, 8), 8 * x.ld, kStepK16,
                                      rows, p, &maps[first]);
    if (!status.ok()) return status;
  }
  return {};
}

// The maps of tokens and weights.
Status group_maps(const Plan& plan, const void* x_base, const void* y_base, const GemmProblem& p,
                  AllParts* params) {
  const PlannedOperand &x = plan.x(), &y = plan.y();
  const Config& c = plan.config;
  const TileConfig& tile = kTiles[c.tile];
  const bool on_rows = tile.tokens == Axis::kRows;
  const auto tokens = [&](const PlannedOperand& of, const void* base, int sharers, CUtensorMap* map) {
    return encode_rows(of, base, of.inner(), of.outer(), of.ld, step_k(p), tile.token_box(sharers), p, map);
  };
  const Status status =
      on_rows ? tokens(x, x_base, c.cluster_n, &params->x)
              : operand_maps(x, x_base, tile.result_m(), c.cluster_n, p, &params->x, &params->x_edge);
  if (!status.ok()) return status;
  return on_rows ? operand_maps(y, y_base, tile.result_n(), c.cluster_m, p, &params->y, &params->y_edge)
                 : tokens(y, y_base, c.cluster_m, &params->y);
}

UnalignedLines lines_of(const PlannedOperand& x, int align) {
  return {.pitch = x.ld,
          .length = static_cast<int>(x.inner()),
          .count = static_cast<int>(x.outer()),
          .align = align,
          .longer = {},
          .shorter = {}};
}

// A map of D, or of C, which has D's layout: `products` products of `rows` rows, in boxes of one strip.
Status result_map(const GemmProblem& p, const Output& out, const void* base, int64_t rows, int64_t products,
                  int columns, CUtensorMap* map) {
  return encode_tensor_map({.base = base,
                            .rank = 3,
                            .extent = {p.n, rows, products},
                            .stride = {1, out.pitch, out.batch_stride},
                            .box = {out.swap ? 16 : columns, out.swap ? columns : 16, 1},
                            .type = p.d},
                           map);
}

// Makes the maps of both operands, and `lines` if one operand is unaligned and loaded in place.
Status load_maps(const Plan& plan, const void* x_base, const void* y_base, const GemmProblem& p,
                 AllParts* params) {
  const PlannedOperand &x = plan.x(), &y = plan.y();
  const Config& c = plan.config;
  const TileConfig& tile = kTiles[c.tile];
  Status status;
  if (tile.tokens == Axis::kRows || tile.tokens == Axis::kColumns)
    return group_maps(plan, x_base, y_base, p, params);
  if (tile.every_eighth) {
    const int align = every_eighth_align(x.ld);
    const uint32_t rows = params->schedule.rows;
    params->lines = lines_of(x, align);
    params->lines.longer = Divisor(rows / 8 + 1);
    params->lines.shorter = Divisor(std::max(rows / 8, 1u));  // unused if no class is shorter
    status = every_eighth_maps(x, x_base, tile.tile_m / c.cluster_n, p, align, params->x_from);
  } else {
    status = operand_maps(x, x_base, tile.result_m(), c.cluster_n, p, &params->x, &params->x_edge);
  }
  if (!status.ok()) return status;
  if (!tile.realigns)
    return operand_maps(y, y_base, tile.result_n(), c.cluster_m, p, &params->y, &params->y_edge);
  params->lines = lines_of(y, 8);
  return lines_maps(y, y_base, tile, p, &params->y, &params->y_edge);
}

// The map of the second weight of a gated product.
Status up_map(const Plan& plan, const void* b_up, const GemmProblem& p, CUtensorMap* map) {
  const Config& c = plan.config;
  const TileConfig& tile = kTiles[c.tile];
  const int rows = c.swap ? tile.result_m() : tile.result_n(), sharers = c.swap ? c.cluster_n : c.cluster_m;
  return operand_map(plan.b_up, b_up, plan.b_up.rows, rows, sharers, p, map);
}

// Makes the maps of D and of C, if the copy engine writes D and loads C.
Status result_maps(const Plan& plan, const GemmProblem& p, AllParts* params) {
  const Output& out = params->out;
  const TileConfig& tile = kTiles[plan.config.tile];
  // If tiles have every eighth row, the first p.m % 8 of 8 products have one row more than the others.
  const auto encode = [&](const void* base, CUtensorMap* map, CUtensorMap* longer) {
    const int columns = tile.strip_columns(static_cast<int>(dtype_bytes(p.a.dtype)));
    if (!tile.every_eighth) return result_map(p, out, base, p.m, p.results(), columns, map);
    const int64_t rows = p.m / 8, rest = p.m % 8;
    const Status status = rest ? result_map(p, out, base, rows + 1, rest, columns, longer) : Status{};
    if (rows == 0) *map = *longer;
    return status.ok() && rows ? result_map(p, out, base, rows, 8, columns, map) : status;
  };
  if (!by_copy_engine(out.path)) return {};
  const Status status = encode(out.d, &params->d, &params->d_longer);
  if (!status.ok() || !out.c) return status;
  return encode(out.c, &params->c, &params->c_longer);
}

}  // namespace

Status make_maps(const Plan& plan, const GemmProblem& p, const Operands& operands, AllParts* params) {
  const bool swap = plan.config.swap;
  Status status = load_maps(plan, swap ? operands.b : operands.a, swap ? operands.a : operands.b, p, params);
  if (status.ok() && p.gated) status = up_map(plan, operands.b_up, p, &params->up);
  return status.ok() ? result_maps(plan, p, params) : status;
}

Status many_maps(const Plan& plan, const void* x_base, const void* y_base, const GemmProblem& p,
                 ManyEntry* entry) {
  const auto operand = [&](const PlannedOperand& x, const void* base, CUtensorMap* map) {
    return encode_rows(x, base, x.inner(), x.outer(), x.ld, 64, 64, p, map);
  };
  Status status = operand(plan.x(), x_base, &entry->x);
  if (status.ok()) status = operand(plan.y(), y_base, &entry->y);
  if (!status.ok() || !by_copy_engine(entry->out.path)) return status;
  return result_map(p, entry->out, entry->out.d, p.m, 1, kTiles[plan.config.tile].strip_columns(2),
                    &entry->d);
}

}  // namespace jaxgemm::cuda::sm90
