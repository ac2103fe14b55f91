// wmma: a warp owns one WMMA tile of D and loads its fragments straight from global memory. Block (32, 4, 4):
// 16 warps, 4 x 4 tiles. Every type pair and tile shape that WMMA has for them.
//
// Transposed operands are declared col_major, so no data moves for them. Nothing is padded: where a tile lies
// inside its operand and WMMA's rules of alignment hold, a fragment is read in place; elsewhere, at a ragged
// edge or with an odd pitch, the warp first copies the tile into shared memory, with zeros outside of the
// operand.
//
// alpha and beta: a product in progress cannot be scaled without rounding or, for alpha = 0, losing a NaN
// that 0 * NaN keeps. So:
//   alpha = 1: the accumulator starts as beta * C, and the product is added to it;
//   otherwise: it starts at zero, and alpha * product + beta * C is formed at the end.
//
//   tile       16 x 16 x 16
//   threads    512
//   registers  64: 8 sums, 8 operands
//   shared     16 x 256 x 4
//   shows      float16 HMMA; bfloat16 HMMA; float32 HMMA; float64 DMMA; int8 IMMA; uint8 IMMA
#include <algorithm>
#include <string>

#include "../device/wmma_tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kWarpRows = 4, kWarpCols = 4;

template <int kM_, int kN_, int kK_>
struct Shape {
  static constexpr int kM = kM_, kN = kN_, kK = kK_;
};

// f32 operands go to the tensor cores as TF32.
template <typename T>
using Element = std::conditional_t<std::is_same_v<T, float>, wmma::precision::tf32, T>;

// One operand's tiles along K for one warp: kLong of m or n by kK.
template <typename Fragment, typename T, int kLong, int kK, bool kAlongK>
class FragmentReader {
  static constexpr int kLength = kAlongK ? kK : kLong, kLines = kAlongK ? kLong : kK;
  // A line of the shared copy is at least the 16 bytes that WMMA wants between lines.
  static constexpr int kPitch = kLength * sizeof(T) < 16 ? 16 / sizeof(T) : kLength;

 public:
  static constexpr int kStageBytes = kLines * kPitch * sizeof(T);

  __device__ __forceinline__ FragmentReader(const TileOperand<T>& x, int64_t batch, int64_t first,
                                            int64_t extent)
      : ld_(x.ld) {
    next_ = x.at_batch(batch) + (kAlongK ? first * ld_ : first);
    extent_ = extent - first < kLong ? static_cast<int>(extent - first) : kLong;
    // WMMA wants lines to start at multiples of what a lane holds and of 16 bytes, and a pitch of 32 bits.
    constexpr int64_t kAlign = sizeof(Fragment::x) > 16 ? sizeof(Fragment::x) : 16;
    in_place_ = extent_ == kLong && reinterpret_cast<uintptr_t>(next_) % sizeof(Fragment::x) == 0 &&
                ld_ * static_cast<int64_t>(sizeof(T)) % kAlign == 0 && ld_ <= INT32_MAX;
  }

  __device__ __forceinline__ bool in_place() const { return in_place_; }

  // The next fragment, from where it lies; the tile is known to be a whole one.
  __device__ __forceinline__ void read(Fragment& fragment) {
    wmma::load_matrix_sync(fragment, next_, static_cast<unsigned>(ld_));
    advance(fragment);
  }

  // The next fragment, from where it lies or by way of shared memory; `k_left` elements of k are still to
  // come.
  __device__ __forceinline__ void read(Fragment& fragment, int64_t k_left, T* stage) {
    if (in_place_ && k_left >= kK) return read(fragment);
    const int depth = k_left < kK ? static_cast<int>(k_left) : kK;
    const int lines = kAlongK ? extent_ : depth, length = kAlongK ? depth : extent_;
    constexpr int kLinesPerRound = 32 / kLength;
    int line = threadIdx.x / kLength;
    const int place = threadIdx.x % kLength;
    const T* p = next_ + line * ld_ + place;
    __syncwarp();
#pragma unroll 4
    for (int round = 0; round < kLines / kLinesPerRound; ++round) {
      stage[line * kPitch + place] = line < lines && place < length ? *p : T{};
      line += kLinesPerRound;
      p += kLinesPerRound * ld_;
    }
    __syncwarp();
    wmma::load_matrix_sync(fragment, stage, kPitch);
    advance(fragment);
  }

