// The simt kernel: D's block tile from a pipeline of shared-memory stages, plain FMA.
//
//   global --cp.async--> shared [k][m], [k][n]  --LDS.128--> fragments --FMA--> accumulators
//                                                            accumulators --shared--> epilogue --> D
//
// One FMA per clock and lane is the ceiling, and every other instruction takes an FMA's place. So: 8 x 8
// outputs per thread, fragments loaded one k ahead of their use, copies that go around the registers, and one
// barrier per stage. The accumulators leave through shared memory: that sums the slices in a fixed order,
// makes the stores contiguous whatever n's alignment, and keeps one copy of the epilogue's code. Only a plain
// product of aligned rows is stored straight from registers.
//
// The rounding error of K terms added one after another grows with K's square root; that of sqrt(K) sums of
// sqrt(K) terms grows with K's fourth root. So K is summed in chunks; see accumulate.
#pragma once

#include "copy.cuh"
#include "home.cuh"
#include "results.cuh"
#include "tile.cuh"
#include "work.cuh"

namespace jaxgemm::cuda::simt {

// Loads a thread's fragment, 16 bytes of shared memory an access.
template <typename T, int N>
__device__ __forceinline__ void load_shared(T (&to)[N], const T* from, int group_stride) {
  constexpr int kVec = 16 / sizeof(T);
  using Wide = std::conditional_t<sizeof(T) == 8, double2, float4>;
#pragma unroll
  for (int i = 0; i < N / kVec; ++i) {
    const Wide w = *reinterpret_cast<const Wide*>(from + i * group_stride);
    to[i * kVec] = w.x;
    to[i * kVec + 1] = w.y;
    if constexpr (kVec == 4) {
      to[i * kVec + 2] = w.z;
      to[i * kVec + 3] = w.w;
    }
  }
}

template <typename Tile>
__device__ __forceinline__ void multiply(typename Tile::Acc (&acc)[Tile::TM][Tile::TN],
                                         const typename Tile::Acc (&a)[Tile::TM],
                                         const typename Tile::Acc (&b)[Tile::TN]) {
  // Back and forth, so that each FMA shares an operand with the one before it.
#pragma unroll
  for (int i = 0; i < Tile::TM; ++i) {
#pragma unroll
    for (int jj = 0; jj < Tile::TN; ++jj) {
      const int j = i % 2 ? Tile::TN - 1 - jj : jj;
      acc[i][j] += a[i] * b[j];
    }
  }
}

// Starts to copy the first kStages - 1 stages. Where BK does not divide K, the first stage is the partial
// one.
template <typename Tile, typename CopyA, typename CopyB>
__device__ __forceinline__ void fill_ring(CopyA& copy_a, CopyB& copy_b, int64_t k, int64_t tiles,
                                          typename Tile::Acc* shared) {
  constexpr int BK = Tile::BK;
#pragma unroll
  for (int s = 0; s < Tile::kStages - 1; ++s) {
    typename Tile::Acc* stage = shared + s * (Tile::kStageA + Tile::kStageB);
    if (s < tiles) {
      if (s == 0 && k % BK != 0) {
        const int valid = static_cast<int>(k % BK);
        copy_a.begin_partial(stage, valid);
        copy_b.begin_partial(stage + Tile::kStageA, valid);
        copy_a.advance(valid);
        copy_b.advance(valid);
      } else {
        copy_a.begin(stage, true);
        copy_b.begin(stage + Tile::kStageA, true);
        copy_a.advance(BK);
        copy_b.advance(BK);
      }
      copy_a.finish(stage);
      copy_b.finish(stage + Tile::kStageA);
    }
    cp_async_commit();
  }
}

// Moves to the next stage: the stage that was read is the next to be written. Afterwards every thread has
// read all of the old one, and the new one is complete.
template <typename Tile, typename CopyA, typename CopyB>
__device__ __forceinline__ void next_stage(CopyA& copy_a, CopyB& copy_b, const typename Tile::Acc*& read,
                                           typename Tile::Acc*& write, typename Tile::Acc* shared) {
  constexpr int kStage = Tile::kStageA + Tile::kStageB;
  copy_a.finish(write);
  copy_b.finish(write + Tile::kStageA);
  write = const_cast<typename Tile::Acc*>(read);
  read = read == shared + (Tile::kStages - 1) * kStage ? shared : read + kStage;
  cp_async_wait<Tile::kStages - 2>();
  __syncthreads();
}

// Sums up k values of K. Every `chunk` stages the sums are added to the sums so far and start again from
// zero, so that a rounding error is that of a short sum.
template <typename Tile, typename CopyA, typename CopyB>
__device__ __forceinline__ void accumulate(typename Tile::Acc (&acc)[Tile::TM][Tile::TN], CopyA& copy_a,
                                           CopyB& copy_b, int64_t k, uint32_t chunk, const Place<Tile>& place,
                                           typename Tile::Acc* shared, HomeOf<Tile>& home) {
  using Acc = typename Tile::Acc;
  constexpr int kStages = Tile::kStages, BK = Tile::BK;
  constexpr int kStage = Tile::kStageA + Tile::kStageB;
  constexpr int kGroupA = Tile::kLanesM * Tile::kVec, kGroupB = Tile::kLanesN * Tile::kVec;
  const int64_t tiles = (k + BK - 1) / BK;

  fill_ring<Tile>(copy_a, copy_b, k, tiles, shared);
  cp_async_wait<kStages - 2>();
  __syncthreads();

  const int offset_a = place.slice * Tile::kSliceK * Tile::kPitchA + place.row;
  const int offset_b = Tile::kStageA + place.slice * Tile::kSliceK * Tile::kPitchB + place.col;
  const Acc* read = shared;
  Acc* write = shared + (kStages - 1) * kStage;
  Acc a[2][Tile::TM], b[2][Tile::TN];
  load_shared(a[0], read + offset_a, kGroupA);
  load_shared(b[0], read + offset_b, kGroupB);

  uint32_t left = static_cast<uint32_t>(tiles);
  bool first = true;
#pragma unroll 1
  while (true) {
    const uint32_t stop = left > chunk ? left - chunk : 0;
#pragma unroll 1
    for (; left > stop; --left) {
      const bool more = left >= kStages;
#pragma unroll
      for (int kk = 0; kk < Tile::kSliceK; ++kk) {
        constexpr int kLast = Tile::kSliceK - 1;
        if (kk == kLast) {
          next_stage<Tile>(copy_a, copy_b, read, write, shared);
        }
        const int next = kk == kLast ? 0 : kk + 1;
        load_shared(a[(kk + 1) % 2], read + offset_a + next * Tile::kPitchA, kGroupA);
        load_shared(b[(kk + 1) % 2], read + offset_b + next * Tile::kPitchB, kGroupB);
        // The copies of one operand stay together: after a shared load, the first asynchronous copy pays a
        // few issue slots for the hazard between the two.
        if (kk == 0) copy_a.begin(write, more);
        if (kk == kLast / 2) {
          copy_b.begin(write + Tile::kStageA, more);
          cp_async_commit();
          copy_a.advance(BK);
        }
        if (kk == kLast) copy_b.advance(BK);
        multiply<Tile>(acc, a[kk % 2], b[kk % 2]);
      }
    }
    if constexpr (Tile::kHome == Home::kNone) break;
    if (!first) home.add_to(acc);
    if (left == 0) break;
    home.take(acc);
    first = false;
  }
  cp_async_wait<0>();
  __syncthreads();
}

// Adds up the slices' sums of the block tile in shared memory, V columns at a time, and stores them in
// `partial` if there is one, else finishes D.
template <int V, typename Kind, typename Tile>
__device__ __forceinline__ void store_tile(const Params<Kind>& p, const typename Tile::Acc* sums,
                                           const OutputTile<typename Tile::Acc>& output) {
  using Wide = Vector<typename Tile::Acc, V>;
  const auto [batch, row0, col0, partial] = output;
  constexpr int kAcross = Tile::BN / V;
#pragma unroll 1
  for (int at = threadIdx.x; at < Tile::BM * kAcross; at += Tile::kThreads) {
    const int r = at / kAcross, c = at % kAcross * V;
    const int64_t row = row0 + r, col = col0 + c;
    if (row >= p.m || col >= p.n) continue;
    const auto* from = sums + r * Tile::kPitchD + c;
    Wide sum = *reinterpret_cast<const Wide*>(from);
#pragma unroll
    for (int s = 1; s < Tile::kSlices; ++s) {
      const Wide more = *reinterpret_cast<const Wide*>(from + s * Tile::kSliceD);
#pragma unroll
      for (int v = 0; v < V; ++v) sum.x[v] += more.x[v];
    }
    if (partial)
      *reinterpret_cast<Wide*>(partial + r * Tile::BN + c) = sum;
    else
      finish<Kind::kWidths>(p.results, sum, (batch * p.m + row) * p.n + col, col);
  }
}

template <typename Kind, typename Tile>
__device__ __forceinline__ void store_plain(const Params<Kind>& p,
                                            const typename Tile::Acc (&acc)[Tile::TM][Tile::TN],
                                            int64_t batch, int64_t row0, int64_t col0) {
  using Acc = typename Kind::Acc;
  constexpr int kVec = Tile::kVec;
#pragma unroll
  for (int i = 0; i < Tile::TM; ++i) {
    const int64_t row = row0 + (i / kVec * Tile::kLanesM * kVec + i % kVec);
    if (row >= p.m) continue;
    const int64_t to = (batch * p.m + row) * p.n + col0;
#pragma unroll
    for (int j = 0; j < Tile::TN; j += kVec) {
      Vector<Acc, kVec> out;
#pragma unroll
      for (int v = 0; v < kVec; ++v) out.x[v] = p.results.alpha * acc[i][j + v];
      if (col0 + j * Tile::kLanesN < p.n) write<Kind::kWidths>(p.results, to + j * Tile::kLanesN, out);
    }
  }
}

// Computes one tile's sums over the values of K from k0 to k_end, and stores them in `partial` if there is
// one, else finishes D.
template <typename Kind, typename Tile, Load LoadA, Load LoadB>
__device__ __forceinline__ void multiply_tile(const Params<Kind>& p, const Place<Tile>& place,
                                              typename Tile::Acc* shared, int64_t index, int64_t k0,
                                              int64_t k_end, typename Tile::Acc* partial) {
  using Acc = typename Tile::Acc;
  using Element = typename Kind::Element;
  using CopyA = Copy<Element, LoadA, Tile::BM, Tile::BK, Tile::kPitchA, Tile::kThreads>;
  using CopyB = Copy<Element, LoadB, Tile::BN, Tile::BK, Tile::kPitchB, Tile::kThreads>;
  __shared__ OutputTile<Acc> output;
  const TileIndex tile(index, p.tiles_m, p.tiles_n);
  const int64_t row0 = int64_t(tile.m) * Tile::BM, col0 = int64_t(tile.n) * Tile::BN;
  if (threadIdx.x == 0) output = {tile.batch, row0, col0, partial};

  // One division serves both operands; the usual single batch level takes none.
  const int64_t outer = p.inner == p.batch ? 0 : tile.batch / p.inner, inner = tile.batch - outer * p.inner;
  const auto* a = p.a.data + outer * p.a.batch_stride[0] + inner * p.a.batch_stride[1];
  const auto* b = p.b.data + outer * p.b.batch_stride[0] + inner * p.b.batch_stride[1];
  Acc acc[Tile::TM][Tile::TN] = {};
  HomeOf<Tile> home(shared);
  if constexpr (LoadA == Load::kConvert) {
    CopyA copy_a(a, p.a.transposed ? 1 : p.a.ld, p.a.transposed ? p.a.ld : 1, row0, p.m, k0, p.bf16);
    CopyB copy_b(b, p.b.transposed ? p.b.ld : 1, p.b.transposed ? 1 : p.b.ld, col0, p.n, k0, p.bf16);
    accumulate<Tile>(acc, copy_a, copy_b, k_end - k0, p.chunk, place, shared, home);
  } else {
    CopyA copy_a(a, p.a.ld, row0, p.m, k0);
    CopyB copy_b(b, p.b.ld, col0, p.n, k0);
    accumulate<Tile>(acc, copy_a, copy_b, k_end - k0, p.chunk, place, shared, home);
  }

  if constexpr (Tile::kSlices == 1) {
    // The plain product of aligned rows goes straight to D: with a short K the way through shared memory
    // would show.
    if (p.plain && !output.partial) {
      store_plain<Kind, Tile>(p, acc, output.batch, output.row0 + place.row, output.col0 + place.col);
      __syncthreads();
      return;
    }
  }
  // accumulate has waited for every copy and every reader of the stages.
  Acc* const mine = shared + place.slice * Tile::kSliceD + place.row * Tile::kPitchD + place.col;
#pragma unroll
  for (int i = 0; i < Tile::TM; ++i) {
    Acc* const at = mine + (i / Tile::kVec * Tile::kLanesM * Tile::kVec + i % Tile::kVec) * Tile::kPitchD;
#pragma unroll
    for (int j = 0; j < Tile::TN; j += Tile::kVec) {
      Acc* const to = at + j * Tile::kLanesN;
      if constexpr (Tile::kVec == 4) {
        *reinterpret_cast<float4*>(to) = make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]);
      } else {
        *reinterpret_cast<double2*>(to) = make_double2(acc[i][j], acc[i][j + 1]);
      }
    }
  }
  __syncthreads();
  if (p.wide)
    store_tile<Tile::kVec, Kind, Tile>(p, shared, output);
  else
    store_tile<1, Kind, Tile>(p, shared, output);
  __syncthreads();
}

