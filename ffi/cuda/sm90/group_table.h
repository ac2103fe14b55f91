// The host's side of groups: what a grouped product's kernel is told of them. groups.cuh is the other side.
#pragma once

#include <string>

#include "../../problem.h"

namespace jaxgemm::cuda::sm90 {

struct GroupTable;
struct Plan;

GroupTable group_table(const Plan& plan, const GemmProblem& problem, const GemmBuffers& buffers);

// Why the engine cannot run a grouped product, or an empty string.
std::string unsupported_groups(const GemmProblem& problem);

}  // namespace jaxgemm::cuda::sm90
