// sm90: the Hopper engine's host side. A plan becomes tensor maps and parameters, and up to three launches:
// repack operands whose rows are not aligned, unless they are realigned (one more where a gated product has
// three), multiply, and add up splits.
#include <algorithm>
#include <bit>

#include "../../arithmetic.h"
#include "../../recall.h"
#include "../chip.h"
#include "../planning.h"
#include "cost.h"
#include "launch.h"
#include "maps.h"
#include "plan.h"
#include "reduce.cuh"
#include "repack.cuh"
#include "sm90.h"
#include "tensor_map.h"

namespace jaxgemm::cuda {
namespace sm90 {
namespace {

RepackOperand repack_of(const PlannedOperand& x, const Matrix& matrix, const void* from, void* workspace,
                        const GemmProblem& p) {
  RepackOperand r;
  if (!x.repack) return r;
  r.from = from;
  r.to = static_cast<uint8_t*>(workspace) + x.workspace_offset;
  r.length = x.inner();
  r.lines = x.outer();
  r.from_pitch = matrix.ld;
  r.to_pitch = x.ld;
  r.from_outer = p.batch[0] > 1 ? matrix.batch_stride[0] : 0;
  r.from_inner = p.batch[1] > 1 ? matrix.batch_stride[1] : 0;
  r.batch_outer = r.from_outer ? p.batch[0] : 1;
  r.batch_inner = r.from_inner ? p.batch[1] : 1;
  return r;
}

Status repack_operands(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers,
                       CUstream_st* stream) {
  const RepackOperand a = repack_of(plan.a, p.a, buffers.a, buffers.workspace, p);
  const RepackOperand b = repack_of(plan.b, p.b, buffers.b, buffers.workspace, p);
  if (!plan.b_up.repack) return launch_repack(a, b, stream);
  const Status status = plan.a.repack ? launch_repack(a, {}, stream) : Status{};
  return status.ok() ? launch_repack(b, repack_of(plan.b_up, p.b, buffers.b_up, buffers.workspace, p), stream)
                     : status;
}

// How results are written. What follows the two products of a gated pair is none of the ways' business.
Way way_of(const Output& out, const GemmProblem& p) {
  const bool alone = !p.has_c && !p.has_bias && p.activation == Activation::kNone;
  const bool plain = alone && out.alpha == 1.f;
  if (out.f32) {
    const bool fits = out.swap || (p.n % 2 == 0 && aligned(out.d, 8));
    return plain && fits && !p.gated ? Way::kFloats : Way::kElements;
  }
  const bool whole = p.n % 8 == 0 && aligned(out.d, 16);
  if (whole && (plain || p.gated)) return Way::kPlain;
  if (p.gated || alone) return Way::kRows;
  if (!usual(p.activation) || !aligned(out.bias, 4)) return Way::kElements;  // a bias is read in pairs
  if (whole && aligned(out.c, 16)) return Way::kActivated;
  return p.has_c ? Way::kElements : Way::kActivatedRows;
}

Output output_of(const Plan& plan, const GemmProblem& p, const GemmBuffers& buffers) {
  Output out{};
  out.rows = p.m;
  out.cols = p.n;
  out.swap = plan.config.swap;
  if (plan.config.partials() > 1) {
    out.d = static_cast<uint8_t*>(buffers.workspace) + plan.partial_offset;
    out.pitch = plan.partial_pitch;
    out.batch_stride = p.m * out.pitch;
    out.split_stride = out.batch_stride * p.batch_count();
    out.alpha = 1.f;
    out.f32 = true;
    // The padding of a partial row may be written.
    if (!out.swap) out.cols = out.pitch;
    out.way = Way::kFloats;
    return out;
  }
  out.d = buffers.d;
  out.c = buffers.c;
  out.bias = buffers.bias;
  const bool eighths = kTiles[plan.config.tile].eighths();  // are products of their own
  out.pitch = eighths ? 8 * p.n : p.n;
  out.batch_stride = eighths ? p.n : p.m * p.n;
  out.alpha = static_cast<float>(p.alpha);
  out.beta = static_cast<float>(p.beta);
  out.activation = p.activation;
  out.f32 = p.d == DType::kF32;
  out.way = way_of(out, p);
  return out;
}

template <typename In>
Status launch_in(const GemmProblem& p, const Plan& plan, const EighthsParams& params, const CUtensorMap& up,
                 const Launch& launch) {
  if (p.gated) return launch_gated_tiles<In>(GatedParams{params, up}, launch);
  return with_majors(plan.x().major, plan.y().major,
                     [&]<Major kX, Major kY>() { return launch_tiles<In, kX, kY>(params, launch); });
}

Status launch_in(const GemmProblem& p, const Plan& plan, const EighthsParams& params, const CUtensorMap& up,
                 const Launch& launch) {
  return p.a.dtype == DType::kBF16 ? launch_in<__nv_bfloat16>(p, plan, params, up, launch)
                                   : launch_in<__half>(p, plan, params, up, launch);
}

constexpr bool deals_every_unit_once() {
  for (const uint32_t size : {2, 4, 8}) {
    for (uint32_t count = 1; count <= kModelSms; ++count) {
      bool dealt[kModelSms] = {};
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t unit = dealt_unit(i, count, size);
        if (unit >= count || dealt[unit]) return false;
        dealt[unit] = true;
      }
    }
  }
  return true;
}
static_assert(deals_every_unit_once());

// The product of nothing: no tiles, for which the engine would need code that nothing else runs.
Status launch_empty_sum(const GemmProblem& p, const GemmBuffers& buffers, CUstream_st* stream) {
  if (!p.gated) return launch_reduce(p, buffers, nullptr, ceil_div(p.n, 4) * 4, 0, stream);
  const cudaError_t error = cudaMemsetAsync(buffers.d, 0, p.m * p.n * dtype_bytes(p.d), stream);
  return error == cudaSuccess ? Status{} : Status{std::string("kernel 'sm90': ") + cudaGetErrorString(error)};
}

}  // namespace
}  // namespace sm90

