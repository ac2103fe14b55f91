// Host side of the copy engine: encoding tensor maps without linking against the driver.
#pragma once

#include <cuda.h>

#include "../../kernel.h"

namespace jaxgemm::cuda::sm90 {

// A tensor of elements of 8 or 16 bits, innermost dimension first; strides in elements, the innermost is 1.
struct TensorMapRequest {
  const void* base;
  int rank;
  int64_t extent[4];
  int64_t stride[4];
  int box[4];
  DType type;

  bool operator==(const TensorMapRequest&) const = default;
};

// Looks up the driver's function. Thread-safe, and cheap after the first call.
Status load_tensor_map_encoder();

// Encodes a tensor map. The swizzle spans the box's innermost dimension if that is 32, 64 or 128 bytes;
// otherwise there is none. Each thread keeps its latest maps, as a program that runs again has its buffers in
// the same few places.
Status encode_tensor_map(const TensorMapRequest& request, CUtensorMap* map);

}  // namespace jaxgemm::cuda::sm90
