#include <cuda_runtime.h>

#include <array>
#include <string>

#include "tensor_map.h"

namespace jaxgemm::cuda::sm90 {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(function);
}

Encode encoder() {
  static const Encode function = find_encoder();
  return function;
}

CUtensorMapDataType type_of(DType t) {
  if (t == DType::kBF16) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return dtype_bytes(t) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

Status encode(const TensorMapRequest& r, CUtensorMap* map) {
  const uint64_t bytes = dtype_bytes(r.type);
  cuuint64_t extent[4], stride[3];
  cuuint32_t box[4], step[4];
  for (int i = 0; i < r.rank; ++i) {
    extent[i] = static_cast<cuuint64_t>(r.extent[i]);
    box[i] = static_cast<cuuint32_t>(r.box[i]);
    step[i] = 1;
    // The encoder checks the stride of a dimension of one element, too, though it has no meaning.
    if (i > 0) stride[i - 1] = r.extent[i] > 1 ? static_cast<cuuint64_t>(r.stride[i]) * bytes : 16;
  }
  const uint64_t line = r.box[0] * bytes;
  const CUtensorMapSwizzle swizzle = line == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : line == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                     : line == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                  : CU_TENSOR_MAP_SWIZZLE_NONE;
  const CUresult result =
      encoder()(map, type_of(r.type), static_cast<cuuint32_t>(r.rank), const_cast<void*>(r.base), extent,
                stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {"cuTensorMapEncodeTiled failed with error " + std::to_string(static_cast<int>(result))};
}

}  // namespace

Status load_tensor_map_encoder() {
  if (encoder()) return {};
  return {"the CUDA driver has no cuTensorMapEncodeTiled"};
}

Status encode_tensor_map(const TensorMapRequest& r, CUtensorMap* map) {
  if (Status status = load_tensor_map_encoder(); !status.ok()) return status;
  struct Entry {
    TensorMapRequest request{};
    CUtensorMap map{};
  };
  static thread_local std::array<Entry, 512> recent;
  uint64_t hash = reinterpret_cast<uintptr_t>(r.base);
  for (int i = 0; i < 4; ++i) {
    for (const int64_t x : {r.extent[i], r.stride[i], int64_t{r.box[i]}}) {
      hash = (hash ^ static_cast<uint64_t>(x)) * 0x9e3779b97f4a7c15u;
    }
  }
  Entry& entry = recent[hash >> 55];
  if (entry.request != r) {
    CUtensorMap fresh;
    if (Status status = encode(r, &fresh); !status.ok()) return status;
    entry = {r, fresh};
  }
  *map = entry.map;
  return {};
}

}  // namespace jaxgemm::cuda::sm90
