// Scales of rows and columns, and the guard, of planes of fp16 (planes.h).
#pragma once

#include <cstdint>

#include "../../device/ptx.cuh"

namespace jaxgemm::cuda::sm90 {

// The exponent of the power of two that scales a row. `largest` is the bits of the row's largest finite
// magnitude; the exponent is 0 for a row of zeros.
__device__ __forceinline__ int scale_exponent(uint32_t largest) {
  if (largest == 0) return 0;
  const int biased = static_cast<int>(largest >> 23);
  return 14 - (biased > 0 ? biased - 127 : 31 - __clz(largest) - 149);
}

// Whether the guard is `wanted`. The guard is the result of an earlier kernel in the stream.
__device__ __forceinline__ bool guarded(const int32_t* guard, int32_t wanted) {
  wait_for_previous_kernel();
  return *reinterpret_cast<const volatile int32_t*>(guard) == wanted;
}

// Divides a lane's values of a strip by the scales of their rows and columns, with one rounding. Rows and
// columns that do not exist have no scale.
template <int kValues, typename Parameters, typename Strip>
__device__ __forceinline__ void unscale(float (&x)[kValues], const Parameters& p, const Strip& strip,
                                        int lane) {
  int rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = strip.row + lane / 4 + 8 * i;
    rows[i] = row < p.rows ? scale_exponent(__ldg(p.x_largest + row)) : 0;
  }
#pragma unroll
  for (int e = 0; e < kValues; e += 4) {
    const int64_t col = strip.col + 2 * e + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int exponent = col + i < p.cols ? scale_exponent(__ldg(p.y_largest + col + i)) : 0;
      x[e + i] = ldexpf(x[e + i], -(rows[0] + exponent));
      x[e + 2 + i] = ldexpf(x[e + 2 + i], -(rows[1] + exponent));
    }
  }
}

}  // namespace jaxgemm::cuda::sm90
