// Every number is read twice: to find the largest of the numbers that share a scale, and to be divided by the
// scale. The second time the number comes from a cache, if a cache can hold the numbers that share a scale.
#include <cooperative_groups.h>

#include <algorithm>

#include "../../arithmetic.h"
#include "../../check.h"
#include "numbers.cuh"
#include "quantize.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kRowThreads = 256, kColumnThreads = 512, kTensorThreads = 256;
constexpr int kTensorBlocks = 4;  // blocks of a multiprocessor; all of the grid run at once
constexpr int kVector = 4;        // elements that a thread takes together, if rows are multiples of kVector
constexpr unsigned kWarp = 32, kAll = 0xffffffffu;

__device__ __forceinline__ Largest over_lanes(Largest found) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) found = found.with(__shfl_xor_sync(kAll, found.bits, step));
  return found;
}
// Over `count` warps from `first` on. Each warp has left the bits that it found in shared memory, in `held`.
__device__ __forceinline__ Largest over_warps(const uint32_t* held, int first, int count) {
  Largest found;
  for (int i = 0; i < count; ++i) found = found.with(held[first + i]);
  return found;
}

// A thread's numbers: from `first` on, below `count`, kCount together every `step` numbers.
template <int kCount, typename T>
__device__ __forceinline__ Largest largest_of(const T* x, int64_t first, int64_t count, int64_t step) {
  Largest found;
  for (int64_t i = first; i < count; i += step) found = add_together<kCount>(found, x + i);
  return found;
}
template <typename Value, int kCount, typename T>
__device__ __forceinline__ void quantize(const T* x, uint8_t* values, float divisor, int64_t first,
                                         int64_t count, int64_t step) {
  for (int64_t i = first; i < count; i += step) quantize_together<Value, kCount>(x + i, values + i, divisor);
}

// `threads` threads share a row: 1, 2, 4 or 8 whole warps.
template <int kCount>
__global__ void __launch_bounds__(kRowThreads)
    quantize_rows(const __grid_constant__ QuantizeCall call, int threads) {
  __shared__ uint32_t held[kRowThreads / kWarp];
  with_types(call.from, call.to, [&]<typename T, typename Value>() {
    const int64_t rows = call.batch * call.rows, columns = call.columns;
    const int each = kRowThreads / threads;
    const int64_t from = static_cast<int64_t>(threadIdx.x) % threads * kCount, step = threads * kCount;
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * each; first < rows;
         first += static_cast<int64_t>(gridDim.x) * each) {
      const int64_t row = first + threadIdx.x / threads;
      const T* const x = static_cast<const T*>(call.x) + row * columns;
      Largest found;
      if (row < rows) found = largest_of<kCount>(x, from, columns, step);
      found = over_lanes(found);
      if (threads > static_cast<int>(kWarp)) {
        if (threadIdx.x % kWarp == 0) held[threadIdx.x / kWarp] = found.bits;
        __syncthreads();
        const int warps = threads / kWarp;
        found = over_warps(held, static_cast<int>(threadIdx.x / kWarp) / warps * warps, warps);
        __syncthreads();
      }
      if (row >= rows) continue;
      uint8_t* const values = static_cast<uint8_t*>(call.values) + row * columns;
      quantize<Value, kCount>(x, values, found.divisor<Value>(), from, columns, step);
      if (from == 0) call.scales[row] = found.scale<Value>();
    }
  });
}

// A block has 32 columns of a matrix, and each of its 16 warps has every 16th row of these columns.
__global__ void __launch_bounds__(kColumnThreads)
    quantize_columns(const __grid_constant__ QuantizeCall call) {
  constexpr int kWarps = kColumnThreads / kWarp;
  __shared__ uint32_t held[kWarps][kWarp];
  with_types(call.from, call.to, [&]<typename T, typename Value>() {
    const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
    const int64_t columns = call.columns, strips = (columns + kWarp - 1) / kWarp;
    const int64_t matrix = blockIdx.x / strips, column = blockIdx.x % strips * kWarp + lane;
    const bool exists = column < columns;
    const int64_t begin = matrix * call.rows * columns + column;
    const int64_t first = warp * columns, count = call.rows * columns, step = kWarps * columns;
    const T* const x = static_cast<const T*>(call.x) + begin;
    Largest found;
    if (exists) found = largest_of<1>(x, first, count, step);
    held[warp][lane] = found.bits;
    __syncthreads();
    for (int i = 0; i < kWarps; ++i) found = found.with(held[i][lane]);
    if (!exists) return;
    uint8_t* const values = static_cast<uint8_t*>(call.values) + begin;
    quantize<Value, 1>(x, values, found.divisor<Value>(), first, count, step);
    if (warp == 0) call.scales[matrix * columns + column] = found.scale<Value>();
  });
}

