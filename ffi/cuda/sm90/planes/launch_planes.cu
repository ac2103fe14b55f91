#include <cmath>

#include "../../../arithmetic.h"
#include "../../../recall.h"
#include "../../device/types.cuh"
#include "../product.h"
#include "launch_planes.h"
#include "slabs.h"
#include "split.h"
#include "tail.h"

namespace jaxgemm::cuda::sm90 {
namespace {

SplitOperand split_operand(const GemmProblem& slab, const Matrix& x, const Matrix& planes, const float* from,
                           int64_t rows, bool k_contiguous) {
  const bool as_it_lies = of_sums(slab);
  SplitOperand s;
  s.from = from;
  s.rows = as_it_lies ? slab.k : rows;
  s.k = as_it_lies ? rows : slab.k;
  const bool along_rows = !k_contiguous && !as_it_lies;  // neighbouring rows are neighbours in memory
  s.row_stride = along_rows ? 1 : x.ld;
  s.k_stride = along_rows ? x.ld : 1;
  s.pitch = round_up(s.k, kStepK16);
  s.row_pitch = planes.ld;
  s.plane_pitch = as_it_lies ? s.rows * s.pitch : s.pitch;
  if (planes.batch_stride[0]) s.batch_outer = slab.batch[0], s.outer_stride = x.batch_stride[0];
  if (planes.batch_stride[1]) s.batch_inner = slab.batch[1], s.inner_stride = x.batch_stride[1];
  return s;
}

// The launches of one slab.
class SlabLaunch {
 public:
  SlabLaunch(const GemmProblem& p, const Slabs& slabs, int64_t index, const GemmBuffers& buffers,
             const Executor& executor)
      : p_(p), slabs_(slabs), index_(index), executor_(executor), given_(buffers), buffers_(buffers) {
    uint8_t* const workspace = static_cast<uint8_t*>(buffers.workspace);
    buffers_.a = workspace;
    buffers_.b = workspace + slabs.b_offset;
    buffers_.workspace = workspace + slabs.bytes;
    if (p.grouped())
      buffers_.d = static_cast<uint8_t*>(buffers.d) + index * slabs.each * dtype_bytes(p.d);
    else if (index > 0)
      buffers_.c = buffers.d;
    guard_ = reinterpret_cast<int32_t*>(workspace + slabs.scales_offset);
    largest_ = reinterpret_cast<uint32_t*>(workspace + slabs.scales_offset + kGuardBytes);
  }

  Status operator()() {
    const Arithmetic arithmetic = plane_arithmetic(p_);
    const GemmProblem slab = slab_problem(p_, slabs_, index_, arithmetic);
    if (!slab.has_bias) buffers_.bias = nullptr;
    if (slab.k == 0) return launch_empty_sum(slab, buffers_, executor_.stream);
    static thread_local Recall<Plan> recall;
    const Plan plan = recall(key_of(slab, 0, 0), [&] { return make_plan(slab); });
    const bool scaled = plane_scheme(arithmetic).scaled;
    const int planes = plane_scheme(arithmetic).planes;
    if (Status s = scaled ? multiply_scaled(slab, plan) : multiply(slab, plan, planes, nullptr); !s.ok())
      return s;
    return for_parts(slab, plan,
                     [&](const GemmProblem& part, const Plan& planned, const GemmBuffers& buffers, int64_t) {
                       return add_partials(part, planned, buffers, executor_.stream);
                     });
  }

 private:
  void operands_of(const GemmProblem& slab, SplitOperands& x) const {
    const int64_t begin = index_ * slabs_.each;  // where the slab begins, along k or n
    const int64_t a_step = p_.grouped() ? 0 : p_.a.transposed ? p_.a.ld : 1;
    const int64_t b_step = p_.b.transposed == p_.grouped() ? p_.b.ld : 1;
    const auto* const a = static_cast<const float*>(given_.a);
    const auto* const b = static_cast<const float*>(given_.b);
    x[0] = split_operand(slab, p_.a, slab.a, a + begin * a_step, slab.m, !p_.a.transposed);
    x[1] = split_operand(slab, p_.b, slab.b, b + begin * b_step, slab.n, p_.b.transposed);
    if (p_.grouped() && index_ > 0) x[0].rows = 0;  // A's planes are there already
    x[0].to = const_cast<void*>(buffers_.a);
    x[1].to = const_cast<void*>(buffers_.b);
    x[0].largest = largest_;
    x[1].largest = largest_ + p_.m;
  }

