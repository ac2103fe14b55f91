// What the ladder's kernels share: tiles of op(A) and op(B) on their way into shared memory, and a thread's
// results on their way out. Here live the guards at ragged edges and the choice of access width, so that a
// kernel's own file shows its idea alone.
#pragma once

#include <cstring>

#include "epilogue.cuh"
#include "operands.cuh"

namespace jaxgemm::cuda {

// f32, and the 16-bit types accumulated in f32: for kernels whose registers or shared memory have no room for
// f64.
using SingleTypes = TypeList<Types<DType::kF32, DType::kF32, DType::kF32, DType::kF32>,
                             Types<DType::kF16, DType::kF16, DType::kF16, DType::kF32>,
                             Types<DType::kF16, DType::kF16, DType::kF32, DType::kF32>,
                             Types<DType::kBF16, DType::kBF16, DType::kBF16, DType::kF32>,
                             Types<DType::kBF16, DType::kBF16, DType::kF32, DType::kF32>>;

// What tensor cores multiply in 16 bits and sum in f32.
using TensorTypes = TypeList<Types<DType::kF16, DType::kF16, DType::kF16, DType::kF32>,
                             Types<DType::kF16, DType::kF16, DType::kF32, DType::kF32>,
                             Types<DType::kBF16, DType::kBF16, DType::kBF16, DType::kF32>,
                             Types<DType::kBF16, DType::kBF16, DType::kF32, DType::kF32>>;

// Neighbours that move in one access. The widest access is 16 bytes, so four doubles take two.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Vec {
  T x[kCount];
};

template <typename T>
bool vec4_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(Vec<T, 4>) == 0;
}

// An operand as tiles see it. All of it is worked out on the host, so that in the kernel it costs no
// register.
template <typename T>
struct TileOperand : Operand<T> {
  bool along_k;      // memory is contiguous along k, as in a row-major A or a transposed B
  int64_t k_stride;  // from one k to the next
  bool vec4;         // every fourth element of every line is aligned for an access of four

  TileOperand(const void* p, const Matrix& x, const GemmProblem& problem, bool along_k_)
      : Operand<T>(p, x, problem),
        along_k(along_k_),
        k_stride(along_k_ ? 1 : x.ld),
        vec4(vec4_aligned<T>(p) && x.ld % 4 == 0 && x.batch_stride[0] % 4 == 0 &&
             x.batch_stride[1] % 4 == 0) {}
};

// A kernel's whole parameter: the product, cut into output tiles.
template <typename T>
struct TiledProduct {
  int64_t m, n, k;
  TileOperand<typename T::A> a;
  TileOperand<typename T::B> b;
  TileGrid grid;
  Epilogue<T> epilogue;
  bool d_vec4;  // D may be stored four neighbours at a time
  // blockIdx.x / grid.tiles_n as a multiplication and a shift. A real division leaves its results in a
  // register of every thread for as long as the tile lasts; these stay in the warp's uniform registers.
  uint32_t divide_multiplier, divide_shift;

  TiledProduct(const GemmProblem& p, const GemmBuffers& buffers, int block_m, int block_n)
      : m(p.m),
        n(p.n),
        k(p.k),
        a(buffers.a, p.a, p, !p.a.transposed),
        b(buffers.b, p.b, p, p.b.transposed),
        grid(p, block_m, block_n),
        epilogue(p, buffers),
        d_vec4(vec4_aligned<typename T::D>(buffers.d) && p.n % 4 == 0) {
    const uint64_t divisor = static_cast<uint64_t>(grid.tiles_n);
    divide_shift = 31;
    while ((uint64_t{1} << (divide_shift - 31)) < divisor) ++divide_shift;
    divide_multiplier = static_cast<uint32_t>(((uint64_t{1} << divide_shift) + divisor - 1) / divisor);
  }

  __device__ __forceinline__ uint32_t tile_row() const {
    return static_cast<uint32_t>(uint64_t{blockIdx.x} * divide_multiplier >> divide_shift);
  }
  __device__ __forceinline__ uint32_t tile_col() const {
    return blockIdx.x - tile_row() * static_cast<uint32_t>(grid.tiles_n);
  }
  // The same with neighbouring blocks below one another, so that those that run at a time share B's lines.
  __device__ __forceinline__ uint32_t tile_row_down() const {
    return blockIdx.x % static_cast<uint32_t>(grid.tiles_m);
  }
  __device__ __forceinline__ uint32_t tile_col_down() const {
    return blockIdx.x / static_cast<uint32_t>(grid.tiles_m);
  }
};

