// The host's side of groups: what a grouped product's kernel is told of them. groups.cuh is the other side.
#pragma once

#include "../../problem.h"

namespace jaxgemm::cuda::sm90 {

struct GroupTable;
struct Plan;
struct TileSchedule;

GroupTable group_table(const Plan& plan, const GemmProblem& problem, const GemmBuffers& buffers);

// The schedule of a plan, by what the host knows of it: `units` is as many as there may be.
TileSchedule make_grouped_schedule(const Plan& plan, const GemmProblem& problem, int multiprocessors);

}  // namespace jaxgemm::cuda::sm90
