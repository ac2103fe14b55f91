// Which configuration runs a problem: all that can are ranked by their cost.
#include "choose.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "bytes/copies.h"
#include "choose_grouped.h"
#include "options.h"
#include "planes/tail.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int64_t kMaxSplit = 256;
// The most elements from row to row of an unaligned operand that is loaded where it lies. Its tensor map
// joins 8 rows to one, whose extent has 32 bits.
constexpr int64_t kMaxPitch = 1 << 27;

// In a single wave the grid's coordinates say which block has which tile, if the walk is along the rows or
// the columns. For any other walk the kernel divides, and takes longer by the factor kDividedWalk. Such a
// walk is considered only if K has at least kDividedWalkSteps steps (sources "walks" of
// benchmarks/results/sm90_configurations.json).
constexpr double kDividedWalk = 1.02;
constexpr int64_t kDividedWalkSteps = 16;

// The numbers of pieces of k that a tail may have, and how many times its pieces may fill the machine. More
// pieces would make many partial results.
constexpr int kTails[] = {2, 3, 4, 6, 8};
constexpr double kTailWaves = 2;

Cost cost_of(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c,
             const Machine& machine) {
  return c.tail > 1 ? cost_of_parts(p, c, machine) : cost(p, s, t, c, machine);
}

// The walk over the units that costs least.
RankedConfig best_walk(const GemmProblem& p, const Shape& s, const TileConfig& t, Config c,
                       const Machine& machine) {
  const UnitCounts u(s, t, c, machine.multiprocessors);
  const int all = static_cast<int>(std::min(u.rows, double(kMaxWalkHeight)));
  const bool by_grid = one_wave(u.all(), u.resident, c.cluster()),
             long_sums = s.k / c.split_k >= kDividedWalkSteps * step_k(p);
  RankedConfig best;
  double least = INFINITY;
  for (const int height : {all, 1, 8, 4, 16, 2}) {
    const bool other = by_grid && height != all && height != 1;
    if (height > all || (other && !long_sums)) continue;
    c.walk_height = height;
    const Cost found = cost_of(p, s, t, c, machine);
    const double time = found.total * (other ? kDividedWalk : 1);
    if (time < least) least = time, best = {c, found};
  }
  return best;
}

// Whether K may be split into partial results. The kernel that adds them counts results in fours, in 31 bits.
bool splittable(const GemmProblem& p, const Shape& s) {
  return !p.gated && s.m * s.batch <= INT32_MAX / ceil_div(s.n, 4);
}

// Whether the blocks of a cluster may share K.
bool sliceable(const GemmProblem& p, const TileConfig& t, const Config& c) {
  return fixed(p, "reduction") != static_cast<int>(Reduction::kWorkspace) && c.cluster_m * c.cluster_n == 1 &&
         fixed(p, "grid") != static_cast<int>(Grid::kResident);
}

// Whether a tile may shift the matrix x, which is the engine's y, on its way: if x is unaligned, or the
// option asks for it. The products of a batch must begin at multiples of 16 bytes, so that their lines are
// misaligned alike.
bool realignable(const GemmProblem& p, const Matrix& x) {
  for (int i = 0; i < 2; ++i) {
    if (p.batch[i] > 1 && x.batch_stride[i] % 8 != 0) return false;
  }
  return x.ld <= kMaxPitch && (x.ld % 8 != 0 || fixed(p, "unaligned"));
}

// Whether tiles may have every eighth row of A: if A is unaligned, or the option asks for it.
bool takes_every_eighth(const GemmProblem& p, bool swap) {
  const bool row_major = !swap && !p.a.transposed && !p.b.transposed && p.batch_count() == 1;
  return row_major && p.a.ld <= kMaxPitch && (p.a.ld % 8 != 0 || fixed(p, "every_eighth"));
}

