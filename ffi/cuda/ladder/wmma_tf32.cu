// wmma_tf32: the tensor cores multiply, in TF32: f32 operands rounded to 10 bits of mantissa, products summed
// in f32. Tiles 64 x 64 x 8, 4 warps, each 2 x 2 WMMA tiles of 16 x 16 x 8.
//
// Operands are rounded once, on their way into shared memory, rather than in each of the two warps that use
// them.
//
//   tile       64 x 64 x 8
//   threads    128
//   registers  96: 32 sums, 16 operands
//   tiles      pass through registers
//   shared     64 x 12 x 4, 8 x 72 x 4, 4 x 256 x 4
//   shows      float32 HMMA
#include "ladder.h"
#include "wmma_tiles.cuh"

namespace jaxgemm::cuda {
namespace {

struct Tf32 {
  using Stored = float;
  using Element = nvcuda::wmma::precision::tf32;
  // With these pitches the lines that a fragment's load touches start in different banks.
  static constexpr int kDepth = 8, kPitchA = kDepth + 4, kPitchB = kWmmaBlock + 8;
  static __device__ float as(float x) { return nvcuda::wmma::__float_to_tf32(x); }
};

template <typename T>
__global__ void __launch_bounds__(kWmmaThreads) wmma_tf32(const __grid_constant__ TiledProduct<T> p) {
  multiply_wmma_tiles<Tf32>(p);
}

}  // namespace

Status launch_wmma_tf32(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(TypesOf<kTf32Types>{}, p, [&](auto types) {
    return launch_tiles("wmma_tf32", wmma_tf32<decltype(types)>, p, buffers, executor, kWmmaBlock, kWmmaBlock,
                        kWmmaThreads);
  });
}

}  // namespace jaxgemm::cuda
