// The host side of the direct kernel: from a problem and its buffers to parameters and one launch.
#include <algorithm>

#include "../../arithmetic.h"
#include "../planning.h"
#include "direct.h"
#include "launch.h"

namespace jaxgemm::cuda {
namespace direct {
namespace {

template <typename In>
Status launch_in(const GemmProblem& p, const GemmBuffers& buffers, Finish finish, const Launch& launch) {
  const int chunks = static_cast<int>(ceil_div(p.k, kChunk));
  const bool f32 = p.d == DType::kF32;
  const Params<In> params{
      .a = static_cast<const In*>(buffers.a),
      .b = static_cast<const In*>(buffers.b),
      .pitch_a = static_cast<int>(p.a.ld),
      .pitch_b = static_cast<int>(p.b.ld),
      .m = static_cast<int>(p.m),
      .n = static_cast<int>(p.n),
      .k = static_cast<int>(p.k),
      .rounds = chunks / launch.config.warps,
      .extra = chunks % launch.config.warps,
      .batched = p.batch_count() > 1,
      .f32 = f32,
      .finish = finish,
      .alpha = static_cast<float>(p.alpha),
      .result = f32 ? Result<In>{.to_f32 = {p, buffers}} : Result<In>{.to_in = {p, buffers}},
      .batch_inner = Divisor(static_cast<uint32_t>(std::max<int64_t>(p.batch[1], 1))),
      .batch_stride_a = {p.a.batch_stride[0], p.a.batch_stride[1]},
      .batch_stride_b = {p.b.batch_stride[0], p.b.batch_stride[1]}};
  return with_majors(major_a(p), major_b(p),
                     [&]<Major kA, Major kB>() { return launch_tiles<In, kA, kB>(params, launch); });
}

Status launch_in(const GemmProblem& p, const GemmBuffers& buffers, Finish finish, const Launch& launch) {
  return p.a.dtype == DType::kBF16 ? launch_in<__nv_bfloat16>(p, buffers, finish, launch)
                                   : launch_in<__half>(p, buffers, finish, launch);
}

// How a problem runs. `operands_aligned`: both operands begin at a multiple of 16 bytes.
Launch launch_of(const GemmProblem& p, bool operands_aligned) {
  Launch launch;
  const int64_t tile_option = fixed(p, kTile), warps = fixed(p, kWarps);
  launch.config = tile_option && warps ? Config{static_cast<int>(tile_option) - 1, static_cast<int>(warps)}
                                       : rank_configs(p, kModelSms).front().config;
  if (!kTiles[launch.config.tile].fits(major_a(p))) launch.config.tile = kFallback;
  launch.aligned = operands_aligned && made_of_vectors(p);
  launch.flow = flow_of(p, launch.config, launch.aligned, kModelSms);
  const TileConfig& tile = kTiles[launch.config.tile];
  launch.blocks = dim3(static_cast<unsigned>(ceil_div(p.n, tile.n)),
                       static_cast<unsigned>(ceil_div(p.m, tile.m)), static_cast<unsigned>(p.batch_count()));
  return launch;
}

}  // namespace
}  // namespace direct

using namespace direct;

std::string unsupported_direct(const GemmProblem& p) {
  for (const int64_t extent : {p.n, p.k, p.a.ld, p.b.ld, p.m * p.batch_count()}) {
    if (extent > INT32_MAX - 4096)
      return "kernel 'direct': rows, columns, k and pitches must be below 2^31 - 4096";
  }
  // The batch is the grid's extent along z, and rows of tiles are its extent along y.
  if (p.batch_count() > kMaxBlocks) return "kernel 'direct': the batch must be below 2^16";
  const TileConfig& tallest = kTiles[fixed(p, kTile) ? fixed(p, kTile) - 1 : kFallback];
  if (ceil_div(p.m, tallest.m) > kMaxBlocks)
    return "kernel 'direct': m must not be above 65535 rows of tiles";
  return {};
}

std::vector<Candidate> candidates_direct(const GemmProblem& p, const Machine& machine) {
  std::vector<Candidate> candidates;
  if (p.output_empty()) return candidates;
  for (const RankedConfig& ranked : rank_configs(p, machine.multiprocessors)) {
    candidates.push_back({{ranked.config.tile + 1, ranked.config.warps}, ranked.microseconds});
  }
  return candidates;
}

// Prepares the kernels for aligned and for unaligned operands, since their addresses are not known yet.
Status prepare_direct(const GemmProblem& p, int) {
  Status status;
  if (p.output_empty()) return status;
  for (const bool operands_aligned : {true, false}) {
    Launch launch = launch_of(p, operands_aligned);
    launch.prepare = true;
    if (status.ok()) status = launch_in(p, GemmBuffers{}, Finish::kFull, launch);
  }
  return status;
}

Status launch_direct(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  if (p.output_empty()) return {};
  Launch launch = launch_of(p, aligned(buffers.a, 16) && aligned(buffers.b, 16));
  launch.stream = executor.stream;
  return launch_in(p, buffers, finish_of(p, aligned(buffers.d, 8) && aligned(buffers.bias, 8)), launch);
}

}  // namespace jaxgemm::cuda
