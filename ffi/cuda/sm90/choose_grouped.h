// The configurations that can run a grouped product.
#pragma once

#include <string>

#include "choose.h"

namespace jaxgemm::cuda::sm90 {

// In no order.
std::vector<RankedConfig> rank_grouped(const GemmProblem& problem, const Machine& machine);

// Why the engine cannot run a grouped product, or an empty string.
std::string unsupported_groups(const GemmProblem& problem);

}  // namespace jaxgemm::cuda::sm90