using namespace sm90;

std::string unsupported_sm90(const GemmProblem& p) {
  // Coordinates of the copy engine are 32-bit.
  for (const int64_t extent : {p.m, p.n, p.k, p.batch[0], p.batch[1], p.batch_count()}) {
    if (extent > INT32_MAX - 512) return "extents must be below 2^31 - 512";
  }
  for (const Matrix* x : {&p.a, &p.b}) {
    if (x->ld > (int64_t(1) << 38)) return "row pitches must be below 2^39 bytes";
  }
  if (p.gated) {
    if (p.batch_count() != 1) return "a gated product of kernel 'sm90' has no batch";
    if (p.a.transposed || p.b.transposed) return "a gated product of kernel 'sm90' takes row-major operands";
    if (fixed(p, kSplitK) > 1) {
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
    const Config& c = ranked.config;
    const TileConfig& tile = kTiles[c.tile];
    candidates.push_back(
        {{tile.tile_m, tile.tile_n, static_cast<int64_t>(tile.schedule), c.cluster_m, c.cluster_n, c.split_k,
          c.swap ? 2 : 1, c.group, static_cast<int64_t>(c.grid), static_cast<int64_t>(c.reduction),
          tile.blocks, static_cast<int64_t>(tile.unaligned), static_cast<int64_t>(tile.rows)},
         ranked.microseconds});
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
  return launch_in(p, plan, EighthsParams{}, {}, launch);
}

Status launch_sm90(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  if (p.output_empty()) return {};
  if (p.k == 0) return launch_empty_sum(p, buffers, executor.stream);
  static thread_local Recall<Plan> recall;
  const Plan plan = recall(key_of(p, 0, 0), [&] { return make_plan(p); });
  if (!plan.found) return {"internal error: kernel 'sm90' has no configuration for this problem"};
  const Config& config = plan.config;
  const TileConfig& tile = kTiles[config.tile];
  const bool repack = plan.a.repack || plan.b.repack;  // b_up lies as b does
  const auto base = [&](const PlannedOperand& x, const void* given) {
    return x.repack ? static_cast<const uint8_t*>(buffers.workspace) + x.workspace_offset : given;
  };
  const void* a = base(plan.a, buffers.a);
  const void* b = base(plan.b, buffers.b);
  const void* b_up = p.gated ? base(plan.b_up, buffers.b_up) : nullptr;
  if (!aligned(a, 16) || !aligned(b, 16) || !aligned(b_up, 16))
    return {"kernel 'sm90': operands must be aligned to 16 bytes"};

  if (repack) {
    const Status status = repack_operands(plan, p, buffers, executor.stream);
    if (!status.ok()) return status;
  }

  EighthsParams params{};
  CUtensorMap up{};
  params.out = output_of(plan, p, buffers);
  const PlannedOperand &x = plan.x(), &y = plan.y();
  params.batch = {Divisor(static_cast<uint32_t>(p.batch[1])), x.batch_stride[0] != 0, x.batch_stride[1] != 0,
                  y.batch_stride[0] != 0, y.batch_stride[1] != 0};
  const bool narrow = narrow_edge(tile, y.rows);
  params.rows = static_cast<int>(x.rows);
  params.cols = static_cast<int>(y.rows);
  Status status = load_maps(plan, config.swap ? b : a, config.swap ? a : b, p, &params);
  if (status.ok() && p.gated) status = up_map(plan, b_up, p, &up);
  if (status.ok()) status = result_maps(plan, p, &params);
  if (!status.ok()) return status;

  Launch launch;
  launch.after_repack = repack;
  launch.tile = config.tile;
  launch.cluster = config.cluster();
  launch.stream = executor.stream;

  TileSchedule& s = params.schedule;
  s.cluster_m = static_cast<uint8_t>(config.cluster_m);
  s.cluster_n = static_cast<uint8_t>(config.cluster_n);
  const int64_t rows = unit_rows(tile, x.rows, config.cluster_m);
  const int64_t cols = ceil_div(ceil_div(y.rows, tile.result_n()), config.cluster_n);
  const int64_t units = rows * cols * p.batch_count() * config.partials();
  if (units > INT32_MAX / 4) return {"kernel 'sm90': the problem has more than 2^29 tiles"};
  const int sms = multiprocessors(executor.device);
  const int64_t resident = std::min<int64_t>(units, tile.blocks * resident_clusters(sms, launch.cluster));
  const int64_t group = std::min<int64_t>(config.group, rows);
  s.one_wave = one_wave(units, resident, launch.cluster) && (group == 1 || group == rows);
  s.columns_first = s.one_wave && group < rows;
  s.narrow_col = narrow ? static_cast<int>(ceil_div(y.rows, tile.result_n()) - 1) : -1;
  if (narrow && !s.one_wave)
    s.narrow_stride =
        static_cast<uint32_t>(narrow_stride(config, rows, cols, units / (rows * cols), resident));
  // A block for each unit.
  if (s.narrow_stride > 0 && config.grid == Grid::kTiles) s.narrow_stride = static_cast<uint32_t>(rows);
  const uint32_t walked = static_cast<uint32_t>(s.narrow_stride > 0 ? cols - 1 : cols);
  s.units = static_cast<uint32_t>(units);
  s.products = static_cast<uint32_t>(p.batch_count() * config.partials());
  s.dealt = static_cast<uint16_t>(resident);
  s.rows = static_cast<uint32_t>(rows);
  params.lines.more = Divisor(s.rows / 8 + 1);
  params.lines.others = Divisor(std::max(s.rows / 8, 1u));  // of none
  s.tiles = Divisor(s.rows * walked);
  s.group_tiles = Divisor(static_cast<uint32_t>(group) * walked);
  s.in_group = Divisor(static_cast<uint32_t>(group));
  s.in_last = Divisor(static_cast<uint32_t>(rows % group ? rows % group : group));
  s.splits = Divisor(static_cast<uint32_t>(config.partials()));
  const int64_t k_blocks = ceil_div(p.k, kTileK);
  s.k_each = static_cast<uint32_t>(k_blocks / config.split_k);
  s.k_extra = static_cast<uint32_t>(k_blocks % config.split_k);
  s.slices = static_cast<uint8_t>(config.slices());
  params.idle_stages = static_cast<uint8_t>(plan.idle_stages);
  s.cluster_shift = static_cast<uint8_t>(std::countr_zero(static_cast<unsigned>(launch.cluster)));
  launch.blocks = dim3(config.grid == Grid::kResident ? resident : units);
  if (s.one_wave) launch.blocks = dim3(s.rows, static_cast<uint32_t>(cols), s.products);
  if (s.columns_first) std::swap(launch.blocks.x, launch.blocks.y);
  launch.blocks.x *= launch.cluster;

  status = launch_in(p, plan, params, up, launch);
  if (!status.ok() || config.partials() == 1) return status;
  return launch_reduce(p, buffers, static_cast<const float*>(params.out.d), plan.partial_pitch,
                       config.partials(), executor.stream);
}

}  // namespace jaxgemm::cuda
