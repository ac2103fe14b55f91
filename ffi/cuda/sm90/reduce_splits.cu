// Adds the partial results of a split K. A block has consecutive runs of 4 columns of D. Its threads form a
// table, runs x stretches: each thread adds one run's partial results over a stretch of consecutive
// splits, then the stretches are added in their order. So the order of additions depends on the number of
// splits alone. With 8 splits or fewer there is one stretch.
#include "../device/divisor.cuh"
#include "../device/ptx.cuh"
#include "reduce.cuh"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int kThreads = 256;

struct Partials {
  const void* data;  // of sums
  int64_t pitch, split_stride;
  uint32_t runs;    // of 4 columns, of all products
  Divisor per_row;  // runs
  int splits, stretches, stretch_shift;
  bool plain;    // there is no epilogue but alpha
  bool vectors;  // D's rows are whole aligned runs
  // Scales of operands of 8 bits, null without scales. `lines`: each row or column of D has a scale of its
  // own.
  const float *a_scale, *b_scale;
  bool a_lines, b_lines;

  __device__ __forceinline__ float scale(int64_t row, int64_t col) const {
    return (a_scale ? __ldg(a_scale + (a_lines ? row : 0)) : 1.f) *
           (b_scale ? __ldg(b_scale + (b_lines ? col : 0)) : 1.f);
  }
  // Of a run that begins at `col`; `last` is D's last column.
  __device__ __forceinline__ void apply_scales(float4& sum, int64_t row, int64_t col, int64_t last) const {
    sum.x *= scale(row, col);
    sum.y *= scale(row, min(col + 1, last));
    sum.z *= scale(row, min(col + 2, last));
    sum.w *= scale(row, min(col + 3, last));
  }
};

template <typename Sums>
__device__ __forceinline__ void add(Sums& sum, const Sums& x) {
  sum.x += x.x;
  sum.y += x.y;
  sum.z += x.z;
  sum.w += x.w;
}

template <typename D>
struct alignas(4 * sizeof(D)) Four {
  D v[4];
};

template <typename T>
__global__ void __launch_bounds__(kThreads) reduce(Partials p, Epilogue<T> epilogue) {
  using Sum = typename T::Acc;
  using Sums = std::conditional_t<std::is_same_v<Sum, float>, float4, int4>;
  __shared__ Sums sums[kThreads];
  const uint32_t runs = kThreads >> p.stretch_shift;
  const int stretch = static_cast<int>(threadIdx.x / runs);
  const uint32_t run = blockIdx.x * runs + threadIdx.x % runs;
  const uint32_t line = p.per_row(run);
  const int64_t row = line, col = (run - line * p.per_row.divisor) * 4;
  const bool inside = run < p.runs;
  const int each = (p.splits + p.stretches - 1) >> p.stretch_shift;
  const int begin = stretch * each, end = min(begin + each, p.splits);

  Sums sum{};
  const Sum* const from = static_cast<const Sum*>(p.data) + row * p.pitch + col;
  wait_for_previous_kernel();
  if (inside) {
#pragma unroll 8
    for (int i = begin; i < end; ++i) add(sum, *reinterpret_cast<const Sums*>(from + i * p.split_stride));
  }
  if (p.stretches > 1) {
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (stretch > 0) return;
#pragma unroll 4
    for (int i = 1; i < p.stretches; ++i) add(sum, sums[i * runs + threadIdx.x]);
  }
  if (!inside) return;
  if constexpr (std::is_same_v<Sum, float>) {
    if (p.a_scale || p.b_scale) p.apply_scales(sum, row, col, epilogue.n - 1);
  }
  if (p.plain && p.vectors) {
    // Apart from the general case, so that its long code need not be fetched.
    using D = typename T::D;
    Four<D> y;
    y.v[0] = convert<D>(epilogue.alpha * sum.x);
    y.v[1] = convert<D>(epilogue.alpha * sum.y);
    y.v[2] = convert<D>(epilogue.alpha * sum.z);
    y.v[3] = convert<D>(epilogue.alpha * sum.w);
    *reinterpret_cast<Four<D>*>(epilogue.d + row * epilogue.n + col) = y;
    return;
  }
  const Sum out[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (col + i < epilogue.n) epilogue.store(0, row, col + i, out[i]);
  }
}

}  // namespace

Status launch_reduce(const GemmProblem& problem, const GemmBuffers& buffers, const void* partial,
                     int64_t pitch, int splits, CUstream_st* stream) {
  using ReduceTypes = TypeList<Types<DType::kF16, DType::kF16, DType::kF16, DType::kF32>,
                               Types<DType::kF16, DType::kF16, DType::kF32, DType::kF32>,
                               Types<DType::kBF16, DType::kBF16, DType::kBF16, DType::kF32>,
                               Types<DType::kBF16, DType::kBF16, DType::kF32, DType::kF32>,
                               Types<DType::kS8, DType::kS8, DType::kS32, DType::kS32>>;
  // Sums are fp32, or int32, and C and the bias have D's type, whatever the operands' is.
  GemmProblem of_result = problem;
  of_result.a.dtype = of_result.b.dtype = problem.d == DType::kS32   ? DType::kS8
                                          : problem.d == DType::kF16 ? DType::kF16
                                                                     : DType::kBF16;
  return dispatch_types(ReduceTypes{}, of_result, [&](auto types) {
    using T = decltype(types);
    Partials p{};
    p.data = partial;
    p.pitch = pitch;
    const int64_t rows = problem.m * problem.batch_count(), all = rows * (pitch / 4);
    if (all > INT32_MAX) return Status{"kernel 'sm90': the product is too large to split along K"};
    p.split_stride = rows * pitch;
    p.runs = static_cast<uint32_t>(all);
    p.per_row = Divisor(static_cast<uint32_t>(pitch / 4));
    p.splits = splits;
    while ((8 << p.stretch_shift) < splits && p.stretch_shift < 4) ++p.stretch_shift;
    p.stretches = 1 << p.stretch_shift;
    p.plain = !problem.has_c && !problem.has_bias && problem.activation == Activation::kNone;
    p.a_scale = buffers.a_scale, p.b_scale = buffers.b_scale;
    p.a_lines = problem.a_scale == Scale::kLines, p.b_lines = problem.b_scale == Scale::kLines;
    p.vectors =
        problem.n % 4 == 0 && reinterpret_cast<uintptr_t>(buffers.d) % sizeof(Four<typename T::D>) == 0;
    const int64_t runs = kThreads / p.stretches;
    const int64_t blocks = (all + runs - 1) / runs;

    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(kThreads);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, reduce<T>, p, Epilogue<T>(problem, buffers));
    return launch_status("sm90 (reduce)");
  });
}

}  // namespace jaxgemm::cuda::sm90
