// A bias in the registers of the warp that adds it.
#pragma once

#include "../device/pair.cuh"
#include "engine.cuh"

namespace jaxgemm::cuda::sm90 {

// Of one strip, of any type and alignment: two columns a lane, or one of the engine's rows when swapped. That
// takes two registers, and can be asked for a strip ahead.
template <typename E>
class StripBias {
 public:
  __device__ __forceinline__ void load(const Output& out, const Strip& s, int lane) {
    if (!out.bias) return;
    const int64_t first = out.swap ? s.row + lane % 16 : s.col + 2 * lane;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      raw_[i] = 0;
      if (first + i >= out.cols) continue;
      raw_[i] = out.f32 ? load_ahead_u32(static_cast<const float*>(out.bias) + first + i)
                        : load_ahead_u16(static_cast<const uint16_t*>(out.bias) + first + i);
    }
  }

  // To a lane's values of the strip, in the order of the accumulators.
  template <int kValues>
  __device__ __forceinline__ void add(float (&x)[kValues], const Output& out, int lane) const {
    float value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t raw = as_loaded(raw_[i]);
      value[i] = out.f32 ? __uint_as_float(raw) : unpack<typename E::In>(raw).x;
    }
    if (out.swap) {
      const float upper = __shfl_sync(0xffffffffu, value[0], lane / 4);
      const float lower = __shfl_sync(0xffffffffu, value[0], lane / 4 + 8);
#pragma unroll
      for (int e = 0; e < kValues; ++e) x[e] += e / 2 % 2 ? lower : upper;
    } else {
#pragma unroll
      for (int e = 0; e < kValues; e += 4) {
        const float even = __shfl_sync(0xffffffffu, value[0], e + lane % 4);
        const float odd = __shfl_sync(0xffffffffu, value[1], e + lane % 4);
        x[e] += even;
        x[e + 1] += odd;
        x[e + 2] += even;
        x[e + 3] += odd;
      }
    }
  }

 private:
  uint32_t raw_[2] = {};
};

// What a lane adds to its values of one strip.
template <bool kSwap, int kValues>
struct LaneBias {
  float value[kSwap ? 2 : kValues / 2];

  __device__ __forceinline__ float of(int e) const { return value[kSwap ? e / 2 % 2 : e / 4 * 2 + e % 2]; }
};

// Of a whole tile, where it has the operands' type and pairs of columns are aligned: a pair a lane of every
// strip, or when swapped the two of the engine's rows that a lane has in each 64. All of it is asked for
// before the main loop, so that no strip waits for its own.
template <typename E>
class TileBias {
  static constexpr int kCols = E::kStripColumns, kStrips = E::kStrips;

 public:
  __device__ __forceinline__ void load(const Output& out, const Strip& first, int lane) {
    if (!out.bias) return;
    const uint16_t* const bias = static_cast<const uint16_t*>(out.bias);
    const int cols = static_cast<int>(out.cols);
    if (out.swap) {
#pragma unroll
      for (int i = 0; i < 2 * E::kBlocksM; ++i) {
        const int row = static_cast<int>(first.row) + i / 2 * 64 + i % 2 * 8 + lane / 4;
        if (row < cols) raw_[i] = load_ahead_u16(bias + row);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kStrips; ++i) {
        const int col = static_cast<int>(first.col) + strip_column<E>(i) + 2 * lane;
        if (col + 1 < cols)
          raw_[i] = load_ahead_u32(bias + col);
        else if (col < cols)
          raw_[i] = load_ahead_u16(bias + col);
      }
    }
  }

  template <bool kSwap>
  __device__ __forceinline__ LaneBias<kSwap, kCols / 2> of_strip(const Output& out, int strip,
                                                                 int lane) const {
    LaneBias<kSwap, kCols / 2> bias{};
    if (!out.bias) return bias;
    if constexpr (kSwap) {
#pragma unroll
      for (int i = 0; i < 2 * E::kBlocksM; ++i) {
        if (i / 2 == strip / kStrips) bias.value[i % 2] = unpack<typename E::In>(as_loaded(raw_[i])).x;
      }
    } else {
      uint32_t pair = as_loaded(raw_[0]);
#pragma unroll
      for (int i = 1; i < kStrips; ++i) pair = strip % kStrips == i ? as_loaded(raw_[i]) : pair;
#pragma unroll
      for (int i = 0; i < kCols / 8; ++i) {
        const float2 x = unpack<typename E::In>(__shfl_sync(0xffffffffu, pair, 4 * i + lane % 4));
        bias.value[2 * i] = x.x;
        bias.value[2 * i + 1] = x.y;
      }
    }
    return bias;
  }

 private:
  uint32_t raw_[kStrips > 2 * E::kBlocksM ? kStrips : 2 * E::kBlocksM] = {};
};

}  // namespace jaxgemm::cuda::sm90
