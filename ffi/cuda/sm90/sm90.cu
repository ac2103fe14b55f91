// sm90: the Hopper engine's host side. A plan becomes a schedule, an output and tensor maps, which are the
// kernel's parameters, and up to three launches: copy unaligned operands, multiply, and add the partial
// results of a split K.
#include "../../arithmetic.h"
#include "../../recall.h"
#include "../chip.h"
#include "../planning.h"
#include "bytes/copies.h"
#include "bytes/launch_bytes.h"
#include "choose_grouped.h"
#include "group_table.h"
#include "launch.h"
#include "maps.h"
#include "operands.h"
#include "options.h"
#include "plan.h"
#include "planes/launch_planes.h"
#include "planes/slabs.h"
#include "product.h"
#include "reduce.cuh"
#include "sm90.h"
#include "tensor_map.h"

namespace jaxgemm::cuda {
namespace sm90 {
namespace {

// The problem that is planned: of planes, if operands are split into planes; of copies, if operands of 8 bits
// are copied.
GemmProblem planned(const GemmProblem& p) {
  if (of_bytes(p)) return copied_problem(p, byte_copies(p));
  return of_planes(p) ? slab_problem(p, slabs_of(p), 0, plane_arithmetic(p)) : p;
}

// Microseconds of the pass that makes the planes or copies that are multiplied. 0 if the planned problem's
// cost includes the pass: in all cases but single planes and copies.
double pass_time(const GemmProblem& problem, const GemmProblem& planned) {
  if (of_bytes(problem)) return copy_time(2 * double(byte_copies(problem).bytes));
  if (!of_planes(problem) || of_planes(planned)) return 0;
  GemmProblem unsplit = planned;
  unsplit.arithmetic = plane_arithmetic(problem);
  return split_time(unsplit);
}

BatchMap batch_of(const Plan& plan, const GemmProblem& p) {
  const PlannedOperand &x = plan.x(), &y = plan.y();
  return {Divisor(static_cast<uint32_t>(p.batch[1])), x.batch_stride[0] != 0, x.batch_stride[1] != 0,
          y.batch_stride[0] != 0, y.batch_stride[1] != 0};
}

// Fills in the kernel's parameters.
Status make_parameters(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers,
                       const Operands& operands, const PlaneScales& scales, int multiprocessors,
                       AllParts* params) {
  params->schedule =
      p.grouped() ? make_grouped_schedule(plan, p, multiprocessors) : make_schedule(plan, p, multiprocessors);
  if (params->schedule.units == 0) return {"kernel 'sm90': the problem has more than 2^29 tiles"};
  params->out = output_of(plan, p, buffers);
  params->batch = batch_of(plan, p);
  params->rows = static_cast<int>(plan.x().rows);
  params->cols = static_cast<int>(plan.y().rows);
  params->idle_stages = static_cast<uint8_t>(plan.idle_stages);
  if (p.grouped()) params->groups = group_table(plan, p, buffers);
  if (of_planes(p) || promoted(p)) set_plane_part(p, plan.config.swap, scales, params);
  return make_maps(plan, p, operands, params);
}

}  // namespace

Status launch_product(const GemmProblem& p, const Plan& plan, const GemmBuffers& buffers,
                      const Executor& executor, const PlaneScales& scales, AllParts* params) {
  if (!plan.found) return {"internal error: kernel 'sm90' has no configuration for this problem"};
  const Operands operands = operands_of(plan, p, buffers);
  if (!operands.aligned()) return {"kernel 'sm90': operands must be aligned to 16 bytes"};
  if (operands.repacked) {
    const Status status = launch_repack(repacks_of(plan, p, buffers), executor.stream);
    if (!status.ok()) return status;
  }
  if (Status status =
          make_parameters(plan, p, buffers, operands, scales, multiprocessors(executor.device), params);
      !status.ok())
    return status;
  const auto [blocks_x, blocks_y, blocks_z] = grid_of(params->schedule, plan);
  const Launch launch{.overlaps = scales.behind_pass || operands.repacked,
                      .tile = plan.config.tile,
                      .cluster = plan.config.cluster(),
                      .blocks = dim3(blocks_x, blocks_y, blocks_z),
                      .stream = executor.stream};
  const bool swap = plan.config.swap;
  return launch_tiles((swap ? p.b : p.a).dtype, (swap ? p.a : p.b).dtype, plan.x().major, plan.y().major,
                      *params, launch);
}

Status add_partials(const GemmProblem& p, const Plan& plan, const GemmBuffers& buffers, CUstream_st* stream) {
  const int partials = plan.config.partials();
  if (partials == 1) return {};
  const void* const from = static_cast<const uint8_t*>(buffers.workspace) + plan.partial_offset;
  return launch_reduce(p, buffers, from, plan.partial_pitch, partials, stream);
}

Status launch_empty_sum(const GemmProblem& p, const GemmBuffers& buffers, CUstream_st* stream) {
  if (!p.gated) return launch_reduce(p, buffers, nullptr, ceil_div(p.n, 4) * 4, 0, stream);
  const cudaError_t error = cudaMemsetAsync(buffers.d, 0, p.m * p.n * dtype_bytes(p.d), stream);
  return error == cudaSuccess ? Status{} : Status{std::string("kernel 'sm90': ") + cudaGetErrorString(error)};
}

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
  if (of_bytes(p)) {
    if (p.grouped() || p.gated) return "kernel 'sm90' multiplies operands of 8 bits in single products";
    if (p.scaled() && p.has_c) return "kernel 'sm90' adds no C to a scaled product";
    if (p.d == DType::kS32 && (p.has_c || p.has_bias || p.activation != Activation::kNone))
      return "kernel 'sm90' scales products of integers, and adds nothing to them";
  }
  if (!of_planes(p)) {
    if (fixed(p, "slabs") > 1) return "option slabs is for planes of fp32 operands";
    if (fixed(p, "tail") > 1) return "option tail is for planes of fp32 operands";
  } else {
    if (p.gated) return "kernel 'sm90' multiplies no gated pairs in planes of fp32 operands";
    if (p.grouped() && (p.has_bias || p.activation != Activation::kNone))
      return "kernel 'sm90' has neither bias nor activation for groups in planes of fp32 operands";
    const Slabs slabs = slabs_of(p);
    if (!p.output_empty() && slabs.count == 0) {
      return p.grouped() ? "the planes of a, and of 128 columns of b, need more than 1 GiB"
                         : "the planes of 64 values of k need more than 1 GiB";
    }
    if (!p.grouped() && slabs.count > 1 && p.d != DType::kF32) return "the planes need more than 1 GiB";
    if (std::string why = too_long({k_of_planes(planned(p))}); !why.empty()) return why;
  }
  if (!p.output_empty() && !make_plan(planned(p)).found) {
    return "no tile configuration matches the options; see ffi/cuda/sm90/configs.h for those compiled";
  }
  return {};
}

size_t workspace_sm90(const GemmProblem& p) {
  if (p.output_empty()) return 0;
  if (!of_planes(p)) {
    const size_t copies = of_bytes(p) ? byte_copies(p).bytes : 0;
    return copies + make_plan(planned(p)).workspace;
  }
  const Slabs slabs = slabs_of(p);
  size_t most = 0;  // bytes of partial results
  for (const int64_t i : {int64_t{0}, slabs.count - 1})
    most = std::max(most, make_plan(slab_problem(p, slabs, i, plane_arithmetic(p))).workspace);
  return slabs.bytes + most;
}

std::vector<Candidate> candidates_sm90(const GemmProblem& problem, const Machine& machine) {
  std::vector<Candidate> candidates;
  if (problem.output_empty()) return candidates;
  const GemmProblem p = planned(problem);
  const int slabs = of_planes(problem) ? static_cast<int>(slabs_of(problem).count) : 1;
  const double pass = pass_time(problem, p);
  for (RankedConfig& ranked : rank_configs(p, machine)) {
    const Cost& cost = ranked.cost;
    ranked.config.slabs = slabs;
    candidates.push_back({options_of(ranked.config),
                          slabs * (cost.total + pass),
                          {{"launch", slabs * cost.launch},
                           {"main_loop", slabs * cost.main_loop},
                           {"epilogue", slabs * cost.epilogue},
                           {"memory", slabs * cost.memory},
                           {"split", slabs * cost.split},
                           {"copies", slabs * (cost.copies + pass)}}});
  }
  return candidates;
}

Status prepare_sm90(const GemmProblem& problem, int) {
  if (problem.output_empty()) return {};
  if (Status status = load_tensor_map_encoder(); !status.ok()) return status;
  const auto prepare = [](const GemmProblem& p, const Plan& plan) {
    Launch launch;
    launch.prepare = true;
    launch.tile = plan.config.tile;
    static const AllParts none{};
    const bool swap = plan.config.swap;
    return launch_tiles((swap ? p.b : p.a).dtype, (swap ? p.a : p.b).dtype, plan.x().major, plan.y().major,
                        none, launch);
  };
  if (!of_planes(problem)) {
    const GemmProblem p = planned(problem);
    return prepare(p, make_plan(p));
  }
  const Slabs slabs = slabs_of(problem);
  const Arithmetic arithmetic = plane_arithmetic(problem);
  for (const int64_t i : {int64_t{0}, slabs.count - 1}) {  // the last slab is shorter
    const GemmProblem slab = slab_problem(problem, slabs, i, arithmetic);
    const Plan plan = make_plan(slab);
    if (Status s = prepare(slab, plan); !s.ok()) return s;
    if (!plane_scheme(arithmetic).scaled) continue;
    const GemmProblem unscaled = slab_problem(problem, slabs, i, kUnscaled);
    if (Status s = prepare(unscaled, make_plan(unscaled, plan.config)); !s.ok()) return s;
  }
  return {};
}

Status launch_sm90(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  if (p.output_empty()) return {};
  if (of_bytes(p)) return launch_bytes(p, buffers, executor);
  if (of_planes(p)) return launch_planes(p, buffers, executor);
  if (p.k == 0) return launch_empty_sum(p, buffers, executor.stream);
  static thread_local Recall<Plan> recall;
  const Plan plan = recall(key_of(p, 0, 0), [&] { return make_plan(p); });
  AllParts params{};
  if (Status s = launch_product(p, plan, buffers, executor, {}, &params); !s.ok()) return s;
  return add_partials(p, plan, buffers, executor.stream);
}

}  // namespace jaxgemm::cuda