// Calls f<A is transposed, B is transposed>(), so that one kernel holds a loop for each pair of layouts.
template <typename T, typename F>
__device__ __forceinline__ void with_layouts(const TiledProduct<T>& p, F&& f) {
  if (p.a.transposed)
    p.b.transposed ? f.template operator()<true, true>() : f.template operator()<true, false>();
  else
    p.b.transposed ? f.template operator()<false, true>() : f.template operator()<false, false>();
}

// One element of a product, straight from global memory, with the reads of 16 steps of k under way.
template <typename Acc, typename A, typename B>
__device__ __forceinline__ Acc dot_in_memory(const A& a, const B& b, int64_t row, int64_t col, int64_t k) {
  const auto* a_element = a.data + row * a.row_stride;
  const auto* b_element = b.data + col * b.col_stride;
  const int64_t a_step = a.col_stride, b_step = b.row_stride;
  Acc sum = 0;
#pragma unroll 16
  for (int64_t k_left = k; k_left > 0; --k_left, a_element += a_step, b_element += b_step) {
    sum += convert<Acc>(*a_element) * convert<Acc>(*b_element);
  }
  return sum;
}

// One block for each output tile, and along y for each product of the batch; none for an empty output.
template <typename T>
Status launch_tiles(const char* name, void (*kernel)(TiledProduct<T>), const GemmProblem& p,
                    const GemmBuffers& buffers, const Executor& executor, int block_m, int block_n,
                    dim3 threads) {
  if (p.output_empty()) return {};
  const TiledProduct<T> product(p, buffers, block_m, block_n);
  if (!product.grid.fits()) {
    return {std::string("kernel '") + name + "' launches at most 2147483647 blocks, this output needs more"};
  }
  kernel<<<product.grid.blocks(), threads, 0, executor.stream>>>(product);
  return launch_status(name);
}

// Where an element of a tile lies in shared memory: in lines across k, tile[k][m or n], or along k, tile[m or
// n][k].
template <int kPitch>
struct AcrossK {
  static constexpr int kLongStride = 1, kDepthStride = kPitch;
};
template <int kPitch>
struct AlongK {
  static constexpr int kLongStride = kPitch, kDepthStride = 1;
};

// The way of one tile of kLong x kDepth elements from global memory through registers into shared memory, and
// then of the next one along K: kLong runs along m or n, kDepth along k.
//
// The block's threads are laid over the tile along the direction in which memory is contiguous, kVec elements
// a thread, in as many rounds as it takes: loads coalesce under either transposition. What lies outside of
// the operand reads as zero, so the arithmetic needs no guard. Only pointers are 64 bits wide and they walk
// by additions; everything inside a tile is counted in 32 bits, because index arithmetic costs registers.
template <typename T, int kLong, int kDepth, int kThreads, int kVec, typename Layout>
class TileStream {
  static constexpr int kRounds = kLong * kDepth / (kThreads * kVec);
  static_assert(kLong * kDepth == kRounds * kThreads * kVec, "every round must use every thread");

  static_assert(kThreads * kVec % kLong == 0 && kThreads * kVec % kDepth == 0, "rounds must end with a line");

  using Run = Vec<T, kVec>;
  // What a thread holds between fetch() and put(): whole registers, or the guarded path would leave every
  // 16-bit element in a register of its own.
  struct alignas(Run) Words {
    uint32_t x[sizeof(Run) / 4];
  };
  using Held = std::conditional_t<sizeof(Run) % 4 == 0, Words, Run>;

 public:
  // `first` is the tile's place along m or n, `extent` the operand's end there.
  __device__ __forceinline__ TileStream(const TileOperand<T>& x, int64_t batch, int64_t first, int64_t extent)
      : along_k_(x.along_k), ld_(x.ld), k_stride_(x.k_stride) {
    const Place<true> at;
    const Place<false> across;
    const int64_t thread_offset = along_k_ ? at.line * ld_ + at.element : across.line * ld_ + across.element;
    next_ = x.at_batch(batch) + (along_k_ ? first * ld_ : first) + thread_offset;
    extent_ = extent - first < kLong ? static_cast<int>(extent - first) : kLong;
    whole_ = extent_ == kLong && (kVec == 1 || x.vec4);
  }

