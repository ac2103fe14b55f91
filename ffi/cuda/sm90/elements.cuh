// Stores a strip of results to D of any type, alignment and orientation, one element at a time:
// StorePath::kElements and kFp32. For kElements the strip goes through shared memory in fp32, so that a warp
// writes along D's rows.
#pragma once

#include "../device/activation.cuh"
#include "engine.cuh"
#include "narrow.cuh"
#include "staged.cuh"

namespace jaxgemm::cuda::sm90 {

// The stores of one warp.
template <typename E>
class Elements {
  static constexpr int kCols = E::kStripColumns;
  // Elements that a lane loads, finishes and stores together. Planes leave registers for more.
  static constexpr int kAtOnce = E::kPlanes && kCols > 16 ? 16 : 4;
  static_assert(16 * kCols * 4 <= E::kStagingBytes && 16 * kCols % (32 * kAtOnce) == 0);

 public:
  __device__ Elements(const Output& out, uint32_t staging, int lane)
      : out_(out), staging_(staging), lane_(lane) {}

  // Stores the first `rows` rows and `cols` columns of a strip, of which a lane has values in the
  // accumulators' order. kEpilogue: alpha, C, the bias and the activation are applied here.
  template <bool kEpilogue>
  __device__ __forceinline__ void write(const float (&x)[kCols / 2], const Strip& s, int rows,
                                        int cols) const {
    __syncwarp();  // other lanes may still read the strip before
#pragma unroll
    for (int e = 0; e < kCols / 2; e += 2)
      store_shared(at(row_of_line<E::kTurned>(e / 2 % 2, lane_ / 4), e / 4 * 8 + lane_ % 4 * 2), x[e],
                   x[e + 1]);
    __syncwarp();
#pragma unroll 1
    for (int first = lane_; first < 16 * kCols; first += 32 * kAtOnce) {
      float value[kAtOnce];
      [[maybe_unused]] float c[kAtOnce] = {};
      if constexpr (kEpilogue && E::kPlanes) load_addend(first, s, rows, cols, c);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Place place(out_, first + 32 * i);
        value[i] = load_shared(at(place.row, place.col));
        if (kEpilogue) value[i] *= out_.alpha;
        if (kEpilogue && place.row < rows && place.col < cols)
          value[i] += E::kPlanes ? with_bias(out_.beta * c[i], place, s) : added(place, s);
      }
      if constexpr (kEpilogue) activate_any(out_.activation, value);
      int same = first;
      // Hides from the compiler that places are the same as above, as there are no registers to keep them.
      asm volatile("" : "+r"(same));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Place place(out_, same + 32 * i);
        if (place.row >= rows || place.col >= cols) continue;
        const int64_t index = place.index(out_, s);
        if (out_.f32)
          static_cast<float*>(out_.d)[index] = value[i];
        else
          with_narrow<E>(out_, [&]<typename T>() { static_cast<T*>(out_.d)[index] = convert<T>(value[i]); });
      }
    }
  }

  // Stores the same without an epilogue and without shared memory: each lane stores its own values, in pairs
  // along D's rows. When operands are swapped 8 lanes store 8 neighbours of a row of D.
  template <bool kSwap, typename D>
  __device__ __forceinline__ void write_own(const float (&x)[kCols / 2], const Strip& s, int rows,
                                            int cols) const {
    const int row = row_of_line<E::kTurned>(0, lane_ / 4), other = row_of_line<E::kTurned>(1, lane_ / 4);
    const int col = lane_ % 4 * 2;
    const int64_t row_step = kSwap ? 1 : out_.pitch, col_step = kSwap ? out_.pitch : 1;
    D* d = static_cast<D*>(out_.d) + s.batch * out_.batch_stride + s.split * out_.split_stride +
           (s.row + row) * row_step + (s.col + col) * col_step;
    D* below = d + (other - row) * row_step;
#pragma unroll
    for (int e = 0; e < kCols / 2; e += 4) {
      const bool first = col + 2 * e < cols, second = col + 2 * e + 1 < cols;
      const auto put = [&](D* to, bool exists, float a, float b) {
        if constexpr (kSwap) {
          if (exists && first) to[0] = convert<D>(a);
          if (exists && second) to[col_step] = convert<D>(b);
        } else if (exists && first) {
          *reinterpret_cast<float2*>(to) = {a, b};
        }
      };
      put(d, row < rows, x[e], x[e + 1]);
      put(below, other < rows, x[e + 2], x[e + 3]);
      d += 8 * col_step;
      below += 8 * col_step;
    }
  }

 private:
  // The row and column in the strip of its element `i`, counted along D's rows.
  struct Place {
    int row, col;
    __device__ __forceinline__ Place(const Output& out, int i)
        : row(out.swap ? i % 16 : i / kCols), col(out.swap ? i / 16 : i % kCols) {}
    __device__ __forceinline__ int64_t d_col(const Output& out, const Strip& s) const {
      return out.swap ? s.row + row : s.col + col;
    }
    __device__ __forceinline__ int64_t index(const Output& out, const Strip& s) const {
      const int64_t d_row = out.swap ? s.col + col : s.row + row;
      return s.batch * out.batch_stride + s.split * out.split_stride + d_row * out.pitch + d_col(out, s);
    }
  };
  // beta C plus the bias, for an element.
  __device__ __forceinline__ float added(const Place& place, const Strip& s) const {
    return with_bias(out_.c ? out_.beta * element(out_.c, place.index(out_, s)) : 0.f, place, s);
  }
  __device__ __forceinline__ float with_bias(float c, const Place& place, const Strip& s) const {
    return out_.bias ? c + element(out_.bias, s.group * out_.cols + place.d_col(out_, s)) : c;
  }
  // C of a lane's elements from `first` on; of planes of fp32 it is fp32. All loads are under way together.
  __device__ __forceinline__ void load_addend(int first, const Strip& s, int rows, int cols,
                                              float (&c)[kAtOnce]) const {
    if (!out_.c) return;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Place place(out_, first + 32 * i);
      if (place.row < rows && place.col < cols)
        c[i] = E::kElementBytes == 1 ? element(out_.c, place.index(out_, s))
                                     : static_cast<const float*>(out_.c)[place.index(out_, s)];
    }
  }
  __device__ __forceinline__ float element(const void* from, int64_t index) const {
    if (out_.f32) return static_cast<const float*>(from)[index];
    return with_narrow<E>(out_,
                          [&]<typename T>() { return convert<float>(static_cast<const T*>(from)[index]); });
  }

  // The address of an element in shared memory. The number of 8 neighbouring columns is XORed with the row's
  // number, so that the pairs that a warp stores at a time lie in different banks.
  __device__ __forceinline__ uint32_t at(int row, int col) const {
    return staging_ + 4 * (row * kCols + (col ^ (8 * row & (kCols - 8))));
  }
  static __device__ __forceinline__ void store_shared(uint32_t to, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
  }
  static __device__ __forceinline__ float load_shared(uint32_t from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
  }

  const Output& out_;
  uint32_t staging_;
  int lane_;
};

}  // namespace jaxgemm::cuda::sm90
