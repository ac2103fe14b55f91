// From accumulators to D, one warp at a time.
//
// A warp finishes its results in registers, a strip at a time: 16 rows of kCols columns, 8 to 32 values a
// lane. Few warps run, so what counts is the number of instructions and how many are independent: all values
// of a strip go through each step together. Where a step takes much code, one loop over the strips holds the
// only copy of it, and a strip's values are moved to the loop's registers, since registers cannot be indexed.
//
// StorePath (output.h) says how results leave. By the copy engine: through shared memory, and it clips what
// lies outside of D; C comes the same way (addend.cuh). In unaligned rows: through shared memory too
// (unaligned/result_rows.cuh). fp32 without an epilogue: straight to memory, where 4 lanes fill a sector.
// Everything else: one element at a time (elements.cuh).
#pragma once

#include "../device/activation.cuh"
#include "addend.cuh"
#include "bias.cuh"
#include "bytes/tile_scales.cuh"
#include "elements.cuh"
#include "engine.cuh"
#include "extents.cuh"
#include "fill.cuh"
#include "planes/scales.cuh"
#include "staged.cuh"
#include "unaligned/result_rows.cuh"

namespace jaxgemm::cuda::sm90 {

// Stands for C where there is none.
struct NoAddend {
  template <typename P>
  __device__ NoAddend(const P&, uint32_t, uint32_t) {}
};

template <typename E>
class EpilogueWarp : Extents<E> {
  using Base = Extents<E>;
  using Base::cols_left, Base::out_, Base::outside, Base::rows_left, Base::swapped;
  static constexpr int kCols = E::kStripColumns;
  static constexpr int kAcross = E::kStrips, kWholeAcross = E::kWholeStrips;  // strips side by side in a tile
  static constexpr int kValues = kCols / 2;  // of a lane in a strip, in the order of the accumulators
  static constexpr int kBufferBytes = E::kStagingBufferBytes;
  static constexpr int kBuffers = E::kBuffers;
  static_assert(16 * kCols * 2 <= kBufferBytes);
  static constexpr int kRowStrips =
      kAcross < 2 ? 1 : 2;  // strips that are written to unaligned rows together
  using Rows = RowWriter<kCols, kRowStrips, E::kTurned>;
  // Whether StorePath::kByWarp has code apart from kByWarpFinished. Three consumers, or 160 accumulators,
  // leave no registers for it.
  static constexpr bool kHasPlainRows = E::kConsumers < 3 && E::kTile.accumulators() < 160;
  // Many products have no epilogue.
  static constexpr bool kFinishes = !E::kMany;
  static constexpr bool kScales = E::kElementBytes == 1;
  static_assert(kHasPlainRows || kFinishes);

 public:
  // Consumer `warp` of the block.
  __device__ EpilogueWarp(const typename E::Results& params, const SharedLayout<E>& shared, int warp)
      : Base(params.out),
        p_(params),
        staging_(shared.staging + warp * E::kStagingBytes),
        lane_(static_cast<int>(threadIdx.x % 32)),
        addend_(params, staging_, shared.addend + 8 * kBuffers * warp) {}

  // Loads the tile's bias. To be called before the main loop.
  __device__ __forceinline__ void prefetch(const Strip& first) {
    if (kFinishes && !E::kPlanes && E::kGated == Axis::kNone && out_.path < StorePath::kFp32)
      bias_.load(out_, first, lane_);
    if constexpr (kScales) scales_.load(out_, first, lane_);
  }

  // Asks for C of the first strips. To be called when products are under way, as it may have to wait until
  // the tile before has left the buffers.
  __device__ __forceinline__ void fetch(const Strip& first) {
    if constexpr (E::kHasAddend) {
      if (!brings_addend<E>(p_)) return;
      if (lane_ == 0) {
        tma_store_wait_read<0>();
        for (int i = 0; i < kBuffers; ++i) fetch_strip(first, i);
      }
      __syncwarp();
    }
  }

  __device__ __forceinline__ void store(const Accumulators<E>& acc, const Strip& first) {
    // What follows from the lane is computed from here on. Before a block's first product it would hold that
    // up: when a kernel starts its instructions are not cached.
    if constexpr (E::kStartsSoon) asm volatile("" : "+r"(lane_));
    if constexpr (E::kIntegers) {
      if (!out_.scaled) return store_elements<true>(acc, first);
    }
    if constexpr (E::kPlanes)
      store_elements(acc, first);
    else if constexpr (E::kGated != Axis::kNone)
      store_gated(acc, first);
    else if (out_.path >= StorePath::kFp32)
      store_elements(acc, first);
    else if (swapped())
      store<true>(acc, first);
    else
      store<false>(acc, first);
  }

