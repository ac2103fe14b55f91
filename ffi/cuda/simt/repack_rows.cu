#include <algorithm>

#include "repack_rows.cuh"

namespace jaxgemm::cuda::simt {
namespace {

constexpr int kThreads = 256, kSide = 64, kPerThread = kSide * kSide / kThreads;

// The work on an operand, in squares of kSide x kSide elements, one a block. The squares of a product are
// counted along x first, then along k.
struct Work {
  RepackOperand x;
  int64_t across = 0, squares = 0;  // squares along x, and squares of all products

  explicit Work(const RepackOperand& operand) : x(operand) {
    across = (x.pitch + kSide - 1) / kSide;
    squares = across * ((x.k + kSide - 1) / kSide) * x.batch[0] * x.batch[1];
  }
};

// Neighbouring threads read along whichever of k and x is contiguous, and write along x. Where those differ,
// the square passes through shared memory, whose odd pitch avoids bank conflicts both ways.
template <typename T>
__device__ void repack_square(const Work& work, int64_t square, T (&shared)[kSide][kSide + 1]) {
  const RepackOperand& x = work.x;
  const int64_t row = square / work.across, rows = (x.k + kSide - 1) / kSide;
  const int64_t product = row / rows, outer = product / x.batch[1], inner = product % x.batch[1];
  const int64_t x0 = (square - row * work.across) * kSide, k0 = (row - product * rows) * kSide;
  const T* const from = static_cast<const T*>(x.from) + outer * x.batch_stride[0] + inner * x.batch_stride[1];
  T* const to = static_cast<T*>(x.to) + product * x.k * x.pitch;

  const int along = threadIdx.x % kSide, across = threadIdx.x / kSide;
  constexpr int kStep = kThreads / kSide;
  T value[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int other = across + i * kStep;
    const int64_t at_x = x0 + (x.along_k ? other : along), at_k = k0 + (x.along_k ? along : other);
    value[i] = T(0);
    if (at_x < x.extent && at_k < x.k) value[i] = from[x.along_k ? at_x * x.ld + at_k : at_k * x.ld + at_x];
  }
  if (x.along_k) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) shared[along][across + i * kStep] = value[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) value[i] = shared[across + i * kStep][along];
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t at_k = k0 + across + i * kStep;
    if (x0 + along < x.pitch && at_k < x.k) to[at_k * x.pitch + x0 + along] = value[i];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    simt_repack(const __grid_constant__ Work a, const __grid_constant__ Work b) {
  __shared__ T shared[kSide][kSide + 1];
  for (int64_t square = blockIdx.x; square < a.squares + b.squares; square += gridDim.x) {
    const bool first = square < a.squares;
    repack_square(first ? a : b, first ? square : square - a.squares, shared);
    __syncthreads();
  }
}

}  // namespace

void launch_repack(const RepackOperand& a, const RepackOperand& b, size_t element_bytes,
                   cudaStream_t stream) {
  const Work first(a), second(b);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(first.squares + second.squares, INT32_MAX));
  // Errors show in launch_status.
  if (element_bytes == 8)
    simt_repack<double><<<blocks, kThreads, 0, stream>>>(first, second);
  else
    simt_repack<float><<<blocks, kThreads, 0, stream>>>(first, second);
}

}  // namespace jaxgemm::cuda::simt
