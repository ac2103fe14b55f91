// From accumulators to D, one warp at a time.
//
// Values are finished where they are, in registers, in strips of 16 rows x kCols. Few warps run, so what
// counts is the number of instructions and how many are independent: a strip's 8 to 32 values a lane go
// through every step together. Where a step takes much code, one loop over the strips holds the only copy of
// it; a strip's registers are moved to the loop's, since registers cannot be indexed.
//
// Aligned 16-bit results go through shared memory to the copy engine, which clips ragged edges, and C comes
// the same way (addend.cuh). Unaligned ones go through shared memory too, and are written along D's rows.
// fp32 results without an epilogue go straight to memory: 4 lanes fill a sector. What is neither goes one
// element at a time (elements.cuh).
#pragma once

#include "../device/activation.cuh"
#include "addend.cuh"
#include "bias.cuh"
#include "eighths.cuh"
#include "elements.cuh"
#include "engine.cuh"
#include "rows.cuh"
#include "staged.cuh"

namespace jaxgemm::cuda::sm90 {

template <typename E>
class EpilogueWarp {
  using In = typename E::In;
  static constexpr int kCols = E::kStripColumns;
  static constexpr int kStrips = E::kStrips, kWhole = E::kWholeStrips;  // side by side in a tile
  static constexpr int kValues = kCols / 2;  // of a lane in a strip, in the order of the accumulators
  static constexpr int kBufferBytes = E::kStagingBufferBytes;
  static constexpr int kBuffers = kStagingBuffers;
  static_assert(16 * kCols * 2 <= kBufferBytes);
  static constexpr int kTogether = kStrips < 2 ? 1 : 2;  // strips of unaligned rows that do not overlap
  using Rows = RowWriter<kCols, kTogether>;
  // Whether there is code for rows without an epilogue alone: three consumers, and the most accumulators,
  // leave no registers for it.
  static constexpr bool kAlone = E::kConsumers < 3 && E::kTile.accumulators() < 160;

 public:
  // Consumer `warp` of the block.
  __device__ EpilogueWarp(const Params& params, const SharedLayout<E>& shared, int warp)
      : p_(params),
        out_(params.out),
        staging_(shared.staging + warp * E::kStagingBytes),
        lane_(static_cast<int>(threadIdx.x % 32)),
        addend_(params, staging_, shared.addend + 8 * kBuffers * warp) {}

  // What a tile needs from memory before its first strip can be finished, to be called before the main loop.
  __device__ __forceinline__ void prefetch(const Strip& first) {
    if (E::kGated == Gated::kNo && out_.way < Way::kFloats) bias_.load(out_, first, lane_);
  }

  // Asks for what the first strips need from memory into shared memory, to be called when products are under
  // way, as it may have to wait for the tile before.
  __device__ __forceinline__ void fetch(const Strip& first) {
    if (out_.c && out_.way == Way::kActivated) {
      if (lane_ == 0) {
        tma_store_wait_read<0>();
        for (int i = 0; i < kBuffers; ++i) fetch_strip(first, i);
      }
      __syncwarp();
    }
  }

  __device__ __forceinline__ void store(const Accumulators<E>& acc, const Strip& first) {
    if constexpr (E::kGated != Gated::kNo)
      store_gated(acc, first);
    else if (out_.way >= Way::kFloats)
      store_elements(acc, first);
    else if (out_.swap)
      store<true>(acc, first);
    else
      store<false>(acc, first);
  }

  // Buffers must outlive the copies that read them.
  __device__ void drain() const {
    if (lane_ == 0) tma_store_wait_read<0>();
  }

 private:
  template <bool kSwap>
  __device__ __forceinline__ void store(const Accumulators<E>& acc, const Strip& first) {
    if (out_.way == Way::kPlain)
      store_plain<kSwap>(acc, first);
    else if (kAlone && out_.way == Way::kRows)
      store_alone<kSwap>(acc, first);
    else
      store_strips<kSwap>(acc, first);
  }

  __device__ __forceinline__ Strip strip_at(const Strip& first, int i) const {
    return {first.row + i / kStrips * 64, first.col + strip_column<E>(i % kStrips), first.split, first.batch};
  }
  __device__ __forceinline__ bool outside(const Strip& s) const {
    return rows_left(s) <= 0 || cols_left(s) <= 0;
  }