// All pieces of K and walks for one tile, cluster and orientation.
void consider(const GemmProblem& p, const Shape& s, Config c, const Machine& machine,
              std::vector<RankedConfig>* ranked) {
  const TileConfig& t = kTiles[c.tile];
  const int64_t tiles = unit_rows(t, s.m, 1) * ceil_div(s.n, t.result_n()) * s.batch;
  const int64_t k_blocks = std::max<int64_t>(1, ceil_div(s.k, step_k(p)));
  const int sms = machine.multiprocessors;
  const auto rank = [&](Config config) {
    ranked->push_back(fixed(p, "walk_height") ? RankedConfig{config, cost_of(p, s, t, config, machine)}
                                              : best_walk(p, s, t, config, machine));
  };
  // If the option asks for sums in a cluster, K is split in clusters or not at all.
  const bool in_cluster = fixed(p, "reduction") == static_cast<int>(Reduction::kCluster);
  const auto slice = [&](int split) {
    if (!sliceable(p, t, c) || !t.can_slice(split)) return;
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
    if (split == 1 || (!in_cluster && !t.every_eighth && splittable(p, s))) rank(whole);
  };
  const auto tail = [&](int pieces) {
    Config cut = c;
    cut.tail = pieces;
    const bool few = has_tail(p, c) && tail_units(p, cut) * pieces <= kTailWaves * sms / c.cluster();
    if (few || (fixed(p, "tail") && has_tail(p, c))) rank(cut);
  };
  if (fixed(p, "tail") > 1 && fixed(p, "split_k") <= 1 && has_tail(p, c))
    return tail(static_cast<int>(fixed(p, "tail")));
  if (fixed(p, "split_k")) {
    const int64_t split = std::min(fixed(p, "split_k"), k_blocks);
    partial(split);
    if (split == 2 || split == 4 || split == 8) slice(static_cast<int>(split));
    return;
  }
  partial(1);
  for (const int pieces : kTails) {
    if (!fixed(p, "tail") && k_blocks / pieces >= 2) tail(pieces);
  }
  for (const int split : {2, 4, 8}) {
    if (k_blocks / split >= 2) slice(split);
  }
  // As many pieces as fill the machine 1, 2, 3 or 5 times; and pieces of 2, 4, 8 or 16 steps, if these do
  // not fill it once. Each piece has at least two steps.
  std::set<int64_t> splits;
  for (const int64_t fill : {1, 2, 3, 5}) splits.insert(std::min<int64_t>(fill * sms / tiles, kMaxSplit));
  for (const int64_t steps : {2, 4, 8, 16}) {
    if (k_blocks / steps * tiles < sms) splits.insert(k_blocks / steps);
  }
  for (const int64_t split : splits) {
    if (split > 1 && split <= kMaxSplit && k_blocks / split >= 2) partial(split);
  }
}

// Whether the problem, and the options that it fixes, allow a tile.
bool tile_allowed(const GemmProblem& p, const Shape& s, int tile, bool swap) {
  const TileConfig& t = kTiles[tile];
  if (t.planes != (of_planes(p) || promoted(p)) || t.turned != (of_bytes(p) && s.x_mn_major)) return false;
  if (of_bytes(p) && (!has_8bit_form(t) || s.y_mn_major)) return false;
  if (!t.is_dense() || t.gated != (!p.gated ? Axis::kNone : swap ? Axis::kRows : Axis::kColumns))
    return false;
  if (!options_allow(p, {.tile = tile}, {Scope::kTile})) return false;
  if (t.needs_k_major_y() && s.y_mn_major) return false;
  if (t.realigns && !realignable(p, swap ? p.a : p.b)) return false;
  return !t.every_eighth || takes_every_eighth(p, swap);
}

// Whether clusters of m x n blocks may share the loads of their tiles.
bool cluster_allowed(const GemmProblem& p, const Shape& s, const TileConfig& t, int m, int n) {
  // Each of m blocks loads whole periods of the swizzle of a K-major y.
  if (!s.y_mn_major && t.result_n() % (8 * m) != 0) return false;
  // Every device has room for clusters of 8. Warps that shift y shift it for their own block only.
  if (m * n > (t.realigns ? 1 : 8)) return false;
  // Large tiles load little for what they multiply: clusters of more than two of them are considered only if
  // the options ask for them, or if rows straddle lines of L2 and so take longer to load.
  const bool asked = fixed(p, "cluster_m") && fixed(p, "cluster_n");
  const bool long_loads = !whole_lines(p.a.ld) || !whole_lines(p.b.ld);
  if (!asked && !long_loads && m * n > 2 && t.tile_m * t.tile_n > 128 * 128) return false;
  const int64_t rows = t.every_eighth ? ceil_div(s.m, 8) : s.m;
  if (fixed(p, "cluster_m") ? fixed(p, "cluster_m") != m : ceil_div(rows, t.result_m()) < m) return false;
  return fixed(p, "cluster_n") ? fixed(p, "cluster_n") == n : ceil_div(s.n, t.result_n()) >= n;
}

std::vector<RankedConfig> rank_dense(const GemmProblem& p, const Machine& machine) {
  std::vector<RankedConfig> ranked;
  for (const bool swap : {false, true}) {
    if (!options_allow(p, {.swap = swap}, {Scope::kOrientation})) continue;
    const Shape s(p, swap);
    for (int tile = 0; tile < kTileCount; ++tile) {
      if (!tile_allowed(p, s, tile, swap)) continue;
      for (const int m : {1, 2, 4}) {
        for (const int n : {1, 2, 4}) {
          if (!cluster_allowed(p, s, kTiles[tile], m, n)) continue;
          Config c{.tile = tile, .cluster_m = m, .cluster_n = n, .swap = swap};
          if (fixed(p, "walk_height")) c.walk_height = fixed_walk_height(p);
          if (fixed(p, "grid")) c.grid = static_cast<Grid>(fixed(p, "grid"));
          consider(p, s, c, machine, &ranked);
        }
      }
    }
  }
  return ranked;
}

}  // namespace

std::vector<RankedConfig> rank_configs(const GemmProblem& p, const Machine& machine) {
  std::vector<RankedConfig> ranked = p.grouped() ? rank_grouped(p, machine) : rank_dense(p, machine);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const RankedConfig& x, const RankedConfig& y) { return x.cost.total < y.cost.total; });
  return ranked;
}

}  // namespace jaxgemm::cuda::sm90
