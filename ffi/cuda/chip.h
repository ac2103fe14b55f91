// What a launch asks of the chip.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "planning.h"

namespace jaxgemm::cuda {

// Bytes of parameters that a kernel may have.
constexpr size_t kParameterBytes = 32764;

inline int multiprocessors(int device) {
  int count = 0;
  const bool known = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
  return known ? count : kModelSms;
}

}  // namespace jaxgemm::cuda
