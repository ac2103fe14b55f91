// What happens between the accumulator and memory: D = activation(alpha * acc + beta * C + bias).
#pragma once

#include "types.cuh"

namespace jaxgemm::cuda {

template <typename T>
__device__ __forceinline__ T exp_of(T x) {
  return exp(x);
}
template <typename T>
__device__ __forceinline__ T tanh_of(T x) {
  return tanh(x);
}
template <typename T>
__device__ __forceinline__ T erfc_of(T x) {
  return erfc(x);
}

#define JAXGEMM_INLINE __device__ __forceinline__
#include "../../activation.inc"
#undef JAXGEMM_INLINE

template <typename T>
__device__ __forceinline__ T activate(Activation activation, T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return apply<T>(activation, x);
  } else {
    // Integers know relu only; the table admits no other.
    return activation == Activation::kRelu ? (x > 0 ? x : T(0)) : x;
  }
}

// Everything a kernel needs to finish an element, by value in the kernel's parameters.
template <typename Types>
struct Epilogue {
  using Acc = typename Types::Acc;
  using D = typename Types::D;

  D* d;
  const D* c;     // null: beta is 0 and C is not read
  const D* bias;  // null: none
  int64_t n;
  Acc alpha, beta;
  Activation activation;

  Epilogue(const GemmProblem& p, const GemmBuffers& b)
      : d(static_cast<D*>(b.d)),
        c(static_cast<const D*>(b.c)),
        bias(static_cast<const D*>(b.bias)),
        n(p.n),
        alpha(static_cast<Acc>(p.alpha)),
        beta(static_cast<Acc>(p.beta)),
        activation(p.activation) {}

  // Integer alpha and beta are exact and wrap like the accumulator, so they multiply as unsigned.
  static __device__ __forceinline__ Acc scale(Acc s, Acc x) {
    if constexpr (std::is_integral_v<Acc>)
      return Acc(uint32_t(s) * uint32_t(x));
    else
      return s * x;
  }
  static __device__ __forceinline__ Acc add(Acc x, Acc y) {
    if constexpr (std::is_integral_v<Acc>)
      return Acc(uint32_t(x) + uint32_t(y));
    else
      return x + y;
  }

  // The finished value of element `index` (counted through all batches) in column `col`.
  __device__ __forceinline__ D finish(Acc acc, int64_t index, int64_t col) const {
    Acc x = scale(alpha, acc);
    if (c) x = add(x, scale(beta, convert<Acc>(c[index])));
    if (bias) x = add(x, convert<Acc>(bias[col]));
    return convert<D>(activate(activation, x));
  }

  // Row and column are within one product of m x n; `base` is where that product starts in D.
  __device__ __forceinline__ void store(int64_t base, int64_t row, int64_t col, Acc acc) const {
    const int64_t index = base + row * n + col;
    d[index] = finish(acc, index, col);
  }
};

}  // namespace jaxgemm::cuda
