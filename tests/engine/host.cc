// The engine's plan, schedule and output without a GPU, as functions that tests/engine/test_parts.py calls.
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "ffi/cuda/sm90/cost.h"
#include "ffi/cuda/sm90/options.h"
#include "ffi/cuda/sm90/output.h"
#include "ffi/cuda/sm90/plan.h"
#include "ffi/cuda/sm90/plan_many.h"
#include "ffi/cuda/sm90/schedule.cuh"
#include "ffi/cuda/sm90/sm90.h"

namespace {

using namespace jaxgemm;
using namespace jaxgemm::cuda;
using namespace jaxgemm::cuda::sm90;

// `shape`: m, n, k, batch, and 0 or 1 for A transposed and for B. The options must outlive the problem.
GemmProblem problem_of(const int64_t* shape, const int64_t* options) {
  GemmProblem p;
  p.m = shape[0], p.n = shape[1], p.k = shape[2], p.batch[1] = shape[3];
  const bool batched = p.batch[1] > 1;
  p.a = {DType::kBF16, shape[4] != 0, shape[4] ? p.m : p.k, {0, batched ? p.m * p.k : 0}};
  p.b = {DType::kBF16, shape[5] != 0, shape[5] ? p.k : p.n, {0, batched ? p.k * p.n : 0}};
  p.d = DType::kBF16;
  p.config = {options, kOptionCount};
  return p;
}

// How often each tile's steps of k are multiplied, over all blocks of a grid. Tiles are (batch, row, column).
using Counts = std::map<std::tuple<int, int, int>, std::vector<int>>;

void walk_block(const TileSchedule& s, int64_t steps, Counts* counts, std::vector<int>* splits) {
  const ClusterPlace place(s, [](uint32_t size) { return blockIdx.x % size; });
  for (uint32_t index = place.first_unit; index < s.units; index = place.next(s, index)) {
    const Unit unit = s.one_wave ? only_unit(s) : unit_at(s, place, index);
    std::vector<int>& count = (*counts)[{unit.batch, unit.row, unit.col}];
    count.resize(steps);
    for (int i = 0; i < unit.k_blocks; ++i) ++count.at(unit.k_begin + i);
    splits->push_back(unit.split);
  }
}

}  // namespace

extern "C" {

int option_count() { return kOptionCount; }

// Walks the grid of a problem's launch. Returns "" if every tile gets every step of k exactly once, by a grid
// that is no larger than it may be; otherwise what is wrong. `facts`: one_wave, narrow_stride, cluster,
// slices, partials.
const char* walk(const int64_t* shape, const int64_t* options, int multiprocessors, int64_t* facts) {
  static thread_local std::string wrong;
  const GemmProblem p = problem_of(shape, options);
  const Plan plan = make_plan(p);
  if (!plan.found) return "no configuration";
  const Config& c = plan.config;
  const TileConfig& tile = kTiles[c.tile];
  const TileSchedule s = make_schedule(plan, p, multiprocessors);
  const auto [x, y, z] = grid_of(s, plan);
  const int64_t found[] = {s.one_wave, s.narrow_stride, c.cluster(), c.slices(), c.partials()};
  std::copy(std::begin(found), std::end(found), facts);

  Counts counts;
  std::vector<int> splits;
  const int64_t steps = ceil_div(p.k, step_k(p));
  gridDim = {x, y, z};
  for (blockIdx.z = 0; blockIdx.z < z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x) walk_block(s, steps, &counts, &splits);

  const int64_t rows = unit_rows(tile, plan.x().rows, c.cluster_m) * c.cluster_m;
  const int64_t columns = ceil_div(ceil_div(plan.y().rows, tile.result_n()), c.cluster_n) * c.cluster_n;
  const int64_t tiles = rows * columns * p.batch_count(), blocks = int64_t(x) * y * z;
  wrong.clear();
  if (int64_t(counts.size()) != tiles)
    wrong = "tiles: " + std::to_string(counts.size()) + " of " + std::to_string(tiles);
  for (const auto& [at, count] : counts) {
    if (std::get<1>(at) >= rows || std::get<2>(at) >= columns) wrong = "a tile outside of the product";
    if (std::any_of(count.begin(), count.end(), [](int n) { return n != 1; }))
      wrong = "a step missing or twice";
  }
  if (std::any_of(splits.begin(), splits.end(),
                  [&](int split) { return split < 0 || split >= c.partials(); }))
    wrong = "a piece of K that there is not";
  if (c.grid == Grid::kResident && !s.one_wave && blocks > int64_t(tile.blocks) * multiprocessors)
    wrong = "more blocks than the device runs";
  return wrong.c_str();
}

// The StorePath of a product: `d` and `bias` are addresses, f32 is D's type.
int store_path(const int64_t* shape, int64_t d, int64_t bias, int has_c, int f32, int activation,
               double alpha, int split_k) {
  std::vector<int64_t> options(kOptionCount);
  options[OptionPlace("split_k").index] = split_k;
  options[OptionPlace("reduction").index] = static_cast<int64_t>(Reduction::kWorkspace);
  GemmProblem p = problem_of(shape, options.data());
  p.d = f32 ? DType::kF32 : DType::kBF16;
  p.activation = static_cast<Activation>(activation);
  p.alpha = alpha;
  p.has_c = has_c != 0;
  p.has_bias = bias != 0;
  GemmBuffers buffers;
  buffers.d = reinterpret_cast<void*>(d);
  buffers.c = has_c ? buffers.d : nullptr;
  buffers.bias = reinterpret_cast<void*>(bias);
  return static_cast<int>(output_of(make_plan(p), p, buffers).path);
}

// The plan of `count` products, of which `shapes` has six numbers each: their tile's rows and columns, the
// workspace, and for each product its place in the launch and where in the workspace the copies of a and b
// begin and end, which are -1 where there is none. Returns why there is no plan, or "".
const char* many(const int64_t* shapes, int count, const int64_t* options, int64_t* tile, int64_t* products) {
  static thread_local std::string wrong;
  std::vector<GemmProblem> problems;
  for (int i = 0; i < count; ++i) problems.push_back(problem_of(shapes + 6 * i, options));
  wrong = unsupported_many_sm90(problems);
  if (!wrong.empty()) return wrong.c_str();
  const ManyPlan plan = plan_many(problems);
  const TileConfig& t = kTiles[plan.config.tile];
  tile[0] = t.tile_m, tile[1] = t.tile_n, tile[2] = static_cast<int64_t>(plan.workspace);
  for (int i = 0; i < count; ++i) {
    products[5 * plan.order[i]] = i;
    int64_t* at = products + 5 * i + 1;
    for (const PlannedOperand* x : {&plan.products[i].a, &plan.products[i].b}) {
      const auto begin = static_cast<int64_t>(x->workspace_offset);
      *at++ = x->repack ? begin : -1;
      *at++ = x->repack ? begin + 2 * x->ld * x->outer() : -1;
    }
  }
  return wrong.c_str();
}
}
