// The plan of many products of different shapes: one tile for all products, and a plan for each product.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan.h"

namespace jaxgemm::cuda::sm90 {

// The plan is a pure function of the products.
struct ManyPlan {
  Config config;
  std::vector<Plan> products;
  std::vector<int> order;  // the order in which the products are launched
  size_t workspace = 0;
};

// Of the tiles that the options allow, the tile that should take the least time; -1 if the options allow
// none.
int choose_many(std::span<const GemmProblem> problems);

ManyPlan plan_many(std::span<const GemmProblem> problems);

// How many tiles a product has.
constexpr int64_t tiles_of(const GemmProblem& p, const TileConfig& t) {
  return ceil_div(p.m, t.tile_m) * ceil_div(p.n, t.tile_n);
}

}  // namespace jaxgemm::cuda::sm90

namespace jaxgemm::cuda {

size_t workspace_many_sm90(std::span<const GemmProblem>);
std::string unsupported_many_sm90(std::span<const GemmProblem>);

}  // namespace jaxgemm::cuda
