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

// The map of an operand for tiles that have `rows` of it, `tile_rows` at most, which `share` blocks of a
// cluster load together.
Status operand_map(const PlannedOperand& x, const void* base, int64_t rows, int tile_rows, int share,
                   const GemmProblem& p, CUtensorMap* map) {
  TensorMapRequest r{};
  r.base = base;
  r.rank = 4;
  r.bf16 = p.a.dtype == DType::kBF16;
  const int64_t extents[4] = {x.inner(), x.outer(), x.batch_stride[1] ? p.batch[1] : 1,
                              x.batch_stride[0] ? p.batch[0] : 1};
  const int64_t strides[4] = {1, x.ld, x.batch_stride[1], x.batch_stride[0]};
  const bool k_major = x.major == Major::kK;
  const int boxes[4] = {k_major ? kTileK : rows_block(tile_rows),
                        (k_major ? loaded_rows(rows, tile_rows, share) : kTileK) / share, 1, 1};
  for (int i = 0; i < 4; ++i) {
    r.extent[i] = extents[i];
    r.stride[i] = strides[i];
    r.box[i] = boxes[i];
  }
  return encode_tensor_map(r, map);
}

// The maps of an operand: for the first tile and all whole ones, and for a last one that is cut.
Status operand_maps(const PlannedOperand& x, const void* base, int tile_rows, int share, const GemmProblem& p,
                    CUtensorMap* map, CUtensorMap* edge) {
  const Status status = operand_map(x, base, x.rows, tile_rows, share, p, map);
  if (!status.ok() || x.major != Major::kK || x.rows < tile_rows || x.rows % tile_rows == 0) return status;
  return operand_map(x, base, x.rows % tile_rows, tile_rows, share, p, edge);
}

// Of an operand that is realigned, every eighth line. Where lines are no multiple of 8, `edge` is the map of
// the first of every 8, which are one more: up to the last one's end, as what is behind it is another's. The
// others' map ends with the last whole 8; if there are none, what it has of others' lines is shifted out.
Status lines_maps(const PlannedOperand& y, const void* base, const TileConfig& tile, const GemmProblem& p,
                  Params* params) {
  params->lines = {base,
                   y.ld,
                   {y.batch_stride[0], y.batch_stride[1]},
                   static_cast<int>(y.inner()),
                   static_cast<int>(y.outer())};
  const RawStage stage(tile, y.major == Major::kMN);
  const auto encode = [&](int64_t of_8, int64_t count, CUtensorMap* map) {
    TensorMapRequest r{};
    r.base = base;
    r.rank = 4;
    r.bf16 = p.a.dtype == DType::kBF16;
    const int64_t extents[4] = {(of_8 - 1) * y.ld + y.inner(), count, y.batch_stride[1] ? p.batch[1] : 1,
                                y.batch_stride[0] ? p.batch[0] : 1};
    const int64_t strides[4] = {1, 8 * y.ld, y.batch_stride[1], y.batch_stride[0]};
    const int boxes[4] = {8 * stage.vectors, stage.box_lines, 1, 1};
    for (int i = 0; i < 4; ++i) {
      r.extent[i] = extents[i];
      r.stride[i] = strides[i];
      r.box[i] = boxes[i];
    }
    return encode_tensor_map(r, map);
  };
  const int64_t whole = y.outer() / 8, rest = y.outer() % 8;
  Status status = rest ? encode(rest, whole + 1, &params->y_edge) : Status{};
  if (whole == 0)
    params->y = params->y_edge;
  else if (status.ok())
    status = encode(8, whole, &params->y);
  return status;
}

