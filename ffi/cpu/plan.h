// How the CPU kernel cuts a GemmProblem into independent blocks of D. Nothing here changes a result: the
// products of an element are added in the same order in every plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "../arithmetic.h"
#include "../problem.h"

namespace jaxgemm::cpu {

// A register tile: `rows` elements of one operand, broadcast, against `vectors` vectors of the other.
struct Shape {
  int rows, vectors;
};

// Steps of k over which products are summed in registers, from zero; the sums of these slices are added in
// order. This bounds the error of a long sum and lets a panel of each operand fit the L1 cache.
constexpr int64_t kDepth = 192;

// Panels of y that are packed together, so that at least a whole cache line is read at each step of k.
constexpr int64_t kPanels = 4;

// The largest block of D. kMaxBlockX bounds the packed block of x, which stays in the L2 cache; both bound
// the partial sums that a task keeps when k exceeds kDepth steps.
constexpr int64_t kMaxBlockX = 384;
constexpr int64_t kMaxBlockY = 1024;

// One operand, seen along the extent (m or n) that it gives to D.
struct Side {
  const void* data = nullptr;
  int64_t extent = 0;
  int64_t stride = 0, k_stride = 0;  // between neighbours along the extent and along k; one of them is 1
  int64_t batch_stride[2] = {0, 0};

  int64_t offset(int64_t outer, int64_t inner, int64_t first) const {
    return outer * batch_stride[0] + inner * batch_stride[1] + first * stride;
  }
};

// x is broadcast and y fills the lanes of a vector. They are A and B; or, swapped, B and A: D is then
// computed transposed, which keeps the lanes full where n is small.
struct Plan {
  Side x, y;
  bool swapped = false;
  int shape = 0;                      // index into the engine's shapes
  bool pack_x = true, pack_y = true;  // copy into panels; else read in place
  int64_t block_x = 1, block_y = 1;   // extents of a block of D
  int64_t blocks_x = 0, blocks_y = 0;
  int64_t units = 0;  // blocks in all batches
  int64_t units_per_task = 1;
  int64_t tasks = 0;
};

// Merges a batch level into m where B is shared and the rows of one product of A follow those of the one
// before.
inline GemmProblem fold_batch(GemmProblem p) {
  for (int level : {1, 0}) {
    const bool inner_done = level == 1 || p.batch[1] == 1;
    if (inner_done && p.batch[level] > 1 && !p.a.transposed && p.b.batch_stride[level] == 0 &&
        p.a.batch_stride[level] == p.m * p.a.ld) {
      p.m *= p.batch[level];
      p.batch[level] = 1;
    }
  }
  return p;
}

// What a tile shape costs on an extent x by an extent y, in cycles for each step of k. The processor is taken
// to do two multiply-adds and two loads a cycle, and to add to a sum again after four cycles.
inline double shape_cost(Shape s, int lanes, int64_t x, int64_t y) {
  const double cycles = std::max({s.rows * s.vectors / 2.0, (s.rows + s.vectors) / 2.0, 4.0});
  return cycles * static_cast<double>(ceil_div(x, s.rows)) *
         static_cast<double>(ceil_div(y, s.vectors * lanes));
}

// Chooses the shape that costs least, and whether operands are swapped. The first shape is the best for large
// extents: another must be clearly better.
inline void choose_shape(const GemmProblem& p, std::span<const Shape> shapes, int lanes, Plan* plan) {
  double best = shape_cost(shapes[0], lanes, p.m, p.n);
  for (bool swapped : {false, true}) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      const double cost = shape_cost(shapes[i], lanes, swapped ? p.n : p.m, swapped ? p.m : p.n);
      if (cost < 0.95 * best) {
        best = cost;
        plan->swapped = swapped;
        plan->shape = static_cast<int>(i);
      }
    }
  }
}