 private:
  __device__ __forceinline__ void advance(Fragment& fragment) {
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (int i = 0; i < fragment.num_elements; ++i) fragment.x[i] = wmma::__float_to_tf32(fragment.x[i]);
    }
    next_ += kAlongK ? kK : kK * ld_;
  }

  const T* next_;
  int64_t ld_;
  int extent_;
  bool in_place_;
};

// The fragments of one pair of layouts, and how they are read.
template <typename T, typename S, bool kTransposeA, bool kTransposeB>
struct Layouts {
  template <bool kColumns>
  using Layout = std::conditional_t<kColumns, wmma::col_major, wmma::row_major>;
  using A = wmma::fragment<wmma::matrix_a, S::kM, S::kN, S::kK, Element<typename T::A>, Layout<kTransposeA>>;
  using B = wmma::fragment<wmma::matrix_b, S::kM, S::kN, S::kK, Element<typename T::B>, Layout<kTransposeB>>;
  using ReaderA = FragmentReader<A, typename T::A, S::kM, S::kK, !kTransposeA>;
  using ReaderB = FragmentReader<B, typename T::B, S::kN, S::kK, kTransposeB>;
};

template <typename T, typename S>
using Accumulator = wmma::fragment<wmma::accumulator, S::kM, S::kN, S::kK, typename T::Acc>;

// A warp's shared memory: for tiles of A and B at an edge and, at other times, for its tile of C or D.
template <typename T, typename S>
struct Stage {
  template <bool kTransposeA, bool kTransposeB>
  using In = Layouts<T, S, kTransposeA, kTransposeB>;
  static constexpr int kBytesA =
      std::max(In<false, false>::ReaderA::kStageBytes, In<true, true>::ReaderA::kStageBytes);
  static constexpr int kBytesB =
      std::max(In<false, false>::ReaderB::kStageBytes, In<true, true>::ReaderB::kStageBytes);
  static constexpr int kResultBytes = S::kM * S::kN * sizeof(typename T::Acc);
  static constexpr int kBytes = std::max(kBytesA + kBytesB, kResultBytes);
};

// Adds the product of the warp's rows and columns to `acc`.
template <typename T, typename S, bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void sum_over_k(const TiledProduct<T>& p, int64_t batch, int64_t row, int64_t col,
                                           char* own, Accumulator<T, S>& acc) {
  using In = Layouts<T, S, kTransposeA, kTransposeB>;
  auto* const a_stage = reinterpret_cast<typename T::A*>(own);
  auto* const b_stage = reinterpret_cast<typename T::B*>(own + Stage<T, S>::kBytesA);
  typename In::ReaderA a(p.a, batch, row, p.m);
  typename In::ReaderB b(p.b, batch, col, p.n);
  typename In::A a_fragment;
  typename In::B b_fragment;
  int64_t k_left = p.k;
  // Several steps' reads are under way at once, where there are registers for them.
  constexpr int kTogether = std::is_same_v<typename T::A, __nv_bfloat16> && S::kM != S::kN ? 1 : 2;
  if (a.in_place() && b.in_place()) {
#pragma unroll kTogether
    for (; k_left >= S::kK; k_left -= S::kK) {
      a.read(a_fragment);
      b.read(b_fragment);
      wmma::mma_sync(acc, a_fragment, b_fragment, acc);
    }
  }
  for (; k_left > 0; k_left -= S::kK) {
    a.read(a_fragment, k_left, a_stage);
    b.read(b_fragment, k_left, b_stage);
    wmma::mma_sync(acc, a_fragment, b_fragment, acc);
  }
}

