// The end of a product: sums to finished elements of D, V neighbours of a row at a time.
#pragma once

#include "../device/epilogue.cuh"

namespace jaxgemm::cuda::simt {

template <typename T, int V>
struct alignas(V * sizeof(T)) Vector {
  T x[V];
};

// D, C and bias, which have one type. Sums in f32 may end as f32, f16 or bf16, and which is known at run
// time: a branch for each vector costs less than kernels of their own for each type would.
template <typename Acc>
struct Results {
  void* d;
  const void* c;     // null: beta is 0 and C is not read
  const void* bias;  // null: none
  DType type;
  Acc alpha, beta;
  Activation activation;

  Results(const GemmProblem& p, const GemmBuffers& b)
      : d(b.d),
        c(b.c),
        bias(b.bias),
        type(p.d),
        alpha(static_cast<Acc>(p.alpha)),
        beta(static_cast<Acc>(p.beta)),
        activation(p.activation) {}
};

// Whether a kernel's results are of type Acc only, or of 16 bits as well.
enum class Widths { kAcc, kAny };

template <typename T, int V, typename Acc>
__device__ __forceinline__ Vector<Acc, V> read_as(const void* from, int64_t index) {
  const auto given = *reinterpret_cast<const Vector<T, V>*>(static_cast<const T*>(from) + index);
  Vector<Acc, V> x;
#pragma unroll
  for (int v = 0; v < V; ++v) x.x[v] = convert<Acc>(given.x[v]);
  return x;
}

template <typename T, int V, typename Acc>
__device__ __forceinline__ void write_as(void* to, int64_t index, const Vector<Acc, V>& x) {
  Vector<T, V> out;
#pragma unroll
  for (int v = 0; v < V; ++v) out.x[v] = convert<T>(x.x[v]);
  *reinterpret_cast<Vector<T, V>*>(static_cast<T*>(to) + index) = out;
}

template <Widths W, int V, typename Acc>
__device__ __forceinline__ Vector<Acc, V> read(DType type, const void* from, int64_t index) {
  if constexpr (W == Widths::kAny) {
    if (type == DType::kF16) return read_as<__half, V, Acc>(from, index);
    if (type == DType::kBF16) return read_as<__nv_bfloat16, V, Acc>(from, index);
  }
  return read_as<Acc, V, Acc>(from, index);
}

template <Widths W, int V, typename Acc>
__device__ __forceinline__ void write(const Results<Acc>& r, int64_t index, const Vector<Acc, V>& x) {
  if constexpr (W == Widths::kAny) {
    if (r.type == DType::kF16) return write_as<__half>(r.d, index, x);
    if (r.type == DType::kBF16) return write_as<__nv_bfloat16>(r.d, index, x);
  }
  write_as<Acc>(r.d, index, x);
}

template <Widths W, int V, typename Acc>
__device__ __forceinline__ void finish(const Results<Acc>& r, const Vector<Acc, V>& sum, int64_t index,
                                       int64_t col) {
  Vector<Acc, V> c{}, bias{}, out;
  if (r.c) c = read<W, V, Acc>(r.type, r.c, index);
  if (r.bias) bias = read<W, V, Acc>(r.type, r.bias, col);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    Acc x = r.alpha * sum.x[v];
    if (r.c) x += r.beta * c.x[v];
    if (r.bias) x += bias.x[v];
    // V copies of the activations' code would cost more than wide accesses save (see can_be_wide).
    if constexpr (V == 1) x = activate(r.activation, x);
    out.x[v] = x;
  }
  write<W>(r, index, out);
}

// Whether rows of D, C and bias can be accessed V elements at a time.
inline bool can_be_wide(const GemmProblem& p, const GemmBuffers& b, int64_t v) {
  const auto aligned = [&](const void* x) {
    return reinterpret_cast<uintptr_t>(x) % (static_cast<size_t>(v) * dtype_bytes(p.d)) == 0;
  };
  return p.activation == Activation::kNone && p.n % v == 0 && aligned(b.d) && aligned(b.c) && aligned(b.bias);
}

}  // namespace jaxgemm::cuda::simt