// Of D, or of C, which is as D is.
Status result_map(const GemmProblem& p, const void* base, int columns, bool swap, CUtensorMap* map) {
  TensorMapRequest r{};
  r.base = base;
  r.rank = 3;
  r.bf16 = p.d == DType::kBF16;
  const int64_t extents[3] = {p.n, p.m, p.batch_count()};
  const int64_t strides[3] = {1, p.n, p.m * p.n};
  const int boxes[3] = {swap ? 16 : columns, swap ? columns : 16, 1};
  for (int i = 0; i < 3; ++i) {
    r.extent[i] = extents[i];
    r.stride[i] = strides[i];
    r.box[i] = boxes[i];
  }
  return encode_tensor_map(r, map);
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
    out.plain = true;
    // The padding of a partial row may be written.
    if (!out.swap) out.cols = out.pitch;
    out.pairs = true;
    return out;
  }
  out.d = buffers.d;
  out.c = buffers.c;
  out.bias = buffers.bias;
  out.pitch = p.n;
  out.batch_stride = p.m * p.n;
  out.alpha = static_cast<float>(p.alpha);
  out.beta = static_cast<float>(p.beta);
  out.activation = p.activation;
  out.f32 = p.d == DType::kF32;
  out.plain = !p.has_c && !p.has_bias && p.activation == Activation::kNone;
  out.copy = !out.f32 && p.n % 8 == 0 && aligned(buffers.d, 16);
  out.pairs = p.n % 2 == 0 && aligned(buffers.d, 2 * static_cast<int64_t>(dtype_bytes(p.d)));
  return out;
}

template <typename In, Finish kFinish>
Status launch_majors(Major x, Major y, const Params& params, const Launch& launch) {
  return with_majors(x, y,
                     [&]<Major kX, Major kY>() { return launch_tiles<In, kX, kY, kFinish>(params, launch); });
}

template <typename In>
Status launch_in(const GemmProblem& p, const Plan& plan, const GatedParams& params, const Launch& launch) {
  if (p.gated) return launch_gated_tiles<In>(params, launch);
  const Major x = plan.x().major, y = plan.y().major;
  const TileConfig& tile = kTiles[launch.tile];
  Finish finish = params.out.finish();
  // All other code reads the bias in pairs, and has C copied.
  if (!has_finish(tile, finish) || !aligned(params.out.bias, 4) || !aligned(params.out.c, 16))
    finish = Finish::kFull;
  Status status;
  const auto run = [&]<Finish kFinish>() {
    if (status.ok() && (launch.prepare ? has_finish(tile, kFinish) : finish == kFinish))
      status = launch_majors<In, kFinish>(x, y, params, launch);
  };
  run.template operator()<Finish::kPlain>();
  run.template operator()<Finish::kRows>();
  run.template operator()<Finish::kActivated>();
  run.template operator()<Finish::kActivatedRows>();
  run.template operator()<Finish::kFull>();
  return status;
}

