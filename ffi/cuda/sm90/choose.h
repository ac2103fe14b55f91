// The configurations that can run a problem, by what they should take.
#pragma once

#include <vector>

#include "cost.h"

namespace jaxgemm::cuda::sm90 {

struct RankedConfig {
  Config config;
  Cost cost;
};

// All of them, the cheapest first: a pure function of its arguments. Options that the problem's config fixes
// are kept. Empty if no configuration can run the problem.
std::vector<RankedConfig> rank_configs(const GemmProblem& problem, const Machine& machine);

}  // namespace jaxgemm::cuda::sm90
