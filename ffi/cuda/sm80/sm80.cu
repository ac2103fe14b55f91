// The host side of the sm80 kernel: from a problem and its buffers to parameters and launches.
#include <algorithm>
#include <cmath>

#include "../../arithmetic.h"
#include "../chip.h"
#include "../sm90/unaligned/repack.cuh"
#include "launch.h"
#include "plan.h"
#include "reduce.cuh"
#include "sm80.h"

namespace jaxgemm::cuda {
namespace sm80 {
namespace {

// The operand's widest access, in elements, given where it begins. One element is always aligned.
int base_width(const PlannedOperand& x, const void* data) {
  if (x.width == 8 && !aligned(data, 16)) return aligned(data, 4) ? 2 : 1;
  return x.width == 2 && !aligned(data, 4) ? 1 : x.width;
}

Side side_of(const void* data, int64_t ld, const int64_t (&batch_stride)[2], int64_t extent, bool async) {
  return {static_cast<const char*>(data), ld * 2, {batch_stride[0] * 2, batch_stride[1] * 2}, extent, async};
}

const void* repacked(const PlannedOperand& x, const GemmBuffers& buffers) {
  return static_cast<const char*>(buffers.workspace) + x.workspace_offset;
}

sm90::RepackOperand repack_of(const PlannedOperand& x, const Matrix& given, const void* from,
                              const GemmBuffers& buffers, const GemmProblem& p) {
  sm90::RepackOperand r;
  if (!x.repack) return r;
  r.from = from;
  r.to = const_cast<void*>(repacked(x, buffers));
  r.length = x.inner;
  r.lines = x.outer;
  r.from_pitch = given.ld;
  r.to_pitch = x.ld;
  r.batch_outer = x.batch_stride[0] ? p.batch[0] : 1;
  r.batch_inner = x.batch_stride[1] ? p.batch[1] : 1;
  r.from_outer = given.batch_stride[0];
  r.from_inner = given.batch_stride[1];
  return r;
}

Output output_of(const GemmProblem& p, const GemmBuffers& buffers) {
  Output out{};
  out.rows = p.m;
  out.cols = p.n;
  out.d = buffers.d;
  out.c = buffers.c;
  out.bias = buffers.bias;
  out.pitch = p.n;
  out.alpha = static_cast<float>(p.alpha);
  out.beta = static_cast<float>(p.beta);
  out.activation = p.activation;
  out.f32 = p.d == DType::kF32;
  const int64_t four = 4 * static_cast<int64_t>(dtype_bytes(p.d));
  out.vec = p.n % 4 == 0 && aligned(out.d, four) && aligned(out.c, four) && aligned(out.bias, four);
  if (!out.c && !out.bias && out.activation == Activation::kNone) {
    if (out.f32 && out.vec) out.store = Store::kDirect;
    if (!out.f32 && p.n % 8 == 0 && aligned(out.d, 16)) out.store = Store::kPacked;
  }
  return out;
}

template <typename In>
Status launch_majors(const GemmProblem& p, const Params& params, const Launch& launch) {
  return with_majors(major_a(p), major_b(p),
                     [&]<Major kA, Major kB>() { return launch_tiles<In, kA, kB>(params, launch); });
}

Status launch_in(const GemmProblem& p, const Params& params, const Launch& launch) {
  return p.a.dtype == DType::kBF16 ? launch_majors<__nv_bfloat16>(p, params, launch)
                                   : launch_majors<__half>(p, params, launch);
}

}  // namespace
}  // namespace sm80

using namespace sm80;

size_t workspace_sm80(const GemmProblem& p) { return p.output_empty() ? 0 : make_plan(p).workspace; }

Status prepare_sm80(const GemmProblem& p, int) {
  Launch launch;
  launch.prepare = true;
  return launch_in(p, Params{}, launch);
}

Status launch_sm80(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  if (p.output_empty()) return {};
  Plan plan = make_plan(p);
  const int width_a = base_width(plan.a, buffers.a), width_b = base_width(plan.b, buffers.b);
  if (plan.wide && p.k > 0 && !((width_a == 8 || plan.a.repack) && (width_b == 8 || plan.b.repack))) {
    plan.wide = false;
    plan.splits = 1;
    plan.split_tiles = 0;
  }
  const TileConfig& tile = plan.tile_config();

  Params params{};
  if (plan.wide) {
    if (plan.a.repack || plan.b.repack) {
      const sm90::RepackOperand copies[] = {repack_of(plan.a, p.a, buffers.a, buffers, p),
                                            repack_of(plan.b, p.b, buffers.b, buffers, p)};
      const Status status = sm90::launch_repack(copies, executor.stream);
      if (!status.ok()) return status;
    }
    const auto data = [&](const PlannedOperand& x, const void* given) {
      return x.repack ? repacked(x, buffers) : given;
    };
    params.a = side_of(data(plan.a, buffers.a), plan.a.ld, plan.a.batch_stride, p.m, true);
    params.b = side_of(data(plan.b, buffers.b), plan.b.ld, plan.b.batch_stride, p.n, true);
  } else {
    params.a = side_of(buffers.a, p.a.ld, p.a.batch_stride, p.m, width_a > 1);
    params.b = side_of(buffers.b, p.b.ld, p.b.batch_stride, p.n, width_b > 1);
  }
  params.out = output_of(p, buffers);
  params.order.tiles_m = ceil_div(p.m, tile.m);
  params.order.tiles_n = ceil_div(p.n, tile.n);
  // The blocks that run together should cover a square of D.
  params.order.walk_height = std::lround(std::sqrt(double(kModelSms) * tile.blocks_per_sm * tile.n / tile.m));
  params.batch_inner = p.batch[1];
  const int64_t k_tiles = ceil_div(p.k, tile.k);
  if (k_tiles > INT32_MAX) return {"kernel 'sm80': k must be below 2^36"};
  params.k_tiles = static_cast<int>(k_tiles);
  params.tail = static_cast<int>(p.k - std::max<int64_t>(k_tiles - 1, 0) * tile.k);
  params.splits = plan.splits;
  params.split_tiles = plan.split_tiles;
  params.whole = tile_count(p, tile) - plan.split_tiles;
  params.units = params.whole + plan.split_tiles * plan.splits;
  params.partial = reinterpret_cast<float*>(static_cast<char*>(buffers.workspace) + plan.partial_offset);

  Launch launch;
  launch.wide = plan.wide;
  launch.tile = plan.tile;
  launch.stream = executor.stream;
  const int64_t slots = int64_t(multiprocessors(executor.device)) * tile.blocks_per_sm;
  launch.blocks = static_cast<unsigned>(std::min(params.units, slots));
  Status status = launch_in(p, params, launch);
  if (!status.ok() || plan.splits == 1) return status;
  return launch_reduce(p, buffers,
                       {params.partial, params.order, params.whole, plan.split_tiles, plan.splits}, tile,
                       executor.stream);
}

}  // namespace jaxgemm::cuda