  // Vectors that take little code to finish: one for every strip spares them moves, and what is the same for
  // all. `finished` puts a strip's values, by its number, where it is told.
  template <bool kTransposed, typename F>
  __device__ __forceinline__ void store_vectors(const Strip& first, F&& finished) {
    const int rows = rows_of<kTransposed>(first) - static_cast<int>(first.row);
    const int cols = static_cast<int>((kTransposed ? out_.rows : out_.cols) - first.col);
    uint32_t staged = staging_ + staged_matrix<kTransposed, kCols>(0, lane_);
    asm volatile("" : "+r"(staged));  // computed here, not for every strip
#pragma unroll
    for (int i = 0; i < E::kBlocksM * kStrips; ++i) {
      if (i / kStrips * 64 >= rows || strip_column<E>(i % kStrips) >= cols) continue;
      float x[kValues];
      finished(x, i);
      // Buffers take turns, unless strips have been left out.
      if (lane_ == 0) {
        if (i == 0 || (i % kStrips == 0 && cols <= strip_column<E>(kStrips - 1)))
          tma_store_wait_read<0>();
        else
          tma_store_wait_read<kBuffers - 1>();
      }
      __syncwarp();
      const int buffer = i % kBuffers * kBufferBytes;
      fill<kTransposed>(staged, buffer, x);
      copy<kTransposed>(staging_ + buffer, strip_at(first, i));
    }
  }
  static __device__ __forceinline__ float value_of(const Accumulators<E>& acc, int strip, int e) {
    return acc.value[strip / kStrips][first_value<E>(strip % kStrips) + e];
  }
  template <bool kSwap>
  __device__ __forceinline__ void store_plain(const Accumulators<E>& acc, const Strip& first) {
    store_vectors<kSwap>(first, [&](float (&x)[kValues], int i) {
#pragma unroll
      for (int e = 0; e < kValues; ++e) x[e] = value_of(acc, i, e);
    });
  }
  // fp32 results, and all that no other way is for.
  __device__ __forceinline__ void store_elements(const Accumulators<E>& acc, const Strip& first) {
    const Elements<E> elements(out_, staging_, lane_);
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kStrips; ++i) {
      const Strip strip = strip_at(first, i);
      const int rows = rows_left(strip), cols = cols_left(strip);
      if (rows <= 0 || cols <= 0) continue;
      float x[kValues];
      for_strip(acc, i, [&](int e, float value) { x[e] = value; });
      if (out_.way != Way::kFloats)
        elements.template write<true>(x, strip, rows, cols);
      else if (out_.swap)
        elements.template write_own<true, float>(x, strip, rows, cols);
      else
        elements.template write_own<false, float>(x, strip, rows, cols);
    }
  }

