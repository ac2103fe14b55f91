// From accumulators to D, each warp through its own small buffer in shared memory.
//
// The general way stages 8 rows of fp32 at a time. A lane then owns four columns and passes over the rows, so
// that the code for C, bias, activation and conversion exists once for every type and alignment; each of
// these steps works in place, a lane on its own values only. The instructions for this would show at a short
// K: the plain epilogue of aligned rows has short ways of its own.
#pragma once

#include "../device/epilogue.cuh"
#include "../device/pair.cuh"
#include "engine.cuh"

namespace jaxgemm::cuda::sm80 {

template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};

template <typename E>
class EpilogueWarp {
  static constexpr int kRows = 8;  // rows of an mma.sync tile that one accumulator register holds over a warp
  static constexpr int kPitch = E::kWarpN + 8;
  static constexpr int kLanes = E::kWarpN / 4;  // along a row
  static constexpr int kPassRows = 32 / kLanes;
  static constexpr int kPasses = kRows / kPassRows;
  static_assert(kRows * kPitch * 4 == E::kBufferBytes);
  using In = typename E::In;

 public:
  // `row` and `col` are where this warp's tile starts in D; element (row, col) lies at base + row * pitch +
  // col.
  __device__ __forceinline__ EpilogueWarp(const Output& out, float* buffer, int64_t base, int64_t row,
                                          int64_t col)
      : out_(out),
        lane_(static_cast<int>(threadIdx.x % 32)),
        buffer_(buffer),
        base_(base),
        row_(row),
        col_(col) {}

  __device__ __forceinline__ void store(const typename E::Accumulators& acc) const {
    if (out_.store == Store::kPacked)
      store_packed(acc);
    else if (out_.store == Store::kDirect)
      store_direct(acc);
    else
      store_general(acc);
  }

 private:
  __device__ __forceinline__ void store_packed(const typename E::Accumulators& acc) const {
    constexpr int kBytes = E::kWarpN * 2, kRowPitch = kBytes + 16;  // of 16 rows in the buffer
    constexpr int kAcross = kBytes / 16, kDown = 32 / kAcross;      // lanes
    static_assert(16 * kRowPitch <= E::kBufferBytes);
    char* const buffer = reinterpret_cast<char*>(buffer_);
    char* const put = buffer + lane_ / 4 * kRowPitch + lane_ % 4 * 4;
    const char* const get = buffer + lane_ / kAcross * kRowPitch + lane_ % kAcross * 16;
    const int64_t row = row_ + lane_ / kAcross, col = col_ + lane_ % kAcross * 8;
    In* to = static_cast<In*>(out_.d) + base_ + row * out_.pitch + col;
    const int64_t left = col < out_.cols ? out_.rows - row : 0;
    const int rows = static_cast<int>(left < E::kWarpM ? left : E::kWarpM);
#pragma unroll
    for (int i = 0; i < E::kBlocksM; ++i) {
#pragma unroll
      for (int j = 0; j < E::kBlocksN; ++j) {
        const float (&x)[4] = acc[i][j];
        *reinterpret_cast<uint32_t*>(put + j * 16) = pack<In>(out_.alpha * x[0], out_.alpha * x[1]);
        *reinterpret_cast<uint32_t*>(put + 8 * kRowPitch + j * 16) =
            pack<In>(out_.alpha * x[2], out_.alpha * x[3]);
      }
      __syncwarp();
#pragma unroll
      for (int r = 0; r < 16; r += kDown) {
        const uint4 x = *reinterpret_cast<const uint4*>(get + r * kRowPitch);
        if (i * 16 + r < rows) *reinterpret_cast<uint4*>(to) = x;
        to += kDown * out_.pitch;
      }
      __syncwarp();
    }
  }

  __device__ __forceinline__ void store_direct(const typename E::Accumulators& acc) const {
    const int64_t row = row_ + lane_ / 4, col = col_ + lane_ % 4 * 2;
    float* to = static_cast<float*>(out_.d) + base_ + row * out_.pitch + col;
    const int64_t left_m = out_.rows - row, left_n = out_.cols - col;
    const int rows = static_cast<int>(left_m < E::kWarpM ? left_m : E::kWarpM);
    const int cols = static_cast<int>(left_n < E::kWarpN ? left_n : E::kWarpN);
#pragma unroll
    for (int i = 0; i < E::kWarpM; i += 8) {
#pragma unroll
      for (int j = 0; j < E::kBlocksN; ++j) {
        const float* const x = acc[i / 16][j] + i % 16 / 4;
        if (i < rows && j * 8 < cols) {
          *reinterpret_cast<float2*>(to + j * 8) = make_float2(out_.alpha * x[0], out_.alpha * x[1]);
        }
      }
      to += 8 * out_.pitch;
    }
  }

