// Which configuration runs a grouped product: all that can are ranked by the time that they should take for
// groups of random sizes.
#include "choose_grouped.h"

#include <algorithm>
#include <cmath>

#include "../planning.h"
#include "options.h"
#include "planes/planes.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// The sizes of groups, which only the device knows, as they are expected to be.
struct Expected {
  double groups;  // with weights and tokens, in a product of the batch
  double tokens;  // of each of these groups

  explicit Expected(const GemmProblem& p) {
    const double all = double(p.groups.form == Form::kSums ? p.k : p.m);
    const double part = std::min(1.0, double(p.batch[1]) / double(std::max<int64_t>(1, p.groups.count)));
    groups = std::max(1.0, std::min(double(p.batch[1]), all * part));
    tokens = std::max(1.0, all * part / groups);
  }
  // How many tiles of `tile` tokens a group makes. A part of a tile counts as its tokens, rounded up to a
  // multiple of `step`. If cuts between groups are random, sizes have about an exponential distribution,
  // for which this is the mean.
  double tiles(int tile, int step) const { return double(step) / tile / -std::expm1(-step / tokens); }
};

// The dense product of as many operations: a batch of products, one for each group.
GemmProblem stand_in(const GemmProblem& p, const Expected& expected) {
  GemmProblem dense = p;
  const int64_t tokens = static_cast<int64_t>(std::ceil(expected.tokens));
  (p.groups.form == Form::kSums ? dense.k : dense.m) = tokens;
  dense.batch[1] = static_cast<int64_t>(std::ceil(expected.groups));
  dense.groups = {};
  return dense;
}

// The constants below are read off benchmarks/results/nvidia-h200/grouped.json, which has times of products
// by each tile.

// A tile with tokens along its columns must have at least so many times the expected tokens of a group. If
// a group made several tiles, the tiles' forms would take different times, and blocks would drift apart and
// load the weights that they share again.
constexpr double kSpareColumns = 2;
// A tile may have at most so many times the expected tokens of a group: a larger tile loads no faster, and
// idles longer.
constexpr double kIdleTokens = 4;
// Groups of fewer tokens count as groups of so many: the smallest tile is not too large for them.
constexpr double kLeastTokens = 4;

// Writing results bounds sums of fewer tokens, and wide tiles write longer runs of memory.
constexpr double kShortSums = 16;

bool worthwhile(const GemmProblem& p, const TileConfig& t, const Expected& expected) {
  if (t.tokens == Axis::kK) return expected.tokens >= kShortSums || t.tile_n >= std::min<int64_t>(256, p.n);
  const int tokens = t.tokens == Axis::kRows ? t.result_m() : t.result_n();
  if (t.tokens == Axis::kColumns && tokens < kSpareColumns * expected.tokens) return false;
  return tokens <= kIdleTokens * std::max(expected.tokens, kLeastTokens);
}

bool allowed(const GemmProblem& p, const Config& c) {
  const TileConfig& t = kTiles[c.tile];
  if (t.tokens == Axis::kNone || t.planes != of_planes(p) ||
      (t.tokens == Axis::kK) != (p.groups.form == Form::kSums))
    return false;
  return p.gated == (t.gated != Axis::kNone) && launch_allowed(p, c);
}

// Whether clusters of m x n blocks may share loads: those of tokens, which all tiles of a cluster have in
// common.
bool cluster_allowed(const GemmProblem& p, const Shape& s, const TileConfig& t, int m, int n) {
  if (fixed(p, "cluster_m") ? fixed(p, "cluster_m") != m : ceil_div(s.m, t.result_m()) < m) return false;
  if (fixed(p, "cluster_n") ? fixed(p, "cluster_n") != n : ceil_div(s.n, t.result_n()) < n) return false;
  return t.tokens == Axis::kRows ? m == 1 : t.tokens == Axis::kColumns ? n == 1 : m == 1 || n == 1;
}

