// Which tile computes many products, in which order, and what each of them needs.
#include "plan_many.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "bytes/copies.h"
#include "cost.h"
#include "options.h"
#include "planes/planes.h"

namespace jaxgemm::cuda {
namespace sm90 {
namespace {

// A batch of as many products, all of about their mean shape. k is the mean of tiles.
GemmProblem stand_in(std::span<const GemmProblem> problems, const TileConfig& t) {
  double m = 0, n = 0, steps = 0, tiles = 0;
  for (const GemmProblem& p : problems) {
    m += double(p.m);
    n += double(p.n);
    tiles += double(tiles_of(p, t));
    steps += double(tiles_of(p, t)) * double(ceil_div(p.k, step_k(p)));
  }
  const auto extent = [](double mean, int64_t to) { return round_up(int64_t(std::ceil(mean)), to); };
  const double count = double(problems.size());
  GemmProblem mean = problems[0];
  mean.m = extent(m / count, 1);
  mean.n = extent(n / count, 8);
  mean.k = extent(steps / tiles * step_k(mean), 8);
  mean.batch[1] = static_cast<int64_t>(problems.size());
  mean.a.ld = mean.b.ld =
      round_up(std::max({mean.m, mean.n, mean.k}), kL2Line);  // copies are the same for all
  return mean;
}

}  // namespace

int choose_many(std::span<const GemmProblem> problems) {
  int best = -1;
  double least = std::numeric_limits<double>::infinity();
  for (int tile = 0; tile < kTileCount; ++tile) {
    const TileConfig& t = kTiles[tile];
    const Config c{.tile = tile};
    if (!t.many || !launch_allowed(problems[0], c)) continue;
    const GemmProblem mean = stand_in(problems, t);
    const Shape s(mean, false);
    UnitCounts units(s, t, c, kModelSms);
    double tiles = 0;
    for (const GemmProblem& p : problems) tiles += double(tiles_of(p, t));
    units.products = tiles / (units.rows * units.columns);
    const double found = cost(mean, s, t, c, kModelMachine, units).total;
    if (found < least) {
      least = found;
      best = tile;
    }
  }
  return best;
}

ManyPlan plan_many(std::span<const GemmProblem> problems) {
  ManyPlan plan;
  plan.config.tile = choose_many(problems);
  if (const int height = fixed_walk_height(problems[0])) plan.config.walk_height = height;
  plan.products.reserve(problems.size());
  for (const GemmProblem& p : problems) {
    Plan& product = plan.products.emplace_back();
    product.config = plan.config;
    plan_operands(p, false, false, &product, &plan.workspace);
  }
  // The longest sums come first, so that the last tiles to end are short ones.
  plan.order.resize(problems.size());
  std::iota(plan.order.begin(), plan.order.end(), 0);
  std::stable_sort(plan.order.begin(), plan.order.end(),
                   [&](int i, int j) { return problems[i].k > problems[j].k; });
  return plan;
}

}  // namespace sm90

using namespace sm90;

std::string unsupported_many_sm90(std::span<const GemmProblem> problems) {
  int64_t tiles = 0;  // as many as the smallest tile makes
  for (const GemmProblem& p : problems) {
    if (of_planes(p)) return "kernel 'sm90' multiplies planes of fp32 operands in single products";
    if (of_bytes(p)) return "kernel 'sm90' multiplies operands of 8 bits in single products";
    if (p.output_empty() || p.k == 0) return "products in one launch of kernel 'sm90' must not be empty";
    if (p.a.transposed && p.b.transposed)
      return "kernel 'sm90' has no tiles of many products for two transposed operands";
    if (std::string why = too_long({p.m, p.n, p.k}); !why.empty()) return why;
    tiles += ceil_div(p.m, 64) * ceil_div(p.n, 64);
    if (tiles > INT32_MAX / 4) return "many products of kernel 'sm90' have less than 2^29 tiles";
  }
  if (fixed(problems[0], "cluster_m") > 1 || fixed(problems[0], "cluster_n") > 1)
    return "many products of kernel 'sm90' have a cluster_m and a cluster_n of 1";
  if (choose_many(problems) < 0) {
    return "no tile of many products matches the options; see ffi/cuda/sm90/configs.h for those compiled";
  }
  return {};
}

size_t workspace_many_sm90(std::span<const GemmProblem> problems) { return plan_many(problems).workspace; }

}  // namespace jaxgemm::cuda
