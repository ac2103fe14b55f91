// wmma_f16: the tensor cores multiply f16 and sum in f32. Tiles 64 x 64 x 16, 4 warps, each 2 x 2 WMMA tiles
// of 16 x 16 x 16.
//
// Half the bytes of `wmma_tf32` for twice the depth. The shared rows are padded by 8 elements, 16 bytes, so
// that the rows a fragment's load touches start in different banks and stay aligned as WMMA demands.
//
//   tile       64 x 64 x 16
//   threads    128
//   registers  64: 32 sums, 16 operands
//   tiles      pass through registers
//   shared     64 x 24 x 2, 16 x 72 x 2, 4 x 256 x 4
//   shows      float16 HMMA
#include "ladder.h"
#include "wmma_tiles.cuh"

namespace jaxgemm::cuda {
namespace {

struct Half {
  using Stored = __half;
  using Element = __half;
  static constexpr int kDepth = 16, kPitchA = kDepth + 8, kPitchB = kWmmaBlock + 8;
  static __device__ __half as(__half x) { return x; }
};

template <typename T>
__global__ void __launch_bounds__(kWmmaThreads) wmma_f16(const __grid_constant__ TiledProduct<T> p) {
  multiply_wmma_tiles<Half>(p);
}

}  // namespace

Status launch_wmma_f16(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(TypesOf<kHalfTypes>{}, p, [&](auto types) {
    return launch_tiles("wmma_f16", wmma_f16<decltype(types)>, p, buffers, executor, kWmmaBlock, kWmmaBlock,
                        kWmmaThreads);
  });
}

}  // namespace jaxgemm::cuda
