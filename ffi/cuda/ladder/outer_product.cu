// outer_product: a block keeps sums for 24 x 512 elements of D in shared memory for the whole product, and
// adds to them one rank-1 update for each k. 128 threads; 24 * 512 * 4 bytes are exactly the 48 KB a block
// may declare.
//
// The sums are reused most, so they get the fast memory, and A and B pass through registers once: every
// thread holds the 24 elements of A's column and 4 of B's row, for 96 products. While step k computes, the
// column and the row of k + 1 are loaded into a second set of registers. A thread touches only its own four
// columns of the sums, so there is no barrier anywhere.
//
//   tile       24 x 512 x 1
//   threads    128
//   registers  128: 0 sums, 56 operands
//   shared     24 x 512 x 4
//   shows      float32 FFMA LDS.128 STS.128
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlockM = 24, kBlockN = 512;
constexpr int kRun = 4;
constexpr int kThreads = kBlockN / kRun;

// Loads kCount elements of a column of A or a row of B, `stride` apart; those from `exist` on do not exist
// and become zero. `vec4`: the elements are neighbours, and aligned for wide loads.
template <int kCount, typename T>
__device__ __forceinline__ void load_line(T (&line)[kCount], const T* p, int64_t stride, bool vec4,
                                          int exist) {
  if (vec4 && exist >= kCount) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) read4(&line[i], p + i);
  } else {
    // The stride is made opaque, or the compiler keeps all of its multiples in registers throughout.
    asm volatile("" : "+l"(stride));
#pragma unroll
    for (int i = 0; i < kCount; ++i, p += stride) line[i] = i < exist ? *p : T{};
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 4) outer_product(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(16) Acc c_tile[kBlockM][kBlockN];
  const int64_t row = int64_t{p.tile_row()} * kBlockM;
  const int in_tile = threadIdx.x * kRun;
  const int64_t col = int64_t{p.tile_col()} * kBlockN + in_tile;
  const int rows = p.m - row < kBlockM ? static_cast<int>(p.m - row) : kBlockM;
  const int cols = p.n - col < kRun ? static_cast<int>(p.n - col) : kRun;
  if (cols <= 0) return;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    const auto av = p.a.view(batch);
    const auto bv = p.b.view(batch);
    const auto* a = av.data + row * av.row_stride;
    const auto* b = bv.data + col * bv.col_stride;
    struct {
      typename T::A a[kBlockM];
      typename T::B b[kRun];
    } set[2];
    const auto load = [&](int s) {
      load_line(set[s].a, a, av.row_stride, p.a.transposed && p.a.vec4, rows);
      load_line(set[s].b, b, bv.col_stride, !p.b.transposed && p.b.vec4, cols);
      a += av.col_stride;
      b += bv.row_stride;
    };
    const auto update = [&](int s) {
#pragma unroll
      for (int i = 0; i < kBlockM; ++i) {
        auto* at = reinterpret_cast<Vec<Acc, kRun>*>(&c_tile[i][in_tile]);
        Vec<Acc, kRun> c = *at;
#pragma unroll
        for (int j = 0; j < kRun; ++j) c.x[j] += convert<Acc>(set[s].a[i]) * convert<Acc>(set[s].b[j]);
        *at = c;
      }
    };

    for (int i = 0; i < kBlockM; ++i) *reinterpret_cast<Vec<Acc, kRun>*>(&c_tile[i][in_tile]) = {};
    if (p.k > 0) load(0);
    for (int64_t k_left = p.k; k_left > 0; k_left -= 2) {
      if (k_left > 1) load(1);
      update(0);
      if (k_left > 2) load(0);
      if (k_left > 1) update(1);
    }
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < cols; ++j) {
        p.epilogue.store(batch * p.m * p.n, row + i, col + j, c_tile[i][in_tile + j]);
      }
    }
  }
}

}  // namespace

Status launch_outer_product(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(SingleTypes{}, p, [&](auto types) {
    return launch_tiles("outer_product", outer_product<decltype(types)>, p, buffers, executor, kBlockM,
                        kBlockN, kThreads);
  });
}

}  // namespace jaxgemm::cuda
