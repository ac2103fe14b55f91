// Chooses by modelled time among all tile shapes, whole or split along K, with operands as they are or
// repacked.
//
// Two kinds of split are considered. Where there are few tiles, all are split, so that they fill the machine.
// Where there are many, the tiles of an incomplete last round are split until that round is full.
#include "plan.h"

#include <algorithm>
#include <cmath>

#include "../../arithmetic.h"

namespace jaxgemm::cuda::sm80 {
namespace {

constexpr int64_t kMaxSplits = 128;
constexpr int64_t kMinSplitTiles = 4;  // along k: a split of fewer only fills and drains its pipeline
constexpr double kRepackLaunch = 2.0;
constexpr double kRepackLine = 8e-4;   // microseconds for the ends of a row
constexpr double kRepackRate = 3.5e6;  // bytes a microsecond, read and written

size_t take(size_t* total, int64_t bytes) {
  const size_t offset = *total;
  *total += static_cast<size_t>(round_up(bytes, 256));
  return offset;
}

PlannedOperand operand_of(const Matrix& x, int64_t inner, int64_t outer, const GemmProblem& p) {
  PlannedOperand o;
  o.inner = inner;
  o.outer = outer;
  o.ld = x.ld;
  for (int i = 0; i < 2; ++i) o.batch_stride[i] = p.batch[i] > 1 ? x.batch_stride[i] : 0;
  for (const int width : {2, 8}) {
    const bool rows = (outer <= 1 || o.ld % width == 0) && inner % width == 0;
    if (rows && o.batch_stride[0] % width == 0 && o.batch_stride[1] % width == 0) o.width = width;
  }
  return o;
}

// Products of the batch that the operand has: a broadcast level has one.
int64_t copies(const PlannedOperand& x, const GemmProblem& p) {
  return (x.batch_stride[0] ? p.batch[0] : 1) * (x.batch_stride[1] ? p.batch[1] : 1);
}

double repack_time(const PlannedOperand& x, const GemmProblem& p) {
  if (x.width == 8) return 0;
  return double(x.outer) * double(copies(x, p)) * (kRepackLine + 4.0 * double(x.inner) / kRepackRate);
}

void repack(PlannedOperand& x, const GemmProblem& p, size_t* workspace) {
  if (x.width == 8) return;
  x.repack = true;
  x.ld = round_up(x.inner, 8);
  const int64_t product = x.ld * x.outer;
  x.workspace_offset = take(workspace, product * copies(x, p) * 2);
  if (x.batch_stride[0]) x.batch_stride[0] = product * (x.batch_stride[1] ? p.batch[1] : 1);
  if (x.batch_stride[1]) x.batch_stride[1] = product;
}

}  // namespace

int64_t tile_count(const GemmProblem& p, const TileConfig& t) {
  return ceil_div(p.m, t.m) * ceil_div(p.n, t.n) * p.batch_count();
}

Plan make_plan(const GemmProblem& p) {
  Plan best;
  double best_time = INFINITY;
  Plan plan;
  plan.a = operand_of(p.a, p.a.transposed ? p.m : p.k, p.a.transposed ? p.k : p.m, p);
  plan.b = operand_of(p.b, p.b.transposed ? p.k : p.n, p.b.transposed ? p.n : p.k, p);
  const bool aligned = (plan.a.width == 8 && plan.b.width == 8) || p.k == 0;
  double before = 0;
  const auto consider = [&](int64_t splits, int64_t split_tiles) {
    plan.splits = static_cast<int>(splits);
    plan.split_tiles = splits > 1 ? split_tiles : 0;
    const double time = before + modelled_time(p, plan);
    if (time < best_time) {
      best_time = time;
      best = plan;
    }
  };
  for (const bool wide : {true, false}) {
    if (!wide && aligned) continue;
    plan.wide = wide;
    before = aligned || !wide ? 0 : kRepackLaunch + repack_time(plan.a, p) + repack_time(plan.b, p);
    for (plan.tile = 0; plan.tile < kTileCount; ++plan.tile) {
      if (fixed(p, kTile) && fixed(p, kTile) != plan.tile + 1) continue;
      const TileConfig& t = plan.tile_config();
      const int64_t k_tiles = std::max<int64_t>(1, ceil_div(p.k, t.k));
      const int64_t tiles = tile_count(p, t), slots = modelled_slots(plan);
      if (fixed(p, kSplitK)) {
        consider(std::min(fixed(p, kSplitK), k_tiles), tiles);
        continue;
      }
      consider(1, 0);
      for (int64_t splits = 2; splits <= kMaxSplits && k_tiles / splits >= kMinSplitTiles;
           splits += 1 + splits / 8) {
        if (tiles * (splits - 1) > 2 * slots) break;
        consider(splits, tiles);
      }
      if (tiles > slots && tiles % slots) {
        const int64_t splits = std::min({slots / (tiles % slots), k_tiles / kMinSplitTiles, kMaxSplits});
        if (splits > 1) consider(splits, tiles % slots);
      }
    }
  }
  if (best.wide && p.k > 0) {
    repack(best.a, p, &best.workspace);
    repack(best.b, p, &best.workspace);
  }
  if (best.splits > 1) {
    const TileConfig& t = best.tile_config();
    best.partial_offset =
        take(&best.workspace, best.split_tiles * best.splits * t.m * t.n * int64_t(sizeof(float)));
  }
  return best;
}

}  // namespace jaxgemm::cuda::sm80