RankedConfig best_walk(const GemmProblem& dense, const Shape& s, const TileConfig& t, Config c,
                       const Expected& expected, int fixed_height, const Machine& machine) {
  UnitCounts units(s, t, c, machine.multiprocessors);
  if (t.tokens == Axis::kRows) units.rows = expected.tiles(t.result_m(), t.result_m());
  if (t.tokens == Axis::kColumns)
    units.columns = expected.tiles(t.result_n(), t.result_n() / t.token_forms());
  units.products = expected.groups * double(dense.batch[0]);
  RankedConfig best;
  for (const int height : {1, 2, 4, 8, 16}) {
    if (fixed_height ? height != 1 : height / 4 >= units.rows && height > 1) continue;
    c.walk_height = fixed_height ? fixed_height : height;
    const Cost found = cost(dense, s, t, c, machine, units);
    // Of walks with equal times the highest is taken: some groups have more tokens than expected.
    if (height == 1 || found.total <= best.cost.total) best = {c, found};
  }
  return best;
}

// The costs of all tiles that the problem allows; if `any` is false, of the worthwhile ones only.
std::vector<RankedConfig> rank_tiles(const GemmProblem& p, const Machine& machine, bool any) {
  std::vector<RankedConfig> ranked;
  const Expected expected(p);
  const GemmProblem dense = stand_in(p, expected);
  for (int tile = 0; tile < kTileCount; ++tile) {
    const TileConfig& t = kTiles[tile];
    Config c{.tile = tile, .swap = t.tokens == Axis::kColumns};
    if (!allowed(p, c) || (!any && !worthwhile(p, t, expected))) continue;
    const Shape s(dense, c.swap);
    for (c.cluster_m = 1; c.cluster_m <= 2; ++c.cluster_m) {
      for (c.cluster_n = 1; c.cluster_n <= 2; ++c.cluster_n) {
        if (cluster_allowed(p, s, t, c.cluster_m, c.cluster_n))
          ranked.push_back(best_walk(dense, s, t, c, expected, fixed_walk_height(p), machine));
      }
    }
  }
  return ranked;
}

std::string too_many(const char* what, int64_t count, int64_t most) {
  return std::string("a grouped product of kernel 'sm90' has at most ") + std::to_string(most) + ' ' + what +
         ", got " + std::to_string(count);
}

}  // namespace

std::vector<RankedConfig> rank_grouped(const GemmProblem& p, const Machine& machine) {
  // A tile that the problem fixes need not be worthwhile. If no tile is worthwhile, any tile may be taken:
  // gated products have few.
  const bool fixed_tile = fixed(p, "tile_m") || fixed(p, "tile_n");
  std::vector<RankedConfig> ranked;
  if (!fixed_tile) ranked = rank_tiles(p, machine, false);
  if (ranked.empty()) ranked = rank_tiles(p, machine, true);
  return ranked;
}

std::string unsupported_groups(const GemmProblem& p) {
  const bool sums = p.groups.form == Form::kSums;
  if (p.batch[1] == 0 || p.groups.count == 0) return "kernel 'sm90' has no grouped product without groups";
  if (p.k == 0) return "kernel 'sm90' has no grouped product with k = 0";
  // The kernel counts tokens, groups and tiles of all batches together, in 31 bits at most.
  constexpr int64_t kMost = INT32_MAX / 2;
  const int64_t tokens = (sums ? p.k : p.m) * p.batch[0], groups = (p.groups.count + 1) * p.batch[0];
  if (tokens > kMost) return too_many("tokens", tokens, kMost);
  if (groups > kMost) return too_many("groups", groups, kMost);
  const int64_t rows = sums ? p.batch_count() * ceil_div(p.m, 64) : tokens / 16 + groups;
  const int64_t tiles = rows * ceil_div(p.n, 64), most = sums ? kMost / 2 : kMost;
  return tiles > most ? too_many("tiles", tiles, most) : "";
}

}  // namespace jaxgemm::cuda::sm90