template <typename T, typename S>
__global__ void __launch_bounds__(32 * kWarpRows * kWarpCols, sizeof(typename T::Acc) == 8 ? 1 : 2)
    wmma_gemm(const __grid_constant__ TiledProduct<T> p) {
  using Acc = typename T::Acc;
  __shared__ alignas(128) char shared[kWarpRows * kWarpCols][Stage<T, S>::kBytes];
  char* const own = shared[threadIdx.z * kWarpCols + threadIdx.y];
  auto* const stage = reinterpret_cast<Acc*>(own);

  const int64_t row = (int64_t{p.tile_row()} * kWarpRows + threadIdx.z) * S::kM;
  const int64_t col = (int64_t{p.tile_col()} * kWarpCols + threadIdx.y) * S::kN;
  if (row >= p.m || col >= p.n) return;  // warps never wait for one another

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    const bool starts_from_c = p.epilogue.c && p.epilogue.alpha == Acc(1);
    Accumulator<T, S> acc;
    if (starts_from_c) {
      __syncwarp();
#pragma unroll 1
      for (int i = threadIdx.x; i < S::kM * S::kN; i += 32) {
        const int64_t r = row + i / S::kN, c = col + i % S::kN;
        const int64_t index = (batch * p.m + r) * p.n + c;
        stage[i] = r < p.m && c < p.n ? Epilogue<T>::scale(p.epilogue.beta, convert<Acc>(p.epilogue.c[index]))
                                      : Acc(0);
      }
      __syncwarp();
      wmma::load_matrix_sync(acc, stage, S::kN, wmma::mem_row_major);
    } else {
      wmma::fill_fragment(acc, Acc(0));
    }
    with_layouts(p, [&]<bool kTransposeA, bool kTransposeB>() {
      sum_over_k<T, S, kTransposeA, kTransposeB>(p, batch, row, col, own, acc);
    });
    Epilogue<T> epilogue = p.epilogue;
    if (starts_from_c) epilogue.c = nullptr;
    store_fragment(p, epilogue, batch, row, col, stage, acc);
  }
}

// The shapes of WMMA for an operand type, the default first.
template <typename A>
auto shapes_of() {
  if constexpr (std::is_same_v<A, double>)
    return TypeList<Shape<8, 8, 4>>{};
  else if constexpr (std::is_same_v<A, float>)
    return TypeList<Shape<16, 16, 8>>{};
  else
    return TypeList<Shape<16, 16, 16>, Shape<32, 8, 16>, Shape<8, 32, 16>>{};
}

// Calls f with the first shape that has the extents of options tile_m, tile_n and tile_k, where 0 stands for
// any.
template <typename F, typename... Shapes>
Status dispatch_shape(TypeList<Shapes...>, const GemmProblem& p, F&& f) {
  const auto wanted = [&](size_t i) { return i < p.config.size() ? p.config[i] : 0; };
  const auto fits = [&](int extent, size_t i) { return wanted(i) == 0 || wanted(i) == extent; };
  const auto matches = [&](auto s) { return fits(s.kM, 0) && fits(s.kN, 1) && fits(s.kK, 2); };
  const auto text = [](auto m, auto n, auto k) {
    return "(" + std::to_string(m) + ", " + std::to_string(n) + ", " + std::to_string(k) + ")";
  };
  Status status;
  if (((matches(Shapes{}) ? (status = f(Shapes{}), true) : false) || ...)) return status;
  std::string supported;
  ((supported += (supported.empty() ? "" : ", ") + text(Shapes::kM, Shapes::kN, Shapes::kK)), ...);
  return {"kernel 'wmma' got tile " + text(wanted(0), wanted(1), wanted(2)) + " for " +
          dtype_name(p.a.dtype) + "; it supports " + supported};
}

}  // namespace

std::string unsupported_wmma(const GemmProblem& p) {
  const auto shape_exists = [&](auto types) {
    return dispatch_shape(shapes_of<typename decltype(types)::A>(), p, [](auto) { return Status{}; });
  };
  return dispatch_types(TypesOf<kWmmaTypes>{}, p, shape_exists).message;
}

Status launch_wmma(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(TypesOf<kWmmaTypes>{}, p, [&](auto types) {
    using T = decltype(types);
    return dispatch_shape(shapes_of<typename T::A>(), p, [&](auto shape) {
      using S = decltype(shape);
      return launch_tiles("wmma", wmma_gemm<T, S>, p, buffers, executor, kWarpRows * S::kM, kWarpCols * S::kN,
                          dim3(32, kWarpCols, kWarpRows));
    });
  });
}

}  // namespace jaxgemm::cuda
