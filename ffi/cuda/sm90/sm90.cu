// sm90: the Hopper engine's host side. A plan becomes a schedule, an output and tensor maps, which are the
// kernel's parameters, and up to three launches: copy unaligned operands, multiply, and add the partial
// results of a split K.
#include "../../arithmetic.h"
#include "../../recall.h"
#include "../chip.h"
#include "../planning.h"
#include "choose_grouped.h"
#include "group_table.h"
#include "launch.h"
#include "maps.h"
#include "operands.h"
#include "options.h"
#include "plan.h"
#include "reduce.cuh"
#include "sm90.h"
#include "tensor_map.h"

namespace jaxgemm::cuda {
namespace sm90 {
namespace {

BatchMap batch_of(const Plan& plan, const GemmProblem& p) {
  const PlannedOperand &x = plan.x(), &y = plan.y();
  return {Divisor(static_cast<uint32_t>(p.batch[1])), x.batch_stride[0] != 0, x.batch_stride[1] != 0,
          y.batch_stride[0] != 0, y.batch_stride[1] != 0};
}

// What the kernel is told.
Status make_parameters(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers,
                       const Operands& operands, int multiprocessors, AllParts* params) {
  params->schedule =
      p.grouped() ? make_grouped_schedule(plan, p, multiprocessors) : make_schedule(plan, p, multiprocessors);
  if (params->schedule.units == 0) return {"kernel 'sm90': the problem has more than 2^29 tiles"};
  params->out = output_of(plan, p, buffers);
  params->batch = batch_of(plan, p);
  params->rows = static_cast<int>(plan.x().rows);
  params->cols = static_cast<int>(plan.y().rows);
  params->idle_stages = static_cast<uint8_t>(plan.idle_stages);
  if (p.grouped()) params->groups = group_table(plan, p, buffers);
  return make_maps(plan, p, operands, params);
}

// k is 0, so there is nothing to multiply: the second kernel of a split K finishes sums of no partial
// results.
Status launch_empty_sum(const GemmProblem& p, const GemmBuffers& buffers, CUstream_st* stream) {
  if (!p.gated) return launch_reduce(p, buffers, nullptr, ceil_div(p.n, 4) * 4, 0, stream);
  const cudaError_t error = cudaMemsetAsync(buffers.d, 0, p.m * p.n * dtype_bytes(p.d), stream);
  return error == cudaSuccess ? Status{} : Status{std::string("kernel 'sm90': ") + cudaGetErrorString(error)};
}

}  // namespace
}  // namespace sm90

using namespace sm90;

std::string unsupported_sm90(const GemmProblem& p) {
  if (std::string why = too_long({p.m, p.n, p.k, p.batch[0], p.batch[1], p.batch_count()}); !why.empty())
    return why;
  for (const Matrix* x : {&p.a, &p.b}) {
    if (x->ld > (int64_t(1) << 38)) return "row pitches must be below 2^39 bytes";
  }
  if (p.grouped()) {
    if (std::string why = unsupported_groups(p); !why.empty()) return why;
  }
  if (p.gated) {
    if (p.batch_count() != 1 && !p.grouped()) return "a gated product of kernel 'sm90' has no batch";
    if (p.a.transposed || p.b.transposed) return "a gated product of kernel 'sm90' takes row-major operands";
    if (fixed(p, "split_k") > 1) {
      return "a gated product of kernel 'sm90' is not split along k";
    }
  }
  if (!p.output_empty() && !make_plan(p).found) {
    return "no tile configuration matches the options; see ffi/cuda/sm90/configs.h for those compiled";
  }
  return {};
}

size_t workspace_sm90(const GemmProblem& p) { return p.output_empty() ? 0 : make_plan(p).workspace; }

std::vector<Candidate> candidates_sm90(const GemmProblem& p, const Machine& machine) {
  std::vector<Candidate> candidates;
  if (p.output_empty()) return candidates;
  for (const RankedConfig& ranked : rank_configs(p, machine)) {
    const Cost& cost = ranked.cost;
    candidates.push_back({options_of(ranked.config),
                          cost.total,
                          {{"launch", cost.launch},
                           {"main_loop", cost.main_loop},
                           {"epilogue", cost.epilogue},
                           {"memory", cost.memory},
                           {"split", cost.split},
                           {"copies", cost.copies}}});
  }
  return candidates;
}

Status prepare_sm90(const GemmProblem& p, int) {
  if (p.output_empty()) return {};
  if (Status status = load_tensor_map_encoder(); !status.ok()) return status;
  const Plan plan = make_plan(p);
  Launch launch;
  launch.prepare = true;
  launch.tile = plan.config.tile;
  static const AllParts none{};
  return launch_tiles(p.a.dtype, plan.x().major, plan.y().major, none, launch);
}

Status launch_sm90(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  if (p.output_empty()) return {};
  if (p.k == 0) return launch_empty_sum(p, buffers, executor.stream);
  static thread_local Recall<Plan> recall;
  const Plan plan = recall(key_of(p, 0, 0), [&] { return make_plan(p); });
  if (!plan.found) return {"internal error: kernel 'sm90' has no configuration for this problem"};
  const Operands operands = operands_of(plan, p, buffers);
  if (!operands.aligned()) return {"kernel 'sm90': operands must be aligned to 16 bytes"};
  if (operands.repacked) {
    const Status status = launch_repack(repacks_of(plan, p, buffers), executor.stream);
    if (!status.ok()) return status;
  }

  AllParts params{};
  if (Status status = make_parameters(plan, p, buffers, operands, multiprocessors(executor.device), &params);
      !status.ok())
    return status;
  const auto [blocks_x, blocks_y, blocks_z] = grid_of(params.schedule, plan);
  const Launch launch{.overlaps = operands.repacked,
                      .tile = plan.config.tile,
                      .cluster = plan.config.cluster(),
                      .blocks = dim3(blocks_x, blocks_y, blocks_z),
                      .stream = executor.stream};
  const Status status = launch_tiles(p.a.dtype, plan.x().major, plan.y().major, params, launch);
  const int partials = plan.config.partials();
  if (!status.ok() || partials == 1) return status;
  return launch_reduce(p, buffers, static_cast<const float*>(params.out.d), plan.partial_pitch, partials,
                       executor.stream);
}

}  // namespace jaxgemm::cuda