Status launch_in(const GemmProblem& p, const Plan& plan, const GatedParams& params, const Launch& launch) {
  return p.a.dtype == DType::kBF16 ? launch_in<__nv_bfloat16>(p, plan, params, launch)
                                   : launch_in<__half>(p, plan, params, launch);
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

std::vector<Candidate> candidates_sm90(const GemmProblem& p, int sm_count) {
  std::vector<Candidate> candidates;
  if (p.output_empty()) return candidates;
  for (const RankedConfig& ranked : rank_configs(p, sm_count)) {
    const Config& c = ranked.config;
    const TileConfig& tile = kTiles[c.tile];
    candidates.push_back(
        {{tile.tile_m, tile.tile_n, static_cast<int64_t>(tile.schedule), c.cluster_m, c.cluster_n, c.split_k,
          c.swap ? 2 : 1, c.group, static_cast<int64_t>(c.grid), static_cast<int64_t>(c.reduction),
          tile.blocks, static_cast<int64_t>(tile.unaligned)},
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
  return launch_in(p, plan, GatedParams{}, launch);
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

  GatedParams params{};
  params.out = output_of(plan, p, buffers);
  const PlannedOperand &x = plan.x(), &y = plan.y();
  params.batch = {Divisor(static_cast<uint32_t>(p.batch[1])), x.batch_stride[0] != 0, x.batch_stride[1] != 0,
                  y.batch_stride[0] != 0, y.batch_stride[1] != 0};
  const bool narrow = narrow_edge(tile, y.rows);
  params.rows = static_cast<int>(x.rows);
  params.cols = static_cast<int>(y.rows);
  Status status =
      operand_maps(x, config.swap ? b : a, tile.result_m(), config.cluster_n, p, &params.x, &params.x_edge);
  if (status.ok() && tile.realigns())
    status = lines_maps(y, config.swap ? a : b, tile, p, &params);
  else if (status.ok())
    status =
        operand_maps(y, config.swap ? a : b, tile.result_n(), config.cluster_m, p, &params.y, &params.y_edge);
  if (status.ok() && p.gated) {
    const int rows = config.swap ? tile.result_m() : tile.result_n();
    const int share = config.swap ? config.cluster_n : config.cluster_m;
    status = operand_map(plan.b_up, b_up, plan.b_up.rows, rows, share, p, &params.up);
  }
  if (status.ok() && params.out.copy)
    status = result_map(p, buffers.d, tile.strip_columns(), config.swap, &params.d);
  if (status.ok() && params.out.copy && params.out.c && aligned(params.out.c, 16))
    status = result_map(p, buffers.c, tile.strip_columns(), config.swap, &params.c);
  if (!status.ok()) return status;

  Launch launch;
  launch.after_repack = repack;
  launch.tile = config.tile;
  launch.cluster = config.cluster();
  launch.stream = executor.stream;

  TileSchedule& s = params.schedule;
  s.cluster_m = static_cast<uint8_t>(config.cluster_m);
  s.cluster_n = static_cast<uint8_t>(config.cluster_n);
  const int64_t rows = ceil_div(ceil_div(x.rows, tile.result_m()), config.cluster_m);
  const int64_t cols = ceil_div(ceil_div(y.rows, tile.result_n()), config.cluster_n);
  const int64_t units = rows * cols * p.batch_count() * config.partials();
  if (units > INT32_MAX / 4) return {"kernel 'sm90': the problem has more than 2^29 tiles"};
  const int sms = multiprocessors(executor.device);
  const int64_t resident = std::min<int64_t>(units, tile.blocks * resident_clusters(sms, launch.cluster));
  const int64_t group = std::min<int64_t>(config.group, rows);
  s.one_wave = one_wave(units, resident, launch.cluster) && (group == 1 || group == rows);
  s.columns_first = s.one_wave && group < rows;
  s.narrow_col = narrow ? static_cast<int>(ceil_div(y.rows, tile.result_n()) - 1) : -1;
  s.narrow_last = !s.one_wave && narrow && cols > 1 && cols * rows == units && config.cluster_n == 1 &&
                  config.slices() == 1 && units <= kNarrowLastWaves * resident;
  const uint32_t walked = static_cast<uint32_t>(s.narrow_last ? cols - 1 : cols);
  s.units = static_cast<uint32_t>(units);
  s.products = static_cast<uint32_t>(p.batch_count() * config.partials());
  s.dealt = static_cast<uint16_t>(resident);
  s.rows = static_cast<uint32_t>(rows);
  s.tiles = Divisor(s.rows * walked);
  s.group_tiles = Divisor(static_cast<uint32_t>(group) * walked);
  s.in_group = Divisor(static_cast<uint32_t>(group));
  s.in_last = Divisor(static_cast<uint32_t>(rows % group ? rows % group : group));
  s.splits = Divisor(static_cast<uint32_t>(config.partials()));
  const int64_t k_blocks = ceil_div(p.k, kTileK);
  s.k_each = static_cast<uint32_t>(k_blocks / config.split_k);
  s.k_extra = static_cast<uint32_t>(k_blocks % config.split_k);
  s.slices = static_cast<uint8_t>(config.slices());
  params.idle_stages = static_cast<uint8_t>(idle_stages(Shape(p, config.swap), tile, config, sms));
  s.cluster_shift = static_cast<uint8_t>(std::countr_zero(static_cast<unsigned>(launch.cluster)));
  launch.blocks = dim3(config.grid == Grid::kResident ? resident : units);
  if (s.one_wave) launch.blocks = dim3(s.rows, static_cast<uint32_t>(cols), s.products);
  if (s.columns_first) std::swap(launch.blocks.x, launch.blocks.y);
  launch.blocks.x *= launch.cluster;

  status = launch_in(p, plan, params, launch);
  if (!status.ok() || config.partials() == 1) return status;
  return launch_reduce(p, buffers, static_cast<const float*>(params.out.d), plan.partial_pitch,
                       config.partials(), executor.stream);
}

}  // namespace jaxgemm::cuda
