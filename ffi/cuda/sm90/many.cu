// The launches of many products.
#include <algorithm>
#include <vector>

#include "../chip.h"
#include "launch.h"
#include "many.h"
#include "maps.h"
#include "operands.h"
#include "plan_many.h"
#include "tensor_map.h"

namespace jaxgemm::cuda {
namespace sm90 {
namespace {

Status make_entry(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers, ManyEntry* entry) {
  const Operands operands = operands_of(plan, p, buffers);
  if (!operands.aligned()) return {"kernel 'sm90': operands must be aligned to 16 bytes"};
  entry->out = output_of(plan, p, buffers);
  entry->rows = static_cast<int>(p.m);
  entry->cols = static_cast<int>(p.n);
  entry->k_blocks = static_cast<int>(ceil_div(p.k, step_k(p)));
  return many_maps(plan, operands.a, operands.b, p, entry);
}

// The parameters of one launch, of the products that `order` numbers.
Status make_params(const ManyPlan& plan, std::span<const int> order, std::span<const GemmProblem> problems,
                   std::span<const GemmBuffers> buffers, ManyParameters* params) {
  uint32_t units = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const GemmProblem& p = problems[order[i]];
    const Status status = make_entry(plan.products[order[i]], p, buffers[order[i]], &params->entries[i]);
    if (!status.ok()) return status;
    params->entries[i].first_unit = units;
    units += static_cast<uint32_t>(tiles_of(p, kTiles[plan.config.tile]));
    params->units_end[i] = units;
  }
  std::fill(params->units_end + order.size(), params->units_end + kManyEntries, units);
  params->walk_height = static_cast<uint32_t>(plan.config.walk_height);
  params->schedule = TileSchedule{};
  params->schedule.units = units;
  params->schedule.cluster_m = params->schedule.cluster_n = params->schedule.slices = 1;
  return {};
}

Status launch_many(const ManyPlan& plan, const GemmProblem& p, const ManyParameters& params,
                   const Launch& launch) {
  return launch_tiles(p.a.dtype, p.b.dtype, plan.products[0].x().major, plan.products[0].y().major, params,
                      launch);
}

}  // namespace
}  // namespace sm90

using namespace sm90;

Status prepare_many_sm90(std::span<const GemmProblem> problems, int) {
  if (Status status = load_tensor_map_encoder(); !status.ok()) return status;
  const ManyPlan plan = plan_many(problems);
  Launch launch;
  launch.prepare = true;
  launch.tile = plan.config.tile;
  static const ManyParameters none{};
  return launch_many(plan, problems[0], none, launch);
}

Status launch_many_sm90(std::span<const GemmProblem> problems, std::span<const GemmBuffers> buffers,
                        const Executor& executor) {
  const ManyPlan plan = plan_many(problems);
  std::vector<RepackOperand> copies;
  for (size_t i = 0; i < problems.size(); ++i) {
    for (const RepackOperand& copy : repacks_of(plan.products[i], problems[i], buffers[i]))
      copies.push_back(copy);
  }
  if (Status status = launch_repack(copies, executor.stream); !status.ok()) return status;
  // All launches have about as many products.
  const size_t count = problems.size(), launches = ceil_div(count, kManyEntries);
  static thread_local ManyParameters params;
  for (size_t i = 0; i < launches; ++i) {
    const size_t first = count * i / launches, end = count * (i + 1) / launches;
    const std::span<const int> order = std::span(plan.order).subspan(first, end - first);
    if (Status status = make_params(plan, order, problems, buffers, &params); !status.ok()) return status;
    const uint32_t blocks =
        std::min(params.schedule.units, static_cast<uint32_t>(multiprocessors(executor.device)));
    const Launch launch{.overlaps = !copies.empty() || i > 0,
                        .tile = plan.config.tile,
                        .blocks = dim3(blocks),
                        .stream = executor.stream};
    if (Status status = launch_many(plan, problems[0], params, launch); !status.ok()) return status;
  }
  return {};
}

}  // namespace jaxgemm::cuda