  // Where the tile before may have left in another way: the buffers' turns begin anew.
  __device__ __forceinline__ void store_after_another(const Accumulators<E>& acc, const Strip& first) {
    drain();
    __syncwarp();
    store(acc, first);
  }

  // Waits for the copies that still read the buffers. To be called before the block ends.
  __device__ void drain() const {
    if (lane_ == 0) tma_store_wait_read<0>();
  }

 private:
  template <bool kSwap>
  __device__ __forceinline__ void store(const Accumulators<E>& acc, const Strip& first) {
    if (out_.path == StorePath::kTma)
      store_tma<kSwap>(acc, first);
    else if (kHasPlainRows && (!kFinishes || out_.path == StorePath::kByWarp))
      store_plain_rows<kSwap>(acc, first);
    else if constexpr (kFinishes)
      store_finished<kSwap>(acc, first);
  }

  __device__ __forceinline__ Strip strip_at(const Strip& first, int i) const {
    return {first.row + i / kAcross * 64,
            first.col + strip_column<E>(i % kAcross),
            first.split,
            first.batch,
            first.end,
            first.group};
  }
  // StorePath::kTma. It takes little code, which is repeated for every strip, so that no registers are moved.
  template <bool kTransposed>
  __device__ __forceinline__ void store_tma(const Accumulators<E>& acc, const Strip& first) {
    const int rows = Base::template rows_of<kTransposed>(first) - static_cast<int>(first.row);
    const int cols = static_cast<int>(Base::template cols_of<kTransposed>(first) - first.col);
    uint32_t staged = staging_ + staged_matrix<kTransposed, kCols, E::kTurned>(0, lane_);
    asm volatile("" : "+r"(staged));  // computed here, not for every strip
#pragma unroll
    for (int i = 0; i < E::kBlocksM * kAcross; ++i) {
      if (i / kAcross * 64 >= rows || strip_column<E>(i % kAcross) >= cols) continue;
      float x[kValues];
      const auto scales = scales_of(strip_at(first, i), i);
#pragma unroll
      for (int e = 0; e < kValues; ++e)
        x[e] = scales(e, as_fp32(acc.value[i / kAcross][first_value<E>(i % kAcross) + e]));
      // Buffers take turns. Where strips have been left out the turns are broken, so wait for all of them.
      if (lane_ == 0) {
        if (i == 0 || (i % kAcross == 0 && cols <= strip_column<E>(kAcross - 1)))
          tma_store_wait_read<0>();
        else
          tma_store_wait_read<kBuffers - 1>();
      }
      __syncwarp();
      const int buffer = i % kBuffers * kBufferBytes;
      fill<E, kTransposed>(out_, staged, buffer, x, lane_);
      copy<kTransposed>(staging_ + buffer, strip_at(first, i));
    }
  }
  // StorePath::kFp32 and kElements. kBits: integers, times alpha; they pass through as their bits, as alpha
  // does.
  template <bool kBits = false>
  __device__ __forceinline__ void store_elements(const Accumulators<E>& acc, const Strip& first) {
    const Elements<E> elements(out_, staging_, lane_);
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kAcross; ++i) {
      const Strip strip = strip_at(first, i);
      const int rows = rows_left(strip), cols = cols_left(strip);
      if (rows <= 0 || cols <= 0) continue;
      float x[kValues];
      if constexpr (kBits) {
        const int32_t alpha = __float_as_int(out_.alpha);
        for_strip(acc, i, [&](int e, float bits) { x[e] = __int_as_float(alpha * __float_as_int(bits)); });
      } else {
        for_results(acc, strip, i, [&](int e, float value) { x[e] = value; });
      }
      if constexpr (E::kScaled) unscale(x, p_, strip, lane_);
      if (out_.path != StorePath::kFp32)
        elements.template write<!kBits>(x, strip, rows, cols);
      else if (swapped())
        elements.template write_own<true, float>(x, strip, rows, cols);
      else
        elements.template write_own<false, float>(x, strip, rows, cols);
    }
  }

