// What a launch asks of the chip.
#pragma once

#include <cuda_runtime_api.h>

#include "planning.h"

namespace jaxgemm::cuda {

inline int multiprocessors(int device) {
  int count = 0;
  const bool known = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
  return known ? count : kModelSms;
}

}  // namespace jaxgemm::cuda
