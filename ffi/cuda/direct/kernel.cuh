// The direct kernel: small products in the time of one trip to memory.
//
// The time of a small product is spent before its first multiplication and after its last one. So this kernel
// uses no copy engine, no barrier in its main loop and no stages in shared memory: each warp of a block loads
// its own chunks of K straight into the registers that mma.sync reads, all at once where K is short, and the
// warps' sums are added in order. Operands of any pitch are realigned in registers.
#pragma once

#include "../device/activation.cuh"
#include "../device/divisor.cuh"
#include "../device/epilogue.cuh"
#include "../device/mma.cuh"
#include "../device/pair.cuh"
#include "../device/ptx.cuh"
#include "fragments.cuh"

namespace jaxgemm::cuda::direct {

template <typename In>
constexpr DType kType = std::is_same_v<In, __half> ? DType::kF16 : DType::kBF16;
template <typename In, DType kD>
using TypesOf = Types<kType<In>, kType<In>, kD, DType::kF32>;

// The epilogue for results of the operands' type, or for fp32 results where Params::f32 is set.
template <typename In>
union Result {
  Epilogue<TypesOf<In, kType<In>>> to_in;
  Epilogue<TypesOf<In, DType::kF32>> to_f32;
};

// The members that the first loads need come first: the first access to a cache line of parameters is slow.
template <typename In>
struct Params {
  const In *a, *b;
  int pitch_a, pitch_b;
  int m, n, k;
  int rounds, extra;  // chunks that every warp has, and warps that have one more
  bool batched;
  bool f32;
  Finish finish;
  float alpha;
  Result<In> result;
  Divisor batch_inner;
  int64_t batch_stride_a[2], batch_stride_b[2];
};

template <typename In_, Major kA_, Major kB_, int kTileIndex, bool kAligned, Flow kFlow>
struct Engine {
  using In = In_;
  static constexpr Major kA = kA_, kB = kB_;
  static constexpr TileConfig kTile = kTiles[kTileIndex];
  static constexpr int kM = kTile.m, kN = kTile.n, kRuns = kTile.runs();
  static constexpr bool kPermutedRows = kA == Major::kMN;
  using A = Source<kA, kM, kAligned, kPermutedRows>;
  using B = Source<kB, kN, kAligned, true>;
  static constexpr int kDepth = kFlow.depth;
  static constexpr bool kLoops = kFlow.loops;
  static constexpr int kBlocks = kFlow.blocks(kTile, kAligned, kA, kB);
  static constexpr bool kBiasSoon = !kLoops || (kAligned && kBlocks == 1);
  static constexpr int kPitch = kN + 4;  // between a tile's rows in shared memory, against bank conflicts
  using Sums = float[kM / 16][kN / 8][4];
};

// Sums up a warp's chunks, the first of which are in flight.
template <typename E>
__device__ __forceinline__ void multiply(typename E::Sums& acc, typename E::A& a, typename E::B& b,
                                         typename E::A::Chunk (&chunk_a)[E::kDepth],
                                         typename E::B::Chunk (&chunk_b)[E::kDepth], int chunks) {
#pragma unroll
  for (int i = 0; i < E::kM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < E::kN / 8; ++j) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0.f;
  }
#pragma unroll 1
  do {
#pragma unroll
    for (int at = 0; at < E::kDepth; ++at) {
      if (E::kLoops && at >= chunks) break;
      const int later = E::kLoops ? E::kDepth : E::kDepth - at;
      Fragments<E::kM> x;
      Fragments<E::kN> y;
      a.take(chunk_a[at], later, x);
      b.take(chunk_b[at], later, y);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < E::kM / 16; ++i) {
          const uint32_t rows[4] = {x.v[2 * i][2 * step], x.v[2 * i + 1][2 * step], x.v[2 * i][2 * step + 1],
                                    x.v[2 * i + 1][2 * step + 1]};
#pragma unroll
          for (int j = 0; j < E::kN / 8; ++j) {
            mma_16x8x16<typename E::In>(acc[i][j], rows, y.v[j][2 * step], y.v[j][2 * step + 1]);
          }
        }
      }
      if constexpr (E::kLoops) {
        a.load(chunk_a[at]);
        b.load(chunk_b[at]);
      }
    }
    chunks -= E::kDepth;
  } while (E::kLoops && chunks > 0);
}

