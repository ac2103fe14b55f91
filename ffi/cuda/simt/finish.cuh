// The end of a product: sums to finished elements of D, V neighbours of a row at a time; and the second half
// of split-K, which adds up the parts in a fixed order.
#pragma once

#include "../device/epilogue.cuh"

namespace jaxgemm::cuda::simt {

template <typename T, int V>
struct alignas(V * sizeof(T)) Vector {
  T x[V];
};

template <int V, typename Types>
__device__ __forceinline__ void finish(const Epilogue<Types>& e, const Vector<typename Types::Acc, V>& sum,
                                       int64_t index, int64_t col) {
  using Acc = typename Types::Acc;
  using D = typename Types::D;
  if constexpr (V == 1) {
    e.d[index] = e.finish(sum.x[0], index, col);
  } else {
    // Without an activation: V copies of that code would cost more than wide accesses save (see can_be_wide).
    Vector<D, V> c{}, bias{}, out;
    if (e.c) c = *reinterpret_cast<const Vector<D, V>*>(e.c + index);
    if (e.bias) bias = *reinterpret_cast<const Vector<D, V>*>(e.bias + col);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      Acc x = e.alpha * sum.x[v];
      if (e.c) x += e.beta * convert<Acc>(c.x[v]);
      if (e.bias) x += convert<Acc>(bias.x[v]);
      out.x[v] = convert<D>(x);
    }
    *reinterpret_cast<Vector<D, V>*>(e.d + index) = out;
  }
}

// Whether rows of D, C and bias can be accessed V elements at a time.
inline bool can_be_wide(const GemmProblem& p, const GemmBuffers& b, int64_t v) {
  const auto aligned = [&](const void* x) {
    return reinterpret_cast<uintptr_t>(x) % (static_cast<size_t>(v) * dtype_bytes(p.d)) == 0;
  };
  return p.activation == Activation::kNone && p.n % v == 0 && aligned(b.d) && aligned(b.c) && aligned(b.bias);
}

}  // namespace jaxgemm::cuda::simt
