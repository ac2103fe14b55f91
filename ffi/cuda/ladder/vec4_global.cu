// vec4_global: no shared memory. Each thread computes 4 x 4 elements and walks along K four at a time, with
// four four-element reads of A and four of B for 64 products. Block 16 x 16 threads, 64 x 64 elements of D.
//
// The reads are wide, so there are few of them; but every thread makes its own, and the caches must serve
// each element 16 times over. An operand's transposition decides whether the four neighbours of a read lie
// along K or across it, and so which register holds an element: the kernel has a loop for each pair of
// layouts.
//
//   tile       4 x 4 x 4
//   threads    256
//   registers  80: 16 sums, 32 operands
//   shows      float32 FFMA LDG.E.128; float64 DFMA LDG.E.128
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kPatch = 4;
constexpr int kThreadRows = 16, kThreadCols = 16;
constexpr int kThreads = kThreadRows * kThreadCols;
constexpr int kBlockM = kThreadRows * kPatch, kBlockN = kThreadCols * kPatch;

// 4 x 4 elements of an operand: 4 along m or n, 4 along k.
template <typename T, bool kKContiguous>
struct Patch {
  Vec<T, kPatch> line[kPatch];

  __device__ __forceinline__ T operator()(int along, int k) const {
    return kKContiguous ? line[along].x[k] : line[k].x[along];
  }

  // `along` and `depth` say how much of the patch exists; the rest is zero.
  __device__ __forceinline__ void load(const T* p, int64_t ld, bool vec4, int along, int depth) {
    if (vec4 && along >= kPatch && depth >= kPatch) {
#pragma unroll
      for (int l = 0; l < kPatch; ++l, p += ld) line[l] = *reinterpret_cast<const Vec<T, kPatch>*>(p);
    } else {
#pragma unroll
      for (int l = 0; l < kPatch; ++l, p += ld) {
#pragma unroll
        for (int v = 0; v < kPatch; ++v) {
          const bool exists = kKContiguous ? l < along && v < depth : l < depth && v < along;
          line[l].x[v] = exists ? p[v] : T{};
        }
      }
    }
  }
};

// Where a thread's elements of D begin, and how many of them exist.
struct Place {
  int64_t row, col;
  int rows, cols;
};

template <typename T, bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void sum_over_k(const TiledProduct<T>& p, int64_t batch, const Place& at,
                                           typename T::Acc (&acc)[kPatch][kPatch]) {
  using Acc = typename T::Acc;
  const auto* a = p.a.at_batch(batch) + (kTransposeA ? at.row : at.row * p.a.ld);
  const auto* b = p.b.at_batch(batch) + (kTransposeB ? at.col * p.b.ld : at.col);
  for (int64_t k_left = p.k; k_left > 0; k_left -= kPatch) {
    const int depth = k_left < kPatch ? static_cast<int>(k_left) : kPatch;
    Patch<typename T::A, !kTransposeA> a_patch;
    Patch<typename T::B, kTransposeB> b_patch;
    a_patch.load(a, p.a.ld, p.a.vec4, at.rows, depth);
    b_patch.load(b, p.b.ld, p.b.vec4, at.cols, depth);
    a += kTransposeA ? kPatch * p.a.ld : kPatch;
    b += kTransposeB ? kPatch : kPatch * p.b.ld;
#pragma unroll
    for (int k = 0; k < kPatch; ++k) {
      Acc a_column[kPatch], b_row[kPatch];
#pragma unroll
      for (int i = 0; i < kPatch; ++i) a_column[i] = convert<Acc>(a_patch(i, k));
#pragma unroll
      for (int j = 0; j < kPatch; ++j) b_row[j] = convert<Acc>(b_patch(j, k));
      add_outer_product(acc, a_column, b_row);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) vec4_global(const __grid_constant__ TiledProduct<T> p) {
  Place at{.row = int64_t{p.tile_row()} * kBlockM + threadIdx.x / kThreadCols * kPatch,
           .col = int64_t{p.tile_col()} * kBlockN + threadIdx.x % kThreadCols * kPatch};
  at.rows = p.m - at.row < kPatch ? static_cast<int>(p.m - at.row) : kPatch;
  at.cols = p.n - at.col < kPatch ? static_cast<int>(p.n - at.col) : kPatch;
  if (at.rows <= 0 || at.cols <= 0) return;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    typename T::Acc acc[kPatch][kPatch] = {};
    with_layouts(p, [&]<bool kTransposeA, bool kTransposeB>() {
      sum_over_k<T, kTransposeA, kTransposeB>(p, batch, at, acc);
    });
    store_results<kPatch>(
        p, batch, acc, [&](int i) { return at.row + i; }, [&](int j) { return at.col + j; });
  }
}

}  // namespace

Status launch_vec4_global(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(LadderTypes{}, p, [&](auto types) {
    return launch_tiles("vec4_global", vec4_global<decltype(types)>, p, buffers, executor, kBlockM, kBlockN,
                        kThreads);
  });
}

}  // namespace jaxgemm::cuda