  // Rows that begin anywhere, without an epilogue: a copy of the code that writes them which steps over
  // nothing.
  template <bool kSwap>
  __device__ __forceinline__ void store_alone(const Accumulators<E>& acc, const Strip& first) {
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kStrips; ++i) {
      const Strip strip = strip_at(first, i);
      if (outside(strip)) continue;
      float x[kValues];
      for_strip(acc, i, [&](int e, float value) { x[e] = out_.alpha * value; });
      put_rows<kSwap>(x, strip, i % kStrips);
    }
  }

  // The other ways.
  template <bool kSwap>
  __device__ __forceinline__ void store_strips(const Accumulators<E>& acc, const Strip& first) {
    const TileBias<E> tile_bias =
        bias_;  // a strip's place in it is not known: *this would have to be in memory
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kStrips; ++i) {
      const Strip strip = strip_at(first, i);
      const bool adds = out_.c && out_.way == Way::kActivated;
      if (i > 0 && adds && lane_ == 0) {
        tma_store_wait_read<0>();
        fetch_strip(first, i + 1);
      }
      if (outside(strip)) continue;
      const auto bias = tile_bias.template of_strip<kSwap>(out_, i, lane_);
      float x[kValues];
      for_strip(acc, i, [&](int e, float value) { x[e] = fmaf(out_.alpha, value, bias.of(e)); });
      if (adds) {
        buffer_ = i % kBuffers;
        addend_.template add<kSwap>(x, buffer_, lane_);
      }
      activate_usual(out_.activation, x);
      put<kSwap>(x, strip, i % kStrips);
    }
  }
  __device__ __forceinline__ void fetch_strip(const Strip& first, int i) const {
    if (i >= E::kBlocksM * kStrips) return;
    const Strip strip = strip_at(first, i);
    if (!outside(strip)) addend_.load(strip, i % kBuffers);
  }

  __device__ __forceinline__ void store_gated(const Accumulators<E>& acc, const Strip& first) {
    // From strips of results to those of accumulators, and there from the first weight's to the second's.
    constexpr int kAcross = E::kTileN / E::kResultN * kStrips;
    constexpr int kToUp = E::kGated == Gated::kRows ? E::kResultBlocksM * kAcross : kStrips;
#pragma unroll 1
    for (int i = 0; i < E::kResultBlocksM * kStrips; ++i) {
      const int gate = i / kStrips * kAcross + i % kStrips;
      const Strip strip = strip_at(first, i);
      if (outside(strip)) continue;
      float x[kValues];
      for_strip(acc, gate, [&](int e, float value) { x[e] = value; });
      activate_all(out_.activation, x);
      for_strip(acc, gate + kToUp, [&](int e, float value) { x[e] *= value; });
      if (out_.way == Way::kElements)
        Elements<E>(out_, staging_, lane_)
            .template write<false>(x, strip, rows_left(strip), cols_left(strip));
      else if (out_.swap)
        put<true>(x, strip, i % kStrips);
      else
        put<false>(x, strip, i % kStrips);
    }
  }

  // `across` counts strips along the rows.
  template <bool kSwap>
  __device__ __forceinline__ void put(const float (&x)[kValues], const Strip& strip, int across) {
    if (by_copy_engine(out_.way)) {
      store_copy<kSwap>(x, strip);
    } else {
      put_rows<kSwap>(x, strip, across);
    }
  }
  template <bool kSwap>
  __device__ __forceinline__ void put_rows(const float (&x)[kValues], const Strip& strip, int across) const {
    if constexpr (kSwap)
      Elements<E>(out_, staging_, lane_)
          .template write_own<true, In>(x, strip, rows_left(strip), cols_left(strip));
    else
      store_rows(x, strip, across);
  }

  // Calls f with each accumulator of a strip, counted along the tile's whole width.
  template <typename F>
  static __device__ __forceinline__ void for_strip(const Accumulators<E>& acc, int strip, F&& f) {
    constexpr int kAcross = E::kTileN / E::kResultN * kStrips;
#pragma unroll
    for (int i = 0; i < E::kBlocksM * kAcross; ++i) {
      if (i != strip) continue;
#pragma unroll
      for (int e = 0; e < kValues; ++e) f(e, acc.value[i / kAcross][first_value<E>(i % kAcross) + e]);
    }
  }

  // Of a strip, rows_left and cols_left exist.
  // Extents are below 2^31.
  __device__ __forceinline__ int rows_of(const Strip& s) const {
    return out_.swap ? rows_of<true>(s) : rows_of<false>(s);
  }
  template <bool kSwap>
  __device__ __forceinline__ int rows_of(const Strip& s) const {
    const int rows = static_cast<int>(kSwap ? out_.cols : out_.rows);
    return E::kEighths ? every_eighth(rows, s.batch) : rows;
  }
  __device__ int rows_left(const Strip& s) const { return min(rows_of(s) - static_cast<int>(s.row), 16); }
  __device__ __forceinline__ int cols_left(const Strip& s) const {
    return min(static_cast<int>(out_.swap ? out_.rows : out_.cols) - static_cast<int>(s.col), kCols);
  }
  // 16-bit values into a buffer: lines of kCols columns, or of 16 rows when transposed. The 16-byte units
  // of a line are XORed with bits 7 and up of the byte offset, as many as a line has units: the copy engine's
  // swizzle.
  template <bool kTransposed>
  __device__ __forceinline__ void fill(uint32_t first, uint32_t buffer, const float (&x)[kValues]) const {
#pragma unroll
    for (int j = 0; j < kCols; j += 16) {
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = pack<In>(x[j / 2 + 2 * i], x[j / 2 + 2 * i + 1]);
      const uint32_t to = next_matrix<kTransposed>(first, j) + buffer;
      if constexpr (kTransposed)
        store_matrix_x4_transposed(to, r);
      else
        store_matrix_x4(to, r);
    }
  }
  template <bool kTransposed>
  __device__ __forceinline__ void store_copy(const float (&x)[kValues], const Strip& s) {
    const uint32_t buffer = buffer_ * kBufferBytes;
    buffer_ = (buffer_ + 1) % kBuffers;
    if (lane_ == 0) tma_store_wait_read<kBuffers - 1>();
    __syncwarp();
    fill<kTransposed>(staging_ + staged_matrix<kTransposed, kCols>(0, lane_), buffer, x);
    copy<kTransposed>(staging_ + buffer, s);
  }
  template <bool kTransposed>
  __device__ __forceinline__ void copy(uint32_t buffer, const Strip& s) const {
    fence_shared_to_async();
    __syncwarp();
    if (lane_ == 0) {
      const int row = static_cast<int>(s.row), col = static_cast<int>(s.col);
      tma_store(d_map<E>(p_, s.batch), buffer, kTransposed ? row : col, kTransposed ? col : row, s.batch);
      tma_store_commit();
    }
  }

  // Rows of 16-bit elements that begin anywhere.
  __device__ __forceinline__ uint16_t* row_major(const Strip& s) const {
    return static_cast<uint16_t*>(out_.d) + s.batch * out_.batch_stride + s.row * out_.pitch + s.col;
  }
  // Strips side by side are staged until there are enough to be written, or no more.
  __device__ __forceinline__ void store_rows(const float (&x)[kValues], const Strip& s, int across) const {
    Rows rows(out_.pitch, staging_);  // anew for every two: there are no registers to keep it
    const int staged = across < kWhole ? across % kTogether : 0;
    if (staged == 0) __syncwarp();
    rows.template fill<In>(staged, x);
    if (staged + 1 < kTogether && across + 1 < kWhole && s.col + kCols < out_.cols) return;
    __syncwarp();
    uint16_t* const d = row_major(s) - staged * kCols;
    rows.start(d, staged * kCols + cols_left(s));
    rows.write(d, rows_left(s));
  }

  const Params& p_;
  const Output& out_;
  uint32_t staging_;
  int lane_;
  int buffer_ = 0;
  TileBias<E> bias_;
  Addend<E> addend_;
};

}  // namespace jaxgemm::cuda::sm90