template <typename Kind, typename Tile, Load LoadA, Load LoadB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kMinBlocks)
    simt_gemm(const __grid_constant__ Params<Kind> p) {
  using Acc = typename Tile::Acc;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Acc* const shared = reinterpret_cast<Acc*>(shared_bytes);
  const Place<Tile> place(threadIdx.x);

  const int64_t work = p.whole + p.ranges;
#pragma unroll 1
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    // A work item is a whole tile, or a range: parts of two tiles at most, and whole tiles between them.
    int64_t index = w, first = 0, left = p.tile_stages;
    const int64_t range = w - p.whole;
    if (range >= 0) {
      const Cuts cuts(p);
      const int64_t begin = cuts.begin(range);
      left = cuts.begin(range + 1) - begin;
      index = begin / p.tile_stages;
      first = begin - index * p.tile_stages;
      index += p.whole;
    }
#pragma unroll 1
    do {
      const int64_t last = left < p.tile_stages - first ? first + left : p.tile_stages;
      const bool part = last - first < p.tile_stages;
      multiply_tile<Kind, Tile, LoadA, LoadB>(
          p, place, shared, index, first * Tile::BK, last * Tile::BK < p.k ? last * Tile::BK : p.k,
          part ? p.partial + Cuts::slot(range, index - p.whole) * (Tile::BM * Tile::BN) : nullptr);
      left -= last - first;
      first = 0;
      ++index;
    } while (left > 0);
  }
}

}  // namespace jaxgemm::cuda::simt
