#include "plan.h"

#include <algorithm>

#include "../../arithmetic.h"
#include "../planning.h"
#include "choose.h"
#include "planes/tail.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int64_t kAlignBytes = 16;  // of the copy engine

size_t take(size_t* total, size_t bytes) {
  const size_t offset = *total;
  *total += (bytes + 255) / 256 * 256;
  return offset;
}

PlannedOperand plan_operand(const Matrix& matrix, int64_t rows, bool k_major, const GemmProblem& p,
                            bool in_place, size_t* workspace) {
  PlannedOperand x;
  x.rows = rows;
  x.k = of_planes(p) ? k_of_planes(p) : p.k;
  x.ld = matrix.ld;
  const int64_t bytes = static_cast<int64_t>(dtype_bytes(matrix.dtype)), align = kAlignBytes / bytes;
  x.major = k_major ? Major::kK : Major::kMN;
  bool aligned = in_place || x.outer() <= 1 || x.ld % align == 0;
  for (int i = 0; i < 2; ++i) {
    x.batch_stride[i] = p.batch[i] > 1 ? matrix.batch_stride[i] : 0;
    aligned = aligned && x.batch_stride[i] % align == 0;
  }
  if (aligned || p.k == 0) return x;
  x.repack = true;
  x.ld = round_up(x.inner(), kL2Line);
  const int64_t product = x.ld * x.outer();
  // If a level of the batch is broadcast, its stride is 0 and stays 0: the copy holds each matrix once.
  const int64_t inner_count = x.batch_stride[1] ? p.batch[1] : 1;
  const int64_t outer_count = x.batch_stride[0] ? p.batch[0] : 1;
  if (x.batch_stride[1]) x.batch_stride[1] = product;
  if (x.batch_stride[0]) x.batch_stride[0] = product * inner_count;
  x.workspace_offset = take(workspace, static_cast<size_t>(product * inner_count * outer_count) * bytes);
  return x;
}

}  // namespace

void plan_operands(const GemmProblem& p, bool a_in_place, bool b_in_place, Plan* plan, size_t* workspace) {
  plan->a = plan_operand(p.a, p.m, !p.a.transposed, p, a_in_place, workspace);
  plan->b = plan_operand(p.b, p.n, p.b.transposed, p, b_in_place, workspace);
}

std::string too_long(std::initializer_list<int64_t> extents) {
  const bool fit = std::max(extents) <= INT32_MAX - 512;
  return fit ? "" : "extents must be below 2^31 - 512";
}

Plan make_plan(const GemmProblem& p) {
  const std::vector<RankedConfig> ranked = rank_configs(p, kModelMachine);
  return ranked.empty() ? Plan{} : make_plan(p, ranked[0].config);
}

Plan make_plan(const GemmProblem& p, const Config& config) {
  Plan plan;
  plan.found = true;
  plan.config = config;
  const TileConfig& tile = kTiles[plan.config.tile];
  const bool swap = plan.config.swap, x = tile.every_eighth, y = tile.realigns;  // loaded in place
  plan_operands(p, swap ? y : x, swap ? x : y, &plan, &plan.workspace);
  if (p.gated) plan.b_up = plan_operand(p.b, p.n, p.b.transposed, p, false, &plan.workspace);
  if (!p.grouped()) plan.idle_stages = idle_stages(Shape(p, swap), tile, plan.config, kModelSms);
  if (plan.config.partials() > 1) {
    plan.partial_pitch = round_up(p.n, 4);
    const int64_t elements = plan.partial_pitch * p.m * p.batch_count() * plan.config.partials();
    plan.partial_offset = take(&plan.workspace, static_cast<size_t>(elements) * 4);
  }
  if (config.tail > 1) {  // each part has the workspace to itself
    for (const RowPart& part : row_parts(p, config))
      plan.workspace = std::max(plan.workspace, make_plan(part.of(p), part.config).workspace);
  }
  return plan;
}

}  // namespace jaxgemm::cuda::sm90
