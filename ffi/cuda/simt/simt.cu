// simt: the production kernel for plain f32 and f64 FMA. Plan, find the kernel, launch it, and sum up the
// tiles that were cut.
#include <algorithm>

#include "../../recall.h"
#include "plan.cuh"
#include "reduce.cuh"
#include "repack_rows.cuh"
#include "simt.h"
#include "variants.cuh"

namespace jaxgemm::cuda {
namespace {

using simt::Chip;
using simt::Plan;
using simt::TileInfo;
using simt::Variant;

Variant find(const GemmProblem& p, const Plan& plan) {
  constexpr int kLarge = simt::tile_count(simt::F32Large{});
  switch (p.a.dtype) {
    case DType::kF32:
      return plan.tile < kLarge ? simt::find_f32_large(plan.tile, plan.load_a, plan.load_b)
                                : simt::find_f32_small(plan.tile - kLarge, plan.load_a, plan.load_b);
    case DType::kF64:
      return simt::find_f64(plan.tile, plan.load_a, plan.load_b);
    default:
      return simt::find_half(plan.tile);
  }
}

Status read_chip(int device, Chip* chip) {
  int shared = 0;
  cudaError_t error = cudaDeviceGetAttribute(&chip->multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  chip->shared_bytes = static_cast<size_t>(shared);
  if (error == cudaSuccess) return {};
  return {std::string("kernel 'simt': reading the device's properties: ") + cudaGetErrorString(error)};
}

// A plan depends on where the operands lie, so it cannot be made before the launch.
Plan recall_plan(const GemmProblem& p, const GemmBuffers& b, const Chip& chip) {
  static thread_local Recall<Plan> recall;
  const auto aligned = [](const void* x) { return int64_t{reinterpret_cast<uintptr_t>(x) % 16 == 0}; };
  const int64_t device = static_cast<int64_t>(chip.shared_bytes) * 65536 + chip.multiprocessors;
  return recall(key_of(p, aligned(b.a) * 2 + aligned(b.b), device),
                [&] { return simt::make_plan(p, b.a, b.b, chip); });
}

simt::RepackOperand repack_of(const GemmProblem& p, const Matrix& x, const void* from, const Matrix& copy,
                              void* to, int64_t extent) {
  return {.from = from,
          .to = to,
          .extent = extent,
          .k = p.k,
          .along_k = x.transposed != copy.transposed,
          .ld = x.ld,
          .pitch = copy.ld,
          .batch = {x.batch_stride[0] ? p.batch[0] : 1, x.batch_stride[1] ? p.batch[1] : 1},
          .batch_stride = {x.batch_stride[0], x.batch_stride[1]}};
}

// Copies the operands that the plan wants repacked, and puts the copies in their place.
void repack(const Plan& plan, GemmProblem& p, GemmBuffers& b, cudaStream_t stream) {
  if (!plan.repack_a && !plan.repack_b) return;
  const simt::Workspace at = simt::workspace_of(p, plan);
  const auto replace = [&](Matrix& x, const void*& from, const Matrix& copy, size_t offset, int64_t extent) {
    void* const to = static_cast<char*>(b.workspace) + offset;
    const simt::RepackOperand r = repack_of(p, x, from, copy, to, extent);
    x = copy;
    from = to;
    return r;
  };
  simt::RepackOperand first, second;
  if (plan.repack_a) first = replace(p.a, b.a, simt::repacked_a(p), at.a, p.m);
  if (plan.repack_b) second = replace(p.b, b.b, simt::repacked_b(p), at.b, p.n);
  simt::launch_repack(first, second, dtype_bytes(p.a.dtype), stream);
}

template <typename Kind>
Status launch(const GemmProblem& p, const GemmBuffers& b, const Plan& plan, cudaStream_t stream) {
  const TileInfo& t = simt::tiles_for(p)[plan.tile];
  const TileGrid grid(p, t.bm, t.bn);
  // TileIndex counts the tiles of a swath of 8 rows in 32 bits, too.
  if (!grid.fits() || grid.tiles_n > INT32_MAX / 8) {
    return {"kernel 'simt': the product has more output tiles than 32 bits can count"};
  }
  using Acc = typename Kind::Acc;
  using Element = typename Kind::Element;
  const simt::Outputs<Acc> outputs{.m = p.m,
                                   .n = p.n,
                                   .tiles = grid.tiles_m * grid.tiles_n * grid.batch,
                                   .whole = plan.whole,
                                   .tiles_m = static_cast<unsigned>(grid.tiles_m),
                                   .tiles_n = static_cast<unsigned>(grid.tiles_n),
                                   .tile_stages = (p.k + t.bk - 1) / t.bk,
                                   .ranges = plan.ranges,
                                   .results = simt::Results<Acc>(p, b),
                                   .partial = static_cast<Acc*>(b.workspace),
                                   .wide = simt::can_be_wide(p, b, t.vec)};
  const bool bf16 = p.a.dtype == DType::kBF16, plain = outputs.wide && !p.has_c && !p.has_bias;
  const simt::Params<Kind> params{outputs,
                                  p.k,
                                  grid.batch,
                                  p.batch[1],
                                  plan.chunk,
                                  Operand<Element>(b.a, p.a, p),
                                  Operand<Element>(b.b, p.b, p),
                                  bf16,
                                  plain};
  const Variant variant = find(p, plan);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(plan.whole + plan.ranges, INT32_MAX));
  void* arguments[] = {const_cast<simt::Params<Kind>*>(&params)};
  // Errors show in launch_status, like those of a launch in brackets.
  (void)cudaLaunchKernel(variant.kernel, dim3(blocks), dim3(static_cast<unsigned>(variant.threads)),
                         arguments, t.shared_bytes[plan.chunk != simt::kNoChunks], stream);
  if (plan.ranges > 0) simt::launch_reduce(outputs, t.bm, t.bn, stream);
  return launch_status("simt");
}

}  // namespace

std::string unsupported_simt(const GemmProblem& p) {
  const auto tiles = static_cast<int64_t>(simt::tiles_for(p).size());
  const int64_t asked = p.config.empty() ? 0 : p.config[0];
  if (asked >= 0 && asked <= tiles) return {};
  return "tile " + std::to_string(asked) + " does not exist for " + dtype_name(p.a.dtype) +
         " operands, which have tiles 1 to " + std::to_string(tiles);
}

std::vector<Candidate> candidates_simt(const GemmProblem& p, const Machine& machine) {
  return simt::rank_tiles(p, machine.multiprocessors);
}

size_t workspace_simt(const GemmProblem& p) { return simt::workspace_bytes(p); }

Status prepare_simt(const GemmProblem& p, int device) {
  if (p.output_empty()) return {};
  Chip chip;
  if (Status status = read_chip(device, &chip); !status.ok()) return status;
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  if (error == cudaSuccess && current != device) error = cudaSetDevice(device);
  // The buffers' alignment is not known yet: prepare the kernels for aligned and for unaligned operands.
  for (const uintptr_t address : {uintptr_t{0}, uintptr_t{1}}) {
    const void* data = reinterpret_cast<const void*>(address);
    const Plan plan = simt::make_plan(p, data, data, chip);
    // The most shared memory that any K needs: a smaller limit would undo the preparation for a longer K.
    const size_t bytes = simt::tiles_for(p)[plan.tile].shared_bytes[simt::has_room_for_chunks(chip)];
    if (error == cudaSuccess) {
      error = cudaFuncSetAttribute(find(p, plan).kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(bytes));
    }
  }
  if (current != device) (void)cudaSetDevice(current);
  if (error == cudaSuccess) return {};
  return {std::string("preparing kernel 'simt': ") + cudaGetErrorString(error)};
}

Status launch_simt(const GemmProblem& p, const GemmBuffers& b, const Executor& executor) {
  if (p.output_empty()) return {};
  Chip chip;
  if (Status status = read_chip(executor.device, &chip); !status.ok()) return status;
  const Plan plan = recall_plan(p, b, chip);
  GemmProblem problem = p;
  GemmBuffers buffers = b;
  repack(plan, problem, buffers, executor.stream);
  switch (p.a.dtype) {
    case DType::kF32:
      return launch<simt::F32Kind>(problem, buffers, plan, executor.stream);
    case DType::kF64:
      return launch<simt::F64Kind>(problem, buffers, plan, executor.stream);
    default:
      return launch<simt::HalfKind>(problem, buffers, plan, executor.stream);
  }
}

}  // namespace jaxgemm::cuda