// Run i of a lane's sums: the first or the last four of eight neighbours of a row.
template <typename E>
__device__ __forceinline__ float4 run(const typename E::Sums& acc, int i) {
  const auto at = [&](int v) { return acc[i / 4][i % 2 * 2 + v / 2][i / 2 % 2 * 2 + v % 2]; };
  return make_float4(at(0), at(1), at(2), at(3));
}

__device__ __forceinline__ float4 operator+(float4 x, float4 y) {
  return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

// Adds up the warps' values in shared memory, which lie kEach apart, in the order of the warps.
template <int kEach, typename T>
__device__ __forceinline__ T total(const T* from, int warps) {
  T sum = from[0];
#pragma unroll
  for (int warp = 1; warp < kMaxWarps; ++warp) {
    if (warp == kMaxWarps / 2 && warps <= warp) break;
    if (warp < warps) sum = sum + from[warp * kEach];
  }
  return sum;
}

// Stores the results of kPacked and kActivated. A single warp's lanes store their own runs; several warps
// add up their runs through shared memory first. A bias is loaded before the main loop where registers
// allow it.
template <typename E>
class PackedResults {
  using In = typename E::In;

 public:
  // Computes bounds and addresses before the main loop, while its first loads are in flight.
  __device__ __forceinline__ PackedResults(const Params<In>& p, int batch, int row, int col) : p_(p) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    row += line_of<E::kPermutedRows>(0, lane / 4);
    col += lane % 4 * 8;
    rows_ = p.m - row;
    cols_ = p.n - col;
    index_ = int64_t(batch * p.m + row) * p.n + col;
    asm volatile("" : "+r"(rows_), "+r"(cols_), "+l"(index_));
    col_ = col;
    if constexpr (E::kBiasSoon) load_bias();
  }

  __device__ __forceinline__ void store(const typename E::Sums& acc, float4* shared, int warp, int warps) {
    if (p_.finish == Finish::kActivated) [[unlikely]] {
      if constexpr (!E::kBiasSoon) load_bias();
      return store<true>(acc, shared, warp, warps);
    }
    store<false>(acc, shared, warp, warps);
  }

 private:
  template <bool kActivated>
  __device__ __forceinline__ void store(const typename E::Sums& acc, float4* shared, int warp,
                                        int warps) const {
    if (warps == 1) {
#pragma unroll
      for (int i = 0; i < E::kRuns; ++i) store<kActivated>(i, run<E>(acc, i));
      return;
    }
    constexpr int kEach = E::kRuns * 32;
    float4* const mine = shared + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < E::kRuns; ++i) mine[warp * kEach + i * 32] = run<E>(acc, i);
    __syncthreads();
#pragma unroll 1
    for (int i = warp; i < E::kRuns; i += warps) store<kActivated>(i, total<kEach>(mine + i * 32, warps));
  }

  template <bool kActivated>
  __device__ __forceinline__ void store(int i, float4 x) const {
    const int row = line_of<E::kPermutedRows>(i / 2, 0), col = i % 2 * 4;
    if (row >= rows_ || col >= cols_) return;
    const float alpha = p_.alpha;
    float y[4] = {alpha * x.x, alpha * x.y, alpha * x.z, alpha * x.w};
    if constexpr (kActivated) {
      const uint2 bias = i % 2 ? bias_[1] : bias_[0];
      const float2 first = unpack<In>(bias.x), second = unpack<In>(bias.y);
      y[0] += first.x;
      y[1] += first.y;
      y[2] += second.x;
      y[3] += second.y;
      activate_short(p_.result.to_in.activation, y);
    }
    store_global(p_.result.to_in.d + index_ + int64_t(row) * p_.n + col,
                 make_uint2(pack<In>(y[0], y[1]), pack<In>(y[2], y[3])));
  }

  __device__ __forceinline__ void load_bias() {
    if (p_.finish != Finish::kActivated || !p_.result.to_in.bias) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i * 4 < cols_) bias_[i] = __ldg(reinterpret_cast<const uint2*>(p_.result.to_in.bias + col_) + i);
    }
  }

  const Params<In>& p_;
  int col_;          // the lane's first column
  int rows_, cols_;  // rows and columns of D from the lane's first on
  int64_t index_;
  uint2 bias_[2] = {};  // of the columns of the lane's runs
};

