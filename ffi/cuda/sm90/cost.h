// The cost model, cost.cc, and what it ranks, choose.cc.
#pragma once

#include <algorithm>
#include <vector>

#include "../../arithmetic.h"
#include "../planning.h"
#include "configs.h"

namespace jaxgemm::cuda::sm90 {

// A product as the engine has it: where operands are swapped, the transpose of what is asked for.
struct Shape {
  int64_t m, n, k, batch;
  bool x_blocks, y_blocks;  // x and y come in whole blocks of rows and columns

  Shape(const GemmProblem& p, bool swap)
      : m(swap ? p.n : p.m),
        n(swap ? p.m : p.n),
        k(p.k),
        batch(p.batch_count()),
        x_blocks(swap ? !p.b.transposed : p.a.transposed),
        y_blocks(swap ? p.a.transposed : !p.b.transposed) {}
};

// The units of a configuration, in rows and columns, and how many of them run at a time.
struct Units {
  double rows, columns, products, clusters;

  Units(const Shape& s, const TileConfig& t, const Config& c, int sms)
      : rows(double(unit_rows(t, s.m, c.cluster_m))),
        columns(double(ceil_div(ceil_div(s.n, t.result_n()), c.cluster_n))),
        products(double(s.batch) * c.partials()),
        clusters(t.blocks * std::max(1, resident_clusters(sms, c.cluster()))) {}

  double all() const { return rows * columns * products; }
  double running() const { return std::min(all(), clusters); }
  // Those of one GPC, where blocks that follow each other in the grid run.
  double neighbours(int cluster) const {
    return std::max(1.0, double(kGpcBlocks) / cluster * running() / clusters);
  }
};

// Stages of the ring that are not filled, as there is enough on its way from memory without.
int idle_stages(const Shape& s, const TileConfig& t, const Config& c, int sms);

// Microseconds that a configuration should take.
double cost(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c,
            const Machine& machine);

struct RankedConfig {
  Config config;
  double microseconds;  // by the model in cost.cc
};

// The configurations that can run a problem, the cheapest first: a pure function of its arguments. Options
// that the problem's config fixes are kept. Empty when nothing matches.
std::vector<RankedConfig> rank_configs(const GemmProblem& problem, const Machine& machine);

}  // namespace jaxgemm::cuda::sm90
