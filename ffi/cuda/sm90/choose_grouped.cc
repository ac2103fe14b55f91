// Which configuration runs a grouped product: all that can are ranked by what they should take if groups are
// as large as random ones.
#include <algorithm>
#include <cmath>

#include "../planning.h"
#include "cost.h"
#include "group_table.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// What is expected of sizes that only the device knows.
struct Expected {
  double groups;  // of a batch, that have weights and tokens
  double tokens;  // of each of them

  explicit Expected(const GemmProblem& p) {
    const double all = double(p.groups.form == Form::kSums ? p.k : p.m);
    const double part = std::min(1.0, double(p.batch[1]) / double(std::max<int64_t>(1, p.groups.count)));
    groups = std::max(1.0, std::min(double(p.batch[1]), all * part));
    tokens = std::max(1.0, all * part / groups);
  }
  // Tiles of so many tokens that a group makes, where a part of a tile counts in units of `step` tokens.
  // Where cuts between groups are random, sizes have about an exponential distribution, of which this is the
  // mean of size / step, rounded up.
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

// How many times the expected tokens of a group a tile must have if they lie along its columns. Where a group
// makes several such tiles, their forms take different times, so that blocks drift apart and load the weights
// that they share again.
constexpr double kSpareColumns = 2;
// How many times the expected tokens of a group a tile may have: a larger one loads no faster, and idles
// longer.
constexpr double kIdleTokens = 4;

// Sums of fewer tokens are bound by writing them, and rows of wide tiles make longer runs in memory.
constexpr double kShortSums = 16;

bool worthwhile(const GemmProblem& p, const TileConfig& t, const Expected& expected) {
  if (t.grouped == Grouped::kSums)
    return expected.tokens >= kShortSums || t.tile_n >= std::min<int64_t>(256, p.n);
  const int tokens = t.grouped == Grouped::kRows ? t.result_m() : t.result_n();
  if (t.grouped == Grouped::kColumns && tokens < kSpareColumns * expected.tokens) return false;
  return tokens <= kIdleTokens * std::max(expected.tokens, 4.0);
}

bool allowed(const GemmProblem& p, const TileConfig& t) {
  if (t.grouped == Grouped::kNo || (t.grouped == Grouped::kSums) != (p.groups.form == Form::kSums))
    return false;
  return p.gated == (t.gated != Gated::kNo) && options_allow(p, t);
}

// Whether clusters of m x n blocks may share loads. They share tokens, as all tiles of a cluster have the
// same.
bool cluster_allowed(const GemmProblem& p, const Shape& s, const TileConfig& t, int m, int n) {
  if (fixed(p, kClusterM) ? fixed(p, kClusterM) != m : ceil_div(s.m, t.result_m()) < m) return false;
  if (fixed(p, kClusterN) ? fixed(p, kClusterN) != n : ceil_div(s.n, t.result_n()) < n) return false;
  return t.grouped == Grouped::kRows ? m == 1 : t.grouped == Grouped::kColumns ? n == 1 : m == 1 || n == 1;
}

RankedConfig best_walk(const GemmProblem& dense, const Shape& s, const TileConfig& t, Config c,
                       const Expected& expected, int group, const Machine& machine) {
  Units units(s, t, c, machine.multiprocessors);
  if (t.grouped == Grouped::kRows) units.rows = expected.tiles(t.result_m(), t.result_m());
  if (t.grouped == Grouped::kColumns)
    units.columns = expected.tiles(t.result_n(), t.result_n() / t.token_forms());
  units.products = expected.groups * double(dense.batch[0]);
  RankedConfig best;
  for (const int walk : {1, 2, 4, 8, 16}) {
    if (group ? walk != 1 : walk / 4 >= units.rows && walk > 1) continue;
    c.group = group ? group : walk;
    const Cost found = cost(dense, s, t, c, machine, units);
    // Of walks that should be equal the longest: some groups have more tokens than is expected.
    if (walk == 1 || found.total <= best.cost.total) best = {c, found};
  }
  return best;
}

// What all tiles that the problem allows should take, or with `any` false those that are worthwhile.
std::vector<RankedConfig> rank_tiles(const GemmProblem& p, const Machine& machine, bool any) {
  std::vector<RankedConfig> ranked;
  const Expected expected(p);
  const GemmProblem dense = stand_in(p, expected);
  for (int tile = kUngroupedTileCount; tile < kSingleTileCount; ++tile) {
    const TileConfig& t = kTiles[tile];
    if (!allowed(p, t) || (!any && !worthwhile(p, t, expected))) continue;
    const bool swap = t.grouped == Grouped::kColumns;
    const Shape s(dense, swap);
    for (const int m : {1, 2}) {
      for (const int n : {1, 2}) {
        if (!cluster_allowed(p, s, t, m, n)) continue;
        const Config c{.tile = tile, .cluster_m = m, .cluster_n = n, .swap = swap};
        ranked.push_back(best_walk(dense, s, t, c, expected, fixed_walk(p), machine));
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

bool options_allow(const GemmProblem& p, const TileConfig& t) {
  const auto allows = [&](Option option, int64_t value) {
    return !fixed(p, option) || fixed(p, option) == value;
  };
  return allows(kTileM, t.tile_m) && allows(kTileN, t.tile_n) && allows(kBlocks, t.blocks) &&
         allows(kSchedule, static_cast<int>(t.schedule)) &&
         allows(kSwap, no_or_yes(t.grouped == Grouped::kColumns)) && allows(kSplitK, 1) &&
         allows(kReduction, static_cast<int64_t>(Reduction::kWorkspace)) && allows(kUnaligned, 1) &&
         allows(kEveryEighth, 1) && allows(kGrid, static_cast<int64_t>(Grid::kResident));
}

std::vector<RankedConfig> rank_grouped(const GemmProblem& p, const Machine& machine) {
  // A tile that the problem fixes is taken as it is. So is any where none is worthwhile: gated products have
  // few.
  const bool fixed_tile = fixed(p, kTileM) || fixed(p, kTileN);
  std::vector<RankedConfig> ranked;
  if (!fixed_tile) ranked = rank_tiles(p, machine, false);
  if (ranked.empty()) ranked = rank_tiles(p, machine, true);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const RankedConfig& x, const RankedConfig& y) { return x.cost.total < y.cost.total; });
  return ranked;
}

std::string unsupported_groups(const GemmProblem& p) {
  const bool sums = p.groups.form == Form::kSums;
  if (p.batch[1] == 0 || p.groups.count == 0) return "kernel 'sm90' has no grouped product without groups";
  if (p.k == 0) return "kernel 'sm90' has no grouped product with k = 0";
  // Tokens, groups and tiles are counted through all batches, in 31 bits at most.
  constexpr int64_t kMost = INT32_MAX / 2;
  const int64_t tokens = (sums ? p.k : p.m) * p.batch[0], groups = (p.groups.count + 1) * p.batch[0];
  if (tokens > kMost) return too_many("tokens", tokens, kMost);
  if (groups > kMost) return too_many("groups", groups, kMost);
  const int64_t rows = sums ? p.batch_count() * ceil_div(p.m, 64) : tokens / 16 + groups;
  const int64_t tiles = rows * ceil_div(p.n, 64), most = sums ? kMost / 2 : kMost;
  return tiles > most ? too_many("tiles", tiles, most) : "";
}

}  // namespace jaxgemm::cuda::sm90
