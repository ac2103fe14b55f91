// From accumulators to D, one warp at a time.
//
// Values are finished where they are, in registers, in strips of 16 rows x kCols. Few warps run, so what
// counts is the number of instructions and how many are independent: a strip's 8 to 32 values a lane go
// through every step together. One loop over the strips holds the only copy of all this code; a strip's
// registers are moved to the loop's, since registers cannot be indexed.
//
// Aligned 16-bit results go through shared memory to the copy engine, which clips ragged edges, and C comes
// the same way (addend.cuh). Unaligned ones go through shared memory too, and are written along D's rows.
// fp32 goes straight to memory: 4 lanes fill a sector.
#pragma once

#include "../device/activation.cuh"
#include "addend.cuh"
#include "bias.cuh"
#include "eighths.cuh"
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
  struct Nothing {
    __device__ Nothing(int64_t, uint32_t) {}
  };
  using Bias = std::conditional_t<E::kFinish == Finish::kActivated || E::kFinish == Finish::kActivatedRows,
                                  TileBias<E>, StripBias<E>>;

 public:
  // Consumer `warp` of the block.
  __device__ EpilogueWarp(const Params& params, const SharedLayout<E>& shared, int warp)
      : p_(params),
        out_(params.out),
        staging_(shared.staging + warp * E::kStagingBytes),
        lane_(static_cast<int>(threadIdx.x % 32)),
        addend_(params, staging_, shared.addend + 8 * kBuffers * warp),
        rows_(params.out.pitch, staging_) {}

  // What the first strip needs from memory, or the whole tile, to be called before the main loop.
  __device__ __forceinline__ void prefetch(const Strip& first) { bias_.load(out_, first, lane_); }

  // Asks for what the first strips need from memory into shared memory, to be called when products are under
  // way, as it may have to wait for the tile before.
  __device__ __forceinline__ void fetch(const Strip& first) {
    if constexpr (E::kFinish == Finish::kActivated) {
      if (out_.c && lane_ == 0) {
        tma_store_wait_read<0>();
        for (int i = 0; i < kBuffers; ++i) fetch_strip(first, i);
      }
      __syncwarp();
    }
  }

  __device__ __forceinline__ void store(const Accumulators<E>& acc, const Strip& first) {
    if constexpr (E::kGated != Gated::kNo)
      store_gated(acc, first);
    else if constexpr (E::kFinish == Finish::kFull)
      store_full(acc, first);
    else if constexpr (E::kFinish == Finish::kRows)
      store_all_rows(acc, first);
    else if constexpr (E::kFinish == Finish::kActivatedRows)
      store_activated_rows(acc, first);
    else if constexpr (E::kFinish == Finish::kActivated) {
      if (out_.little && out_.swap)
        store_biased<true>(acc, first);
      else if (out_.little)
        store_biased<false>(acc, first);
      else if (out_.swap)
        store_activated<true>(acc, first);
      else
        store_activated<false>(acc, first);
    } else if (out_.f32)
      store_floats(acc, first);
    else if (out_.swap)
      store_plain<true>(acc, first);
    else
      store_plain<false>(acc, first);
  }

  // Buffers must outlive the copies that read them.
  __device__ void drain() const {
    if (lane_ == 0) tma_store_wait_read<0>();
  }

 private:
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
  template <bool kSwap>
  __device__ __forceinline__ void store_biased(const Accumulators<E>& acc, const Strip& first) {
    store_vectors<kSwap>(first, [&](float (&x)[kValues], int i) {
      const auto bias = bias_.template of_strip<kSwap>(out_, i, lane_);
#pragma unroll
      for (int e = 0; e < kValues; ++e) x[e] = fmaf(out_.alpha, value_of(acc, i, e), bias.of(e));
      if (out_.activation == Activation::kRelu) activate_usual(Activation::kRelu, x);
    });
  }
  __device__ __forceinline__ void store_floats(const Accumulators<E>& acc, const Strip& first) {
#pragma unroll
    for (int i = 0; i < E::kBlocksM * kStrips; ++i) {
      const Strip strip = strip_at(first, i);
      if (outside(strip)) continue;
      float x[kValues];
#pragma unroll
      for (int e = 0; e < kValues; ++e) x[e] = value_of(acc, i, e);
      store_pairs<float>(x, strip);
    }
  }

  // One copy of the code that writes, as it is long, and one for every strip of what stages it.
  __device__ __forceinline__ void store_all_rows(const Accumulators<E>& acc, const Strip& first) {
    static_assert(kWhole == kStrips);
    constexpr int kAcross = (kStrips + kTogether - 1) / kTogether;
    uint16_t* const d = row_major(first);
    const int rows = rows_of(first) - static_cast<int>(first.row),
              cols = static_cast<int>(out_.cols - first.col);
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kAcross; ++i) {
      const int row = i / kAcross * 64, col = i % kAcross * kTogether * kCols;
      if (row >= rows || col >= cols) continue;
      rows_.go_on(d, min(min(cols, E::kResultN) - col, kTogether * kCols));
      __syncwarp();
#pragma unroll
      for (int j = 0; j < E::kBlocksM * kAcross; ++j) {
        if (j != i) continue;
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          const int strip = j % kAcross * kTogether + k;
          if (strip >= kStrips) continue;
          float x[kValues];
#pragma unroll
          for (int e = 0; e < kValues; ++e) x[e] = acc.value[j / kAcross][strip * kValues + e];
          rows_.template fill<In>(k, x);
        }
      }
      __syncwarp();
      rows_.write(d + row * out_.pitch + col, rows - row);
    }
  }

  // The same with a bias and an activation, a strip at a time.
  __device__ __forceinline__ void store_activated_rows(const Accumulators<E>& acc, const Strip& first) {
    const Bias tile_bias = bias_;  // a strip's place in it is not known: *this would have to be in memory
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kStrips; ++i) {
      const Strip strip = strip_at(first, i);
      if (outside(strip)) continue;
      const auto bias = tile_bias.template of_strip<false>(out_, i, lane_);
      float x[kValues];
      for_strip(acc, i, [&](int e, float value) { x[e] = fmaf(out_.alpha, value, bias.of(e)); });
      activate_usual(out_.activation, x);
      store_rows(rows_, x, strip, i % kStrips);
    }
  }

  __device__ __forceinline__ void store_full(const Accumulators<E>& acc, const Strip& first) {
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kStrips; ++i) {
      const Strip strip = strip_at(first, i);
      float x[kValues];
      for_strip(acc, i, [&](int e, float value) { x[e] = out_.alpha * value; });
      if (!out_.plain) {
        const Bias bias = bias_;
        if (i + 1 < E::kBlocksM * kStrips) bias_.load(out_, strip_at(first, i + 1), lane_);
        if (!outside(strip)) finish(x, bias, strip);
      }
      if (!outside(strip)) put(x, strip, i % kStrips);
    }
  }

  template <bool kSwap>
  __device__ __forceinline__ void store_activated(const Accumulators<E>& acc, const Strip& first) {
#pragma unroll 1
    for (int i = 0; i < E::kBlocksM * kStrips; ++i) {
      const Strip strip = strip_at(first, i);
      if (i > 0 && out_.c && lane_ == 0) {
        tma_store_wait_read<0>();
        fetch_strip(first, i + 1);
      }
      if (outside(strip)) continue;
      const auto bias = bias_.template of_strip<kSwap>(out_, i, lane_);
      float x[kValues];
      for_strip(acc, i, [&](int e, float value) { x[e] = fmaf(out_.alpha, value, bias.of(e)); });
      if (out_.c) {
        buffer_ = i % kBuffers;
        addend_.template add<kSwap>(x, buffer_, lane_);
      }
      activate_usual(out_.activation, x);
      store_copy<kSwap>(x, strip);
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
      put(x, strip, i % kStrips);
    }
  }

  __device__ __forceinline__ void put(const float (&x)[kValues], const Strip& strip, int across) {
    if (out_.f32)
      store_direct<float>(x, strip);
    else if (out_.copy && out_.swap)
      store_copy<true>(x, strip);
    else if (out_.copy)
      store_copy<false>(x, strip);
    else if (out_.swap)
      store_direct<In>(x, strip);
    else {
      Rows rows(out_.pitch, staging_);
      store_rows(rows, x, strip, across);
    }
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

  // Within the strip this lane's value e is in row_of(e), col_of(e); rows_left and cols_left of the strip
  // exist.
  __device__ __forceinline__ int row_of(int e) const { return lane_ / 4 + e / 2 % 2 * 8; }
  __device__ __forceinline__ int col_of(int e) const { return e / 4 * 8 + lane_ % 4 * 2 + e % 2; }
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
  // Calls f(e, index) for this lane's values in order, and only for those that exist, with their place in D.
  // Values two apart are 8 of the engine's rows apart. The place is carried along rather than computed for
  // each value, which would take more registers than there are.
  template <typename F>
  __device__ __forceinline__ void for_each(const Strip& s, F&& f) const {
    const int64_t row_step = out_.swap ? 1 : out_.pitch, col_step = out_.swap ? out_.pitch : 1;
    const int rows = rows_left(s), cols = cols_left(s);
    int64_t index = s.batch * out_.batch_stride + s.split * out_.split_stride +
                    (s.row + row_of(0)) * row_step + (s.col + col_of(0)) * col_step;
#pragma unroll
    for (int e = 0; e < kValues; e += 4) {
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        if (row_of(half) >= rows) continue;
        const int64_t at = index + 4 * half * row_step;
        if (col_of(e) < cols) f(e + half, at);
        if (col_of(e + 1) < cols) f(e + half + 1, at + col_step);
      }
      index += 8 * col_step;
    }
  }
  // Loads of C stay behind this, or the compiler would have them all in flight and run out of registers.
  static __device__ __forceinline__ void pause(int e) {
    if (e % 8 == 7) asm volatile("" ::: "memory");
  }

  __device__ __forceinline__ void finish(float (&x)[kValues], const Bias& bias, const Strip& s) const {
    if (out_.c) {
      if (out_.f32)
        add_c<float>(x, s);
      else
        add_c<In>(x, s);
    }
    if (out_.bias) bias.add(x, out_, lane_);
    activate_all(out_.activation, x);
  }

  template <typename D>
  __device__ __forceinline__ void add_c(float (&x)[kValues], const Strip& s) const {
    const D* const c = static_cast<const D*>(out_.c);
    if (out_.pairs && !out_.swap) {
      for_each(s, [&](int e, int64_t index) {
        if (e % 2) return;
        const auto pair = *reinterpret_cast<const Pair<D>*>(c + index);
        x[e] += out_.beta * convert<float>(pair.a);
        x[e + 1] += out_.beta * convert<float>(pair.b);
        if (sizeof(D) > 2) pause(2 * e + 1);
      });
      return;
    }
    for_each(s, [&](int e, int64_t index) {
      x[e] += out_.beta * convert<float>(c[index]);
      pause(e);
    });
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
  // `across` counts strips along the rows: they are staged until there are enough to be written, or no more.
  __device__ __forceinline__ void store_rows(Rows& rows, const float (&x)[kValues], const Strip& s,
                                             int across) const {
    const int staged = across < kWhole ? across % kTogether : 0;
    if (staged == 0) __syncwarp();
    rows.template fill<In>(staged, x);
    if (staged + 1 < kTogether && across + 1 < kWhole && s.col + kCols < out_.cols) return;
    __syncwarp();
    uint16_t* const d = row_major(s) - staged * kCols;
    rows.go_on(d, staged * kCols + cols_left(s));
    rows.write(d, rows_left(s));
  }

  template <typename D>
  __device__ __forceinline__ void store_direct(const float (&x)[kValues], const Strip& s) const {
    D* const d = static_cast<D*>(out_.d);
    if (out_.pairs && !out_.swap)
      store_pairs<D>(x, s);
    else
      for_each(s, [&](int e, int64_t index) { d[index] = convert<D>(x[e]); });
  }
  template <typename D>
  __device__ __forceinline__ void store_pairs(const float (&x)[kValues], const Strip& s) const {
    for_each(s, [&](int e, int64_t index) {
      if (e % 2) return;
      *reinterpret_cast<Pair<D>*>(static_cast<D*>(out_.d) + index) = {convert<D>(x[e]), convert<D>(x[e + 1])};
    });
  }
  template <typename D>
  struct alignas(2 * sizeof(D)) Pair {
    D a, b;
  };

  const Params& p_;
  const Output& out_;
  uint32_t staging_;
  int lane_;
  int buffer_ = 0;
  Bias bias_;
  Addend<E> addend_;
  // From tile to tile.
  std::conditional_t<in_rows(E::kFinish), Rows, Nothing> rows_;
};

}  // namespace jaxgemm::cuda::sm90
