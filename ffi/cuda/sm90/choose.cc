// Which configuration runs a problem: all that can are ranked by their cost.
#include <algorithm>
#include <cmath>
#include <set>

#include "cost.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int kMaxGroup = 1 << 20;                       // tile rows that are walked together
constexpr double kOtherWalk = 1.02;                      // what the grid's own walks are spared
constexpr int64_t kLongSums = 16 * kTileK;               // from which on others are looked at all the same
constexpr int64_t kMaxSplit = 256, kMaxPitch = 1 << 27;  // the latter where 8 lines are one

// The walk over the units that costs least. Where there is one wave it is along the rows or the columns, as
// the grid says whose unit is whose, unless sums are long and another walk costs enough less.
RankedConfig best_walk(const GemmProblem& p, const Shape& s, const TileConfig& t, Config c,
                       const Machine& machine) {
  const Units u(s, t, c, machine.multiprocessors);
  const int all = static_cast<int>(std::min(u.rows, double(kMaxGroup)));
  const bool by_grid = one_wave(u.all(), u.clusters, c.cluster()), long_sums = s.k / c.split_k >= kLongSums;
  RankedConfig best;
  double least = INFINITY;
  for (const int group : {all, 1, 8, 4, 16, 2}) {
    const bool other = by_grid && group != all && group != 1;
    if (group > all || (other && !long_sums)) continue;
    c.group = group;
    const double time = cost(p, s, t, c, machine);
    if (time * (other ? kOtherWalk : 1) < least) least = time * (other ? kOtherWalk : 1), best = {c, time};
  }
  return best;
}

// The second kernel counts groups of 4 results in 31 bits.
bool splittable(const GemmProblem& p, const Shape& s) {
  return !p.gated && s.m * s.batch <= INT32_MAX / ceil_div(s.n, 4);
}

// Whether this operand can be realigned, and should be where nobody asks for it. Products of a batch must
// begin at vectors, as their lines then lie alike.
bool realignable(const GemmProblem& p, const Matrix& x) {
  for (int i = 0; i < 2; ++i) {
    if (p.batch[i] > 1 && x.batch_stride[i] % 8 != 0) return false;
  }
  return x.ld <= kMaxPitch && (x.ld % 8 != 0 || fixed(p, kUnaligned));
}

// Whether tiles may have every eighth row of A, and should where nobody asks for it: where A would be copied.
bool in_eighths(const GemmProblem& p, bool swap) {
  const bool usual = !swap && !p.a.transposed && !p.b.transposed && p.batch_count() == 1;
  return usual && p.a.ld <= kMaxPitch && (p.a.ld % 8 != 0 || fixed(p, kRows));
}

// The ways to run one tile shape in one orientation.
void consider(const GemmProblem& p, const Shape& s, Config c, const Machine& machine,
              std::vector<RankedConfig>* ranked) {
  const TileConfig& t = kTiles[c.tile];
  const int64_t tiles = unit_rows(t, s.m, 1) * ceil_div(s.n, t.result_n()) * s.batch;
  const int64_t k_blocks = std::max<int64_t>(1, ceil_div(s.k, kTileK));
  const int sms = machine.multiprocessors;
  const auto rank = [&](Config config) {
    ranked->push_back(fixed(p, kGroup) ? RankedConfig{config, cost(p, s, t, config, machine)}
                                       : best_walk(p, s, t, config, machine));
  };
  // Where sums in a cluster are asked for, K is split there or not at all.
  const bool in_cluster = fixed(p, kReduction) == static_cast<int>(Reduction::kCluster);
  const auto slice = [&](int split) {
    if (fixed(p, kReduction) == static_cast<int>(Reduction::kWorkspace) || !t.can_slice(split)) return;
    if (c.cluster_m * c.cluster_n > 1 || fixed(p, kGrid) == static_cast<int>(Grid::kResident)) return;
    Config sliced = c;
    sliced.split_k = split;
    sliced.reduction = Reduction::kCluster;
    sliced.grid = Grid::kTiles;
    rank(sliced);
  };
  const auto partial = [&](int64_t split) {
    Config whole = c;
    whole.split_k = static_cast<int>(split);
    if (in_cluster) whole.reduction = Reduction::kCluster;
    if (split == 1 || (!in_cluster && !t.eighths() && splittable(p, s))) rank(whole);
  };
  if (fixed(p, kSplitK)) {
    const int64_t split = std::min(fixed(p, kSplitK), k_blocks);
    partial(split);
    if (split == 2 || split == 4 || split == 8) slice(static_cast<int>(split));
    return;
  }
  partial(1);
  for (const int split : {2, 4, 8}) {
    if (k_blocks / split >= 2) slice(split);
  }
  // As many splits as fill the machine once, twice, ..., each with at least two steps; or, where K is too
  // short for that, such as have a few steps each.
  std::set<int64_t> splits;
  for (const int64_t fill : {1, 2, 3, 5}) splits.insert(std::min<int64_t>(fill * sms / tiles, kMaxSplit));
  for (const int64_t steps : {2, 4, 8, 16}) {
    if (k_blocks / steps * tiles < sms) splits.insert(k_blocks / steps);
  }
  for (const int64_t split : splits) {
    if (split > 1 && split <= kMaxSplit && k_blocks / split >= 2) partial(split);
  }
}

}  // namespace