// Cuts D into blocks: as large as the caches hold, but enough of them to keep the threads busy to the end.
// Blocks are multiples of rows x width, at most most_y along y.
inline void cut_blocks(const GemmProblem& p, int64_t rows, int64_t width, int64_t most_y, int64_t threads,
                       Plan* plan) {
  // Finishing a result counts as 16 products, so that even k = 0 counts as work.
  const double macs = double(p.m) * double(p.n) * (double(p.k) + 16) * double(p.batch_count());
  constexpr double kTaskMacs = 1e5;  // some microseconds: less is not worth another thread
  const int64_t wanted = threads == 1
                             ? 1
                             : static_cast<int64_t>(std::clamp(macs / kTaskMacs, 1.0,
                                                               (macs < 1e8 ? 2.0 : 4.0) * double(threads)));
  const auto even = [](int64_t extent, int64_t most, int64_t multiple) {
    const int64_t parts = ceil_div(extent, most);
    return ceil_div(ceil_div(extent, parts), multiple) * multiple;
  };
  for (int64_t most_x = kMaxBlockX;;) {
    plan->block_x = even(plan->x.extent, most_x, rows);
    plan->block_y = even(plan->y.extent, most_y, width);
    plan->blocks_x = ceil_div(plan->x.extent, plan->block_x);
    plan->blocks_y = ceil_div(plan->y.extent, plan->block_y);
    plan->units = plan->blocks_x * plan->blocks_y * p.batch_count();
    if (plan->units >= wanted) break;
    // Cut the longer side of a block: packing costs least for square ones.
    const bool can_x = plan->block_x >= 2 * 8 * rows, can_y = plan->block_y >= 2 * 2 * width;
    if (!can_x && !can_y) break;
    if (can_y && (!can_x || plan->block_y >= plan->block_x))
      most_y = plan->block_y / 2;
    else
      most_x = plan->block_x / 2;
  }
  // Small blocks share a task, as long as there remain enough tasks.
  const double shared =
      std::min(double(plan->units) / double(wanted), 10 * kTaskMacs * double(plan->units) / macs);
  plan->units_per_task = wanted == 1 ? plan->units : std::max<int64_t>(1, static_cast<int64_t>(shared));
  plan->tasks = ceil_div(plan->units, plan->units_per_task);
}

// `lanes`: accumulators in a vector. `in_place`: elements are multiplied as they are stored, so that an
// operand can be read without packing. `threads` is what the machine can run at once.
inline Plan make_plan(const GemmProblem& p, const GemmBuffers& buffers, std::span<const Shape> shapes,
                      int lanes, bool in_place, int64_t threads) {
  Plan plan;
  const auto side = [&](const Matrix& x, const void* data, int64_t extent, bool along_ld) {
    Side s{data, extent, along_ld ? x.ld : 1, along_ld ? 1 : x.ld, {x.batch_stride[0], x.batch_stride[1]}};
    if (p.k == 0) s = {nullptr, extent, 0, 0, {0, 0}};  // nothing to read, perhaps not even an address
    return s;
  };
  plan.x = side(p.a, buffers.a, p.m, !p.a.transposed);
  plan.y = side(p.b, buffers.b, p.n, p.b.transposed);
  choose_shape(p, shapes, lanes, &plan);
  if (plan.swapped) std::swap(plan.x, plan.y);
  // Where one tile covers all of x, y is read once: in whole rows along k, which the last shape transposes in
  // registers.
  const bool stream = in_place && plan.y.stride != 1 && plan.x.extent <= shapes.back().rows;
  if (stream) plan.shape = static_cast<int>(shapes.size()) - 1;
  const int64_t rows = shapes[plan.shape].rows;
  const int64_t width = int64_t(shapes[plan.shape].vectors) * lanes;
  cut_blocks(p, rows, width, stream && p.k > kDepth ? width : kMaxBlockY, threads, &plan);

  // Packing pays when a panel is used often enough, or when the operand is strided along its extent.
  if (in_place) {
    const int64_t panels_x = ceil_div(std::min(plan.block_x, plan.x.extent), rows);
    const int64_t panels_y = ceil_div(std::min(plan.block_y, plan.y.extent), width);
    plan.pack_x = panels_y > 2;
    plan.pack_y = plan.y.stride != 1 ? !stream : panels_x > 2;
  }
  return plan;
}

}  // namespace jaxgemm::cpu