  // StorePath::kByWarp, apart from kByWarpFinished so that its code lies together.
  template <bool kSwap>
  __device__ __forceinline__ void store_plain_rows(const Accumulators<E>& acc, const Strip& first) {
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kAcross; ++i) {
      const Strip strip = strip_at(first, i);
      if (outside(strip)) continue;
      float x[kValues];
      for_results(acc, strip, i, [&](int e, float value) { x[e] = out_.alpha * value; });
      put_rows<kSwap>(x, strip, i % kAcross);
    }
  }

  // StorePath::kTmaFinished and kByWarpFinished, and kByWarp where that has no code of its own
  // (kHasPlainRows).
  template <bool kSwap>
  __device__ __forceinline__ void store_finished(const Accumulators<E>& acc, const Strip& first) {
    // A copy: indexing the member at run time would put *this into local memory.
    const TileBias<E> tile_bias = bias_;
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kAcross; ++i) {
      const Strip strip = strip_at(first, i);
      const bool adds = brings_addend<E>(p_);
      if constexpr (E::kHasAddend) {
        if (i > 0 && adds && lane_ == 0) {
          tma_store_wait_read<0>();  // C of strip i + 1 goes into the buffer that strip i - 1 left from
          fetch_strip(first, i + 1);
        }
      }
      if (outside(strip)) continue;
      const auto bias = tile_bias.template of_strip<kSwap>(out_, i, lane_);
      float x[kValues];
      for_results(acc, strip, i, [&](int e, float value) { x[e] = fmaf(out_.alpha, value, bias.of(e)); });
      if constexpr (E::kHasAddend) {
        if (adds) {
          buffer_ = i % kBuffers;
          addend_.template add<kSwap>(x, buffer_, lane_);
        }
      }
      activate_short(out_.activation, x);
      put<kSwap>(x, strip, i % kAcross);
    }
  }
  __device__ __forceinline__ void fetch_strip(const Strip& first, int i) const {
    if (i >= E::kBlocksM * kAcross) return;
    const Strip strip = strip_at(first, i);
    if (!outside(strip)) addend_.load(strip, i % kBuffers);
  }

  __device__ __forceinline__ void store_gated(const Accumulators<E>& acc, const Strip& first) {
    // kTileAcross: strips of accumulators side by side in a tile. kToUp: from a strip of the first weight to
    // the same results' of the second.
    constexpr int kTileAcross = E::kTileN / E::kResultN * kAcross;
    constexpr int kToUp = E::kGated == Axis::kRows ? E::kResultBlocksM * kTileAcross : kAcross;
#pragma unroll 1
    for (int i = 0; i < E::kResultBlocksM * kAcross; ++i) {
      const int gate = i / kAcross * kTileAcross + i % kAcross;
      const Strip strip = strip_at(first, i);
      if (outside(strip)) continue;
      float x[kValues];
      for_strip(acc, gate, [&](int e, float value) { x[e] = value; });
      activate_any(out_.activation, x);
      for_strip(acc, gate + kToUp, [&](int e, float value) { x[e] *= value; });
      if (out_.path == StorePath::kElements)
        Elements<E>(out_, staging_, lane_)
            .template write<false>(x, strip, rows_left(strip), cols_left(strip));
      else if (swapped())
        put<true>(x, strip, i % kAcross);
      else
        put<false>(x, strip, i % kAcross);
    }
  }

  // Stores a strip to aligned or unaligned rows. `across`: its number in its row of strips.
  template <bool kSwap>
  __device__ __forceinline__ void put(const float (&x)[kValues], const Strip& strip, int across) {
    if (by_copy_engine(out_.path)) {
      store_copy<kSwap>(x, strip);
    } else {
      put_rows<kSwap>(x, strip, across);
    }
  }
  template <bool kSwap>
  __device__ __forceinline__ void put_rows(const float (&x)[kValues], const Strip& strip, int across) const {
    if constexpr (kSwap)
      with_narrow<E>(out_, [&]<typename T>() {
        Elements<E>(out_, staging_, lane_)
            .template write_own<true, T>(x, strip, rows_left(strip), cols_left(strip));
      });
    else
      store_rows(x, strip, across);
  }

  // What turns a sum of a strip, as for_strip() has it, into a number: its scales, where operands have 8
  // bits.
  __device__ __forceinline__ auto scales_of(const Strip& s, int strip) const {
    if constexpr (kScales)
      return [scales = scales_.of(out_, s, strip, lane_)](int e, float sum) {
        return scales(e) * (E::kIntegers ? static_cast<float>(__float_as_int(sum)) : sum);
      };
    else
      return [](int, float value) { return value; };
  }
  // As for_strip(), with numbers. These are made of a strip's sums once it is found, so that no other's are
  // converted.
  template <typename F>
  __device__ __forceinline__ void for_results(const Accumulators<E>& acc, const Strip& s, int strip,
                                              F&& f) const {
    if constexpr (kScales) {
      const auto scales = scales_of(s, strip);
      float sums[kValues];
      for_strip(acc, strip, [&](int e, float sum) { sums[e] = sum; });
#pragma unroll
      for (int e = 0; e < kValues; ++e) f(e, scales(e, sums[e]));
    } else {
      for_strip(acc, strip, f);
    }
  }

  // Calls f with each accumulator of a strip, whose number counts along the tile's whole width.
  template <typename F>
  static __device__ __forceinline__ void for_strip(const Accumulators<E>& acc, int strip, F&& f) {
    constexpr int kTileAcross = E::kTileN / E::kResultN * kAcross;
#pragma unroll
    for (int i = 0; i < E::kBlocksM * kTileAcross; ++i) {
      if (i != strip) continue;
#pragma unroll
      for (int e = 0; e < kValues; ++e)
        f(e, as_fp32(acc.value[i / kTileAcross][first_value<E>(i % kTileAcross) + e]));
    }
  }

  template <bool kTransposed>
  __device__ __forceinline__ void store_copy(const float (&x)[kValues], const Strip& s) {
    const uint32_t buffer = buffer_ * kBufferBytes;
    buffer_ = (buffer_ + 1) % kBuffers;
    if (lane_ == 0) tma_store_wait_read<kBuffers - 1>();
    __syncwarp();
    fill<E, kTransposed>(out_, staging_ + staged_matrix<kTransposed, kCols, E::kTurned>(0, lane_), buffer, x,
                         lane_);
    copy<kTransposed>(staging_ + buffer, s);
  }
  template <bool kTransposed>
  __device__ __forceinline__ void copy(uint32_t buffer, const Strip& s) const {
    if constexpr (E::kTokens == Axis::kRows || E::kTokens == Axis::kColumns) {
      if (cut<kTransposed>(s)) return copy_cut<kTransposed>(buffer, s);
    }
    fence_shared_to_async();
    __syncwarp();
    if (lane_ == 0) {
      const int row = static_cast<int>(s.row), col = static_cast<int>(s.col);
      // A result for each group takes long to write, in which L2 is to keep what is multiplied.
      const auto store = E::kTokens == Axis::kK ? tma_store_streamed : tma_store;
      store(d_map<E>(p_, s.batch), buffer, kTransposed ? row : col, kTransposed ? col : row, s.batch);
      tma_store_commit();
    }
  }

  // Whether the group's tokens end within a strip. What follows in D is another group's.
  template <bool kTransposed>
  __device__ __forceinline__ bool cut(const Strip& s) const {
    return kTransposed ? cols_left(s) < kCols : rows_left(s) < 16;
  }
  // Stores such a strip from its buffer, a vector of 8 results at a time. The copy engine counts a commit of
  // no stores too, so that buffers keep taking turns.
  template <bool kTransposed>
  __device__ __forceinline__ void copy_cut(uint32_t buffer, const Strip& s) const {
    constexpr int kAcrossD = kTransposed ? 16 : kCols, kVectors = kAcrossD / 8;  // of a staged row
    constexpr int kStaged = kTransposed ? kCols : 16;
    const int rows = kTransposed ? cols_left(s) : rows_left(s);
    const int cols = static_cast<int>(out_.cols - (kTransposed ? s.row : s.col));
    const int64_t row = kTransposed ? s.col : s.row, col = kTransposed ? s.row : s.col;
    uint16_t* const d = static_cast<uint16_t*>(out_.d) + s.batch * out_.batch_stride + row * out_.pitch + col;
    __syncwarp();
#pragma unroll
    for (int i = lane_; i < kStaged * kVectors; i += 32) {
      const int line = i / kVectors, unit = i % kVectors;
      const uint4 v = load_shared(buffer + swizzled<kAcrossD>(line, 16 * unit));
      store_global_if(line < rows && 8 * unit < cols, d + line * out_.pitch + 8 * unit, v);
    }
    if (lane_ == 0) tma_store_commit();
  }

  // Where a strip begins in a D of 16-bit elements.
  __device__ __forceinline__ uint16_t* row_major(const Strip& s) const {
    return static_cast<uint16_t*>(out_.d) + s.batch * out_.batch_stride + s.row * out_.pitch + s.col;
  }
  // Stages a strip for unaligned rows, and writes when kRowStrips strips are staged, or no other follows.
  __device__ __forceinline__ void store_rows(const float (&x)[kValues], const Strip& s, int across) const {
    Rows rows(out_.pitch, staging_);  // built anew each time, as there are no registers to keep it
    const int staged = across < kWholeAcross ? across % kRowStrips : 0;
    if (staged == 0) __syncwarp();
    rows.fill(staged, x, [&](float lo, float hi) { return pack_narrow<E>(out_, lo, hi); });
    if (staged + 1 < kRowStrips && across + 1 < kWholeAcross && s.col + kCols < out_.cols) return;
    __syncwarp();
    uint16_t* const d = row_major(s) - staged * kCols;
    rows.start(d, staged * kCols + cols_left(s));
    rows.write(d, rows_left(s));
  }

  const typename E::Results& p_;
  uint32_t staging_;
  int lane_;
  int buffer_ = 0;
  TileBias<E> bias_;
  using Scales = std::conditional_t<E::kTurned, StripScales<E>, TileScales<E>>;
  std::conditional_t<kScales, Scales, NoScales> scales_;
  std::conditional_t<E::kHasAddend, Addend<E>, NoAddend> addend_;
};

}  // namespace jaxgemm::cuda::sm90