// Stores the results of kPlain and kFull. The tile passes through shared memory, so that neighbouring threads
// store neighbouring elements, whatever the alignment of D.
template <typename E>
class Rows {
  using In = typename E::In;
  static constexpr int kPitch = E::kPitch, kEach = E::kM * kPitch;

 public:
  __device__ __forceinline__ Rows(const Params<In>& p, int batch, int row, int col)
      : p_(p), row_(row), col_(col), base_(int64_t(batch) * p.m * p.n) {}

  __device__ __forceinline__ void store(const typename E::Sums& acc, float4* shared, int warp,
                                        int warps) const {
    float* const sums = reinterpret_cast<float*>(shared);
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < E::kRuns; ++i) {
      const int row = line_of<E::kPermutedRows>(i / 2, lane / 4), col = lane % 4 * 8 + i % 2 * 4;
      *reinterpret_cast<float4*>(sums + warp * kEach + row * kPitch + col) = run<E>(acc, i);
    }
    __syncthreads();
    if (p_.finish == Finish::kPlain)
      store_plain(sums, warps);
    else
      store_full(sums, warps);
  }

 private:
  __device__ __forceinline__ void store_plain(const float* sums, int warps) const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < E::kM * E::kN / 4; i += 32 * warps) {
      const int row = i / (E::kN / 4), col = i % (E::kN / 4) * 4, left = p_.n - col_ - col;
      const float4 sum = total<kEach / 4>(reinterpret_cast<const float4*>(sums + row * kPitch + col), warps);
      if (row_ + row >= p_.m) return;
      const float alpha = p_.alpha, x[4] = {alpha * sum.x, alpha * sum.y, alpha * sum.z, alpha * sum.w};
      const int64_t index = base_ + int64_t(row_ + row) * p_.n + col_ + col;
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        if (v >= left) continue;
        if (!p_.f32) [[likely]]
          p_.result.to_in.d[index + v] = convert<In>(x[v]);
        else
          p_.result.to_f32.d[index + v] = x[v];
      }
    }
  }

  __device__ __forceinline__ void store_full(const float* sums, int warps) const {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < E::kM * E::kN; i += 32 * warps) {
      const int row = i / E::kN, col = i % E::kN;
      const float sum = total<kEach>(sums + row * kPitch + col, warps);
      if (row_ + row >= p_.m || col_ + col >= p_.n) continue;
      if (p_.f32)
        p_.result.to_f32.store(base_, row_ + row, col_ + col, sum);
      else
        p_.result.to_in.store(base_, row_ + row, col_ + col, sum);
    }
  }

  const Params<In>& p_;
  int row_, col_;
  int64_t base_;
};

// Along x the grid counts columns of tiles, along y rows of tiles, along z the batch.
template <typename E>
__global__ void __launch_bounds__(kMaxWarps * 32, E::kBlocks)
    direct(const __grid_constant__ Params<typename E::In> p) {
  extern __shared__ float4 shared[];
  const int warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
  const int col = static_cast<int>(blockIdx.x) * E::kN, row = static_cast<int>(blockIdx.y) * E::kM;
  const int batch = static_cast<int>(blockIdx.z);
  const typename E::In *data_a = p.a, *data_b = p.b;
  if (p.batched) {
    const uint32_t outer = p.batch_inner(blockIdx.z), inner = blockIdx.z - outer * p.batch_inner.divisor;
    data_a += outer * p.batch_stride_a[0] + inner * p.batch_stride_a[1];
    data_b += outer * p.batch_stride_b[0] + inner * p.batch_stride_b[1];
  }
  typename E::A a(data_a, p.pitch_a, p.m, p.k, row, warp, warps);
  typename E::B b(data_b, p.pitch_b, p.n, p.k, col, warp, warps);
  typename E::A::Chunk chunk_a[E::kDepth];
  typename E::B::Chunk chunk_b[E::kDepth];
#pragma unroll
  for (int i = 0; i < E::kDepth; ++i) {
    a.load(chunk_a[i]);
    b.load(chunk_b[i]);
  }
  PackedResults<E> packed(p, batch, row, col);
  typename E::Sums acc;
  multiply<E>(acc, a, b, chunk_a, chunk_b, p.rounds + (warp < p.extra));
  if (p.finish > Finish::kActivated) [[unlikely]]
    return Rows<E>(p, batch, row, col).store(acc, shared, warp, warps);
  packed.store(acc, shared, warp, warps);
}

}  // namespace jaxgemm::cuda::direct