// Blocks meet three times, as the word in which they leave the bits that they found is the word of the scale.
template <int kCount>
__global__ void __launch_bounds__(kTensorThreads, kTensorBlocks)
    quantize_tensor(const __grid_constant__ QuantizeCall call) {
  __shared__ uint32_t held[kTensorThreads / kWarp];
  const auto grid = cooperative_groups::this_grid();
  with_types(call.from, call.to, [&]<typename T, typename Value>() {
    uint32_t* const word = reinterpret_cast<uint32_t*>(call.scales);
    const int64_t count = call.batch * call.rows * call.columns;
    const int64_t first = (static_cast<int64_t>(blockIdx.x) * kTensorThreads + threadIdx.x) * kCount;
    const int64_t step = static_cast<int64_t>(gridDim.x) * kTensorThreads * kCount;
    const bool leads = blockIdx.x == 0 && threadIdx.x == 0;
    const T* const x = static_cast<const T*>(call.x);
    if (leads) *word = 0;
    Largest found = over_lanes(largest_of<kCount>(x, first, count, step));
    if (threadIdx.x % kWarp == 0) held[threadIdx.x / kWarp] = found.bits;
    grid.sync();
    if (threadIdx.x == 0) {
      found = over_warps(held, 0, kTensorThreads / kWarp);
      uint32_t before = *static_cast<volatile uint32_t*>(word), expected;
      do {
        expected = before;
        before = atomicCAS(word, expected, found.with(expected).bits);
      } while (before != expected);
    }
    grid.sync();
    found.bits = *static_cast<volatile uint32_t*>(word);
    quantize<Value, kCount>(x, static_cast<uint8_t*>(call.values), found.divisor<Value>(), first, count,
                            step);
    grid.sync();
    if (leads) *call.scales = found.scale<Value>();
  });
}

Status status_of(cudaError_t error) {
  return error == cudaSuccess ? Status{} : Status{join("quantize: ", cudaGetErrorString(error))};
}
template <int kCount>
Status launch_rows(const QuantizeCall& call, CUstream_st* stream) {
  int threads = kWarp;
  while (threads < kRowThreads && threads * 4 * kVector < call.columns) threads *= 2;
  const int64_t blocks = ceil_div(call.batch * call.rows, kRowThreads / threads);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 20));
  quantize_rows<kCount><<<grid, kRowThreads, 0, stream>>>(call, threads);
  return status_of(cudaGetLastError());
}

Status launch_columns(const QuantizeCall& call, CUstream_st* stream) {
  const int64_t blocks = call.batch * ceil_div(call.columns, kWarp);
  if (blocks > INT32_MAX) return {"quantize: x has too many columns"};
  quantize_columns<<<static_cast<unsigned>(blocks), kColumnThreads, 0, stream>>>(call);
  return status_of(cudaGetLastError());
}

template <int kCount>
Status launch_tensor(const QuantizeCall& call, int device, CUstream_st* stream) {
  int multiprocessors = 0;
  const auto asked = cudaDevAttrMultiProcessorCount;
  if (Status s = status_of(cudaDeviceGetAttribute(&multiprocessors, asked, device)); !s.ok()) return s;
  const int64_t wanted = ceil_div(call.batch * call.rows * call.columns, kTensorThreads * kCount);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(wanted, multiprocessors * kTensorBlocks));
  QuantizeCall argument = call;
  void* arguments[] = {&argument};
  return status_of(
      cudaLaunchCooperativeKernel(quantize_tensor<kCount>, blocks, kTensorThreads, arguments, 0, stream));
}

}  // namespace

std::string unsupported_quantize(const QuantizeCall& call) {
  const bool from = call.from == DType::kF32 || call.from == DType::kBF16 || call.from == DType::kF16;
  const bool to = call.to == DType::kS8 || call.to == DType::kE4M3 || call.to == DType::kE5M2;
  if (!from || !to) return join("no kernel makes ", dtype_name(call.to), " of ", dtype_name(call.from));
  return call.batch * call.rows * call.columns == 0 ? "there is nothing to quantize" : "";
}

// Whether a thread takes kVector elements together.
static bool in_vectors(const QuantizeCall& call) {
  const bool rows = call.scaling == Scaling::kRow;
  return (rows ? call.columns : call.batch * call.rows * call.columns) % kVector == 0;
}

Status prepare_quantize(const QuantizeCall& call) {
  cudaFuncAttributes attributes;
  const auto load = [&](auto* kernel) { return status_of(cudaFuncGetAttributes(&attributes, kernel)); };
  if (call.scaling == Scaling::kColumn) return load(quantize_columns);
  if (call.scaling == Scaling::kRow)
    return in_vectors(call) ? load(quantize_rows<kVector>) : load(quantize_rows<1>);
  return in_vectors(call) ? load(quantize_tensor<kVector>) : load(quantize_tensor<1>);
}

Status launch_quantize(const QuantizeCall& call, int device, CUstream_st* stream) {
  if (call.scaling == Scaling::kColumn) return launch_columns(call, stream);
  if (call.scaling == Scaling::kRow)
    return in_vectors(call) ? launch_rows<kVector>(call, stream) : launch_rows<1>(call, stream);
  return in_vectors(call) ? launch_tensor<kVector>(call, device, stream)
                          : launch_tensor<1>(call, device, stream);
}

}  // namespace jaxgemm::cuda