  // Reads the next tile into registers; `k_left` elements of k are still to come.
  __device__ __forceinline__ void fetch(int64_t k_left) {
    if (along_k_)
      fetch_lines<true>(k_left);
    else
      fetch_lines<false>(k_left);
    next_ += kDepth * k_stride_;
  }

  // Writes the tile that fetch() read, each element through `as`. Where memory and the tile are contiguous in
  // the same direction, the store is as wide as the load.
  template <typename S, typename As>
  __device__ __forceinline__ void put(S* tile, As as) const {
    if (along_k_)
      put_lines<true>(tile, as);
    else
      put_lines<false>(tile, as);
  }
  template <typename S>
  __device__ __forceinline__ void put(S* tile) const {
    put(tile, [](T x) { return convert<S>(x); });
  }

 private:
  // This thread's first place in the tile. Computed anew at each use: it costs a shift or two, while a
  // register held through the whole product may cost a spill.
  template <bool kAlongK>
  struct Place {
    static constexpr int kLength = kAlongK ? kDepth : kLong;  // of a line
    static constexpr int kLines = kThreads * kVec / kLength;  // a round
    int line = threadIdx.x * kVec / kLength, element = threadIdx.x * kVec % kLength;
  };

  template <bool kAlongK>
  __device__ __forceinline__ void fetch_lines(int64_t k_left) {
    using At = Place<kAlongK>;
    const T* p = next_;
    const int64_t step = At::kLines * ld_;
    if (whole_ && k_left >= kDepth) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r, p += step) held_[r] = *reinterpret_cast<const Held*>(p);
    } else {
      const At at;
      const int depth = k_left < kDepth ? static_cast<int>(k_left) : kDepth;
      const int lines = (kAlongK ? extent_ : depth) - at.line;
      const int elements = (kAlongK ? depth : extent_) - at.element;
#pragma unroll
      for (int r = 0; r < kRounds; ++r, p += step) {
        const int count = r * At::kLines < lines ? elements : 0;
        Run run;
#pragma unroll
        for (int v = 0; v < kVec; ++v) run.x[v] = v < count ? p[v] : T{};
        memcpy(&held_[r], &run, sizeof(run));
      }
    }
  }

  template <bool kAlongK, typename S, typename As>
  __device__ __forceinline__ void put_lines(S* tile, As as) const {
    using At = Place<kAlongK>;
    constexpr int kLineStride = kAlongK ? Layout::kLongStride : Layout::kDepthStride;
    constexpr int kElementStride = kAlongK ? Layout::kDepthStride : Layout::kLongStride;
    const At at;
    S* p = tile + at.line * kLineStride + at.element * kElementStride;
#pragma unroll
    for (int r = 0; r < kRounds; ++r, p += At::kLines * kLineStride) {
      Run run;
      memcpy(&run, &held_[r], sizeof(run));
      Vec<S, kVec> out;
#pragma unroll
      for (int v = 0; v < kVec; ++v) out.x[v] = as(run.x[v]);
      if constexpr (kElementStride == 1) {
        *reinterpret_cast<Vec<S, kVec>*>(p) = out;
      } else {
#pragma unroll
        for (int v = 0; v < kVec; ++v) p[v * kElementStride] = out.x[v];
      }
    }
  }

  Held held_[kRounds];
  const T* next_;
  int64_t ld_, k_stride_;
  int extent_;  // how much of kLong exists
  bool along_k_, whole_;
};

// The same with one element a thread: no rounds and no wide accesses to choose, so one comparison is all
// there is.
template <typename T, int kLong, int kDepth, typename Layout>
class TileStream<T, kLong, kDepth, kLong * kDepth, 1, Layout> {
 public:
  __device__ __forceinline__ TileStream(const TileOperand<T>& x, int64_t batch, int64_t first, int64_t extent)
      : k_stride_(x.k_stride) {
    const int thread = threadIdx.x;
    const int along = x.along_k ? thread / kDepth : thread % kLong;
    depth_at_ = x.along_k ? thread % kDepth : thread / kLong;
    shared_at_ = along * Layout::kLongStride + depth_at_ * Layout::kDepthStride;
    next_ = x.at_batch(batch) + (first + along) * (x.along_k ? x.ld : 1) + depth_at_ * k_stride_;
    if (first + along >= extent) depth_at_ = kDepth;  // at no depth is there anything
  }