std::vector<RankedConfig> rank_configs(const GemmProblem& p, const Machine& machine) {
  std::vector<RankedConfig> ranked;
  for (const bool swap : {false, true}) {
    if (fixed(p, kSwap) && fixed(p, kSwap) != (swap ? 2 : 1)) continue;
    const Shape s(p, swap);
    for (int tile = 0; tile < kTileCount; ++tile) {
      const TileConfig& t = kTiles[tile];
      if (t.gated != (!p.gated ? Gated::kNo : swap ? Gated::kRows : Gated::kColumns)) continue;
      if (fixed(p, kTileM) && fixed(p, kTileM) != t.tile_m) continue;
      if (fixed(p, kTileN) && fixed(p, kTileN) != t.tile_n) continue;
      if (fixed(p, kBlocks) && fixed(p, kBlocks) != t.blocks) continue;
      if (fixed(p, kSchedule) && fixed(p, kSchedule) != static_cast<int>(t.schedule)) continue;
      if (fixed(p, kUnaligned) && fixed(p, kUnaligned) != static_cast<int>(t.unaligned)) continue;
      if (fixed(p, kRows) && fixed(p, kRows) != static_cast<int>(t.rows)) continue;
      if (t.along_k() && s.y_blocks) continue;
      if (t.realigns() && !realignable(p, swap ? p.a : p.b)) continue;
      if (t.eighths() && !in_eighths(p, swap)) continue;
      const int64_t rows = t.eighths() ? ceil_div(s.m, 8) : s.m;
      for (const int m : {1, 2, 4}) {
        // Of rows along k, each of m blocks loads whole periods of the swizzle.
        if (!s.y_blocks && t.result_n() % (8 * m) != 0) continue;
        for (const int n : {1, 2, 4}) {
          // Every device has room for 8; and what is realigned is not shared.
          if (m * n > (t.realigns() ? 1 : 8)) continue;
          // Large tiles load little for what they multiply: more than pairs of them are had for the asking,
          // or where it takes long to load.
          const bool asked = fixed(p, kClusterM) && fixed(p, kClusterN);
          const bool long_loads = !whole_lines(p.a.ld) || !whole_lines(p.b.ld);
          if (!asked && !long_loads && m * n > 2 && t.tile_m * t.tile_n > 128 * 128) continue;
          if (fixed(p, kClusterM) ? fixed(p, kClusterM) != m : ceil_div(rows, t.result_m()) < m) continue;
          if (fixed(p, kClusterN) ? fixed(p, kClusterN) != n : ceil_div(s.n, t.result_n()) < n) continue;
          Config c;
          c.tile = tile;
          c.cluster_m = m;
          c.cluster_n = n;
          c.swap = swap;
          if (fixed(p, kGroup)) c.group = static_cast<int>(fixed(p, kGroup));
          if (fixed(p, kGrid)) c.grid = static_cast<Grid>(fixed(p, kGrid));
          consider(p, s, c, machine, &ranked);
        }
      }
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const RankedConfig& x, const RankedConfig& y) {
    return x.microseconds < y.microseconds;
  });
  return ranked;
}

}  // namespace jaxgemm::cuda::sm90
