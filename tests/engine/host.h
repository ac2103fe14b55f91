// Stands for the CUDA names in the parts of the engine that a host compiler compiles for a test.
#pragma once

#include <algorithm>
#include <cstdint>

#define __host__
#define __device__
#define __forceinline__ inline

struct Index {
  uint32_t x, y, z;
};
inline thread_local Index blockIdx, gridDim;
using std::min;