  __device__ __forceinline__ void fetch(int64_t k_left) {
    const int depth = k_left < kDepth ? static_cast<int>(k_left) : kDepth;
    held_ = depth_at_ < depth ? *next_ : T{};
    next_ += kDepth * k_stride_;
  }

  template <typename S>
  __device__ __forceinline__ void put(S* tile) const {
    tile[shared_at_] = convert<S>(held_);
  }

 private:
  T held_;
  const T* next_;
  int64_t k_stride_;
  int depth_at_, shared_at_;
};

template <typename T, int kBlockM, int kBlockK, int kThreads, int kVec, typename Layout>
struct TileA : TileStream<typename T::A, kBlockM, kBlockK, kThreads, kVec, Layout> {
  __device__ __forceinline__ TileA(const TiledProduct<T>& p, int64_t batch, int64_t row)
      : TileStream<typename T::A, kBlockM, kBlockK, kThreads, kVec, Layout>(p.a, batch, row, p.m) {}
};

template <typename T, int kBlockN, int kBlockK, int kThreads, int kVec, typename Layout>
struct TileB : TileStream<typename T::B, kBlockN, kBlockK, kThreads, kVec, Layout> {
  __device__ __forceinline__ TileB(const TiledProduct<T>& p, int64_t batch, int64_t col)
      : TileStream<typename T::B, kBlockN, kBlockK, kThreads, kVec, Layout>(p.b, batch, col, p.n) {}
};

// Four neighbours of shared memory as one access.
template <typename S>
__device__ __forceinline__ void read4(S* to, const S* from) {
  const auto v = *reinterpret_cast<const Vec<S, 4>*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = v.x[i];
}

// The rank-1 update every register-blocked kernel is made of.
template <typename Acc, int kTm, int kTn>
__device__ __forceinline__ void add_outer_product(Acc (&acc)[kTm][kTn], const Acc (&a)[kTm],
                                                  const Acc (&b)[kTn]) {
#pragma unroll
  for (int i = 0; i < kTm; ++i) {
#pragma unroll
    for (int j = 0; j < kTn; ++j) acc[i][j] += a[i] * b[j];
  }
}

// Stores a thread's results: acc[i][j] is D(row_of(i), col_of(j)), with columns in runs of kRun neighbours
// and rows that grow with i.
//
// Registers cannot be indexed at run time, and unrolling would repeat the activations' code for each result.
// So the loops stay rolled and the array moves instead: rows up through row 0, runs left through column 0.
template <int kRun, typename T, int kTm, int kTn, typename RowOf, typename ColOf>
__device__ __forceinline__ void store_results(const TiledProduct<T>& p, int64_t batch,
                                              typename T::Acc (&acc)[kTm][kTn], RowOf row_of, ColOf col_of) {
  const int64_t base = batch * p.m * p.n;
#pragma unroll 1
  for (int i = 0; i < kTm; ++i) {
    const int64_t row = row_of(i);
    if (row >= p.m) break;
#pragma unroll 1
    for (int j = 0; j < kTn; j += kRun) {
      const int64_t col = col_of(j);
      const int64_t index = base + row * p.n + col;
      Vec<typename T::D, kRun> out;
#pragma unroll
      for (int v = 0; v < kRun; ++v) {
        if (col + v < p.n) out.x[v] = p.epilogue.finish(acc[0][v], index + v, col + v);
      }
      if (kRun > 1 && p.d_vec4 && col + kRun <= p.n) {
        *reinterpret_cast<Vec<typename T::D, kRun>*>(p.epilogue.d + index) = out;
      } else {
#pragma unroll
        for (int v = 0; v < kRun; ++v) {
          if (col + v < p.n) p.epilogue.d[index + v] = out.x[v];
        }
      }
#pragma unroll
      for (int v = 0; v + kRun < kTn; ++v) acc[0][v] = acc[0][v + kRun];
    }
#pragma unroll
    for (int r = 0; r + 1 < kTm; ++r) {
#pragma unroll
      for (int j = 0; j < kTn; ++j) acc[r][j] = acc[r + 1][j];
    }
  }
}

}  // namespace jaxgemm::cuda