  // Makes and multiplies planes of bf16; if there is a guard, only if the guard is up.
  Status multiply(const GemmProblem& slab, const Plan& plan, int planes, const int32_t* guard) const {
    SplitOperands operands;
    operands_of(slab, operands);
    if (Status s = launch_split(operands, planes, guard, executor_.stream); !s.ok()) return s;
    return product(slab, plan, {.guard = guard, .runs_if = 1, .behind_pass = true});
  }

  Status multiply_scaled(const GemmProblem& slab, const Plan& plan) const {
    const size_t bytes = kGuardBytes + sizeof(uint32_t) * (p_.m + p_.n);
    if (cudaMemsetAsync(guard_, 0, bytes, executor_.stream) != cudaSuccess)
      return launch_status("sm90 (scales)");
    SplitOperands operands;
    operands_of(slab, operands);
    if (Status s = launch_largest(operands, executor_.stream); !s.ok()) return s;
    if (Status s = launch_scaled_split(operands, guard_, executor_.stream); !s.ok()) return s;
    const PlaneScales scales{
        .a_largest = largest_, .b_largest = largest_ + p_.m, .guard = guard_, .behind_pass = true};
    if (Status s = product(slab, plan, scales); !s.ok()) return s;
    // The product of unscaled planes runs in the same configuration, so that its partial results lie at the
    // same places.
    const GemmProblem unscaled = slab_problem(p_, slabs_, index_, kUnscaled);
    return multiply(unscaled, make_plan(unscaled, plan.config), plane_scheme(kUnscaled).planes, guard_);
  }

  Status product(const GemmProblem& slab, const Plan& plan, const PlaneScales& scales) const {
    return for_parts(
        slab, plan,
        [&](const GemmProblem& part, const Plan& planned, const GemmBuffers& buffers, int64_t row) {
          PlaneScales of_part = scales;
          if (scales.a_largest) of_part.a_largest += row;
          AllParts params{};
          return launch_product(part, planned, buffers, executor_, of_part, &params);
        });
  }

  // Calls launch(problem, plan, buffers, first row) for each part of the rows that has a launch of its own
  // (tail.h).
  template <typename Launch>
  Status for_parts(const GemmProblem& slab, const Plan& plan, Launch&& launch) const {
    if (plan.config.tail == 1) return launch(slab, plan, buffers_, 0);
    for (const RowPart& part : row_parts(slab, plan.config)) {
      const GemmProblem problem = part.of(slab);
      GemmBuffers buffers = buffers_;
      const auto result = static_cast<int64_t>(dtype_bytes(slab.d)) * part.begin * slab.n;
      buffers.a = static_cast<const uint8_t*>(buffers_.a) + 2 * part.begin * slab.a.ld;
      buffers.d = static_cast<uint8_t*>(buffers_.d) + result;
      if (slab.has_c) buffers.c = static_cast<const uint8_t*>(buffers_.c) + result;
      if (Status s = launch(problem, make_plan(problem, part.config), buffers, part.begin); !s.ok()) return s;
    }
    return {};
  }

  const GemmProblem& p_;
  const Slabs& slabs_;
  const int64_t index_;
  const Executor& executor_;
  const GemmBuffers& given_;
  GemmBuffers buffers_;  // the slab's
  int32_t* guard_;
  uint32_t* largest_;
};

}  // namespace

void set_plane_part(const GemmProblem& p, bool swap, const PlaneScales& scales, AllParts* params) {
  if (promoted(p)) {
    params->plane_product_count = 1;
    params->plane_products[0] = {0, 0, 1.f};
    return;
  }
  const PlaneScheme scheme = plane_scheme(p.arithmetic);
  const int64_t pitch = plane_pitch(p);
  params->plane_product_count = scheme.products;
  for (int i = 0; i < scheme.products; ++i) {
    const PlanePair pair = kPlanePairs[scheme.products - 1 - i];
    params->plane_products[i] = {static_cast<int>(pair.x * pitch), static_cast<int>(pair.y * pitch),
                                 std::ldexp(1.f, 2 * scheme.halvings - scheme.bits * (pair.x + pair.y))};
  }
  params->x_largest = swap ? scales.b_largest : scales.a_largest;
  params->y_largest = swap ? scales.a_largest : scales.b_largest;
  params->guard = scales.guard;
  params->runs_if = scales.runs_if;
}

Status launch_planes(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  const Slabs slabs = slabs_of(p);
  for (int64_t i = 0; i < slabs.count; ++i) {
    if (Status s = SlabLaunch(p, slabs, i, buffers, executor)(); !s.ok()) return s;
  }
  return {};
}

}  // namespace jaxgemm::cuda::sm90
