// What many products of different shapes become: a tile that all have, and a plan for each.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan.h"

namespace jaxgemm::cuda::sm90 {

// A pure function of the products.
struct ManyPlan {
  Config config;
  std::vector<Plan> products;
  std::vector<int> order;  // in which they are launched
  size_t workspace = 0;
};

// The tile that should take the least time of those that the options allow, or -1 where they allow none.
int choose_many(std::span<const GemmProblem> problems);

ManyPlan plan_many(std::span<const GemmProblem> problems);

// Tiles of a product.
constexpr int64_t tiles_of(const GemmProblem& p, const TileConfig& t) {
  return ceil_div(p.m, t.tile_m) * ceil_div(p.n, t.tile_n);
}

}  // namespace jaxgemm::cuda::sm90

namespace jaxgemm::cuda {

size_t workspace_many_sm90(std::span<const GemmProblem>);
std::string unsupported_many_sm90(std::span<const GemmProblem>);

}  // namespace jaxgemm::cuda