  __device__ __forceinline__ void store_general(const typename E::Accumulators& acc) const {
    constexpr int kParts = E::kWarpM / kRows;
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      __syncwarp();
      // Registers cannot be indexed at run time: one copy of the stores for each part.
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        if (p == part) stage(acc[p / 2], p % 2 * 2);
      }
      __syncwarp();
      const int64_t left = out_.rows - (row_ + part * kRows) - lane_ / kLanes;
      const int rows = static_cast<int>(left < kRows ? left : kRows);
      if (out_.c || out_.bias) {
        if (out_.f32)
          add_operands<float>(part, rows);
        else
          add_operands<In>(part, rows);
      }
      if (out_.activation != Activation::kNone) apply_activation();
      if (out_.f32)
        write<float>(part, rows);
      else
        write<In>(part, rows);
    }
  }

  __device__ __forceinline__ void stage(const float (&acc)[E::kBlocksN][4], int first) const {
    float* const to = buffer_ + lane_ / 4 * kPitch + lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < E::kBlocksN; ++j) {
      *reinterpret_cast<float2*>(to + j * 8) =
          make_float2(out_.alpha * acc[j][first], out_.alpha * acc[j][first + 1]);
    }
  }

  // The columns that a lane owns: four neighbours if rows are aligned, else columns kLanes apart, so that
  // each store of a warp still covers neighbours.
  __device__ __forceinline__ int column(int v) const {
    return out_.vec ? lane_ % kLanes * 4 + v : lane_ % kLanes + v * kLanes;
  }
  __device__ __forceinline__ float4 get(const float* row) const {
    if (out_.vec) return *reinterpret_cast<const float4*>(row + column(0));
    return make_float4(row[column(0)], row[column(1)], row[column(2)], row[column(3)]);
  }
  __device__ __forceinline__ void put(float* row, float4 x) const {
    if (out_.vec) {
      *reinterpret_cast<float4*>(row + column(0)) = x;
    } else {
      row[column(0)] = x.x;
      row[column(1)] = x.y;
      row[column(2)] = x.z;
      row[column(3)] = x.w;
    }
  }

  // Four elements of C or of the bias; zero where there are none.
  template <typename D>
  __device__ __forceinline__ float4 read(const void* from, int64_t index, bool row_exists) const {
    const D* x = static_cast<const D*>(from) + index;
    float r[4] = {};
    if (out_.vec) {
      if (row_exists && col_ + column(0) < out_.cols) {
        const Four<D> w = *reinterpret_cast<const Four<D>*>(x + column(0));
#pragma unroll
        for (int v = 0; v < 4; ++v) r[v] = convert<float>(w.v[v]);
      }
    } else {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        if (row_exists && col_ + column(v) < out_.cols) r[v] = convert<float>(x[column(v)]);
      }
    }
    return make_float4(r[0], r[1], r[2], r[3]);
  }

  __device__ __forceinline__ int64_t index(int part) const {
    return base_ + (row_ + part * kRows + lane_ / kLanes) * out_.pitch + col_;
  }
  __device__ __forceinline__ float* first() const { return buffer_ + lane_ / kLanes * kPitch; }

  // `rows`: how many of the part's rows exist from this lane's first on.
  template <typename D>
  __device__ __forceinline__ void add_operands(int part, int rows) const {
    float4 bias = make_float4(0.f, 0.f, 0.f, 0.f);
    if (out_.bias) bias = read<D>(out_.bias, col_, true);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      float* const row = first() + i * kPassRows * kPitch;
      float4 x = get(row);
      if (out_.c) {
        const float4 c = read<D>(out_.c, index(part) + i * kPassRows * out_.pitch, i * kPassRows < rows);
        x = make_float4(x.x + out_.beta * c.x, x.y + out_.beta * c.y, x.z + out_.beta * c.z,
                        x.w + out_.beta * c.w);
      }
      if (out_.bias) x = make_float4(x.x + bias.x, x.y + bias.y, x.z + bias.z, x.w + bias.w);
      put(row, x);
    }
  }

  __device__ __forceinline__ void apply_activation() const {
#pragma unroll 1
    for (int i = 0; i < kPasses; ++i) {
      float* const row = first() + i * kPassRows * kPitch;
      const float4 x = get(row);
      put(row, make_float4(activate(out_.activation, x.x), activate(out_.activation, x.y),
                           activate(out_.activation, x.z), activate(out_.activation, x.w)));
    }
  }

  template <typename D>
  __device__ __forceinline__ void write(int part, int rows) const {
    D* const to = static_cast<D*>(out_.d) + index(part);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (i * kPassRows >= rows) break;
      const float4 x = get(first() + i * kPassRows * kPitch);
      const float r[4] = {x.x, x.y, x.z, x.w};
      D* const at = to + i * kPassRows * out_.pitch;
      if (out_.vec) {
        Four<D> w;
#pragma unroll
        for (int v = 0; v < 4; ++v) w.v[v] = convert<D>(r[v]);
        if (col_ + column(0) < out_.cols) *reinterpret_cast<Four<D>*>(at + column(0)) = w;
      } else {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          if (col_ + column(v) < out_.cols) at[column(v)] = convert<D>(r[v]);
        }
      }
    }
  }

  const Output& out_;
  int lane_;
  float* buffer_;
  int64_t base_, row_, col_;
};

}  // namespace jaxgemm::cuda::sm80
