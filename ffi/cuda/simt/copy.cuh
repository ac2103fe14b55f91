// Copies of one operand's tiles from global to shared memory, where a tile always lies K-major: [k][x], x
// being op(A)'s row or op(B)'s column. Every mode takes part in the same pipeline:
//   begin(stage, on)             starts the copy of a full tile, if `on`. No branch, so that the compiler can
//                                spread it among the FMAs
//   begin_partial(stage, valid)  the same for a tile of fewer than BK values of k; the rest becomes zero
//   advance(k)                   steps on by that many values of k
//   finish(stage)                completes what begin left to do, before the barrier that publishes the stage
//
// Rows of op(A) and columns of op(B) outside of the matrix feed only outputs that are not stored, so shared
// memory may hold anything for them. Every output sums over K: its ragged part is the first tile, once, so
// that only begin_partial pays for it.
#pragma once

#include "../device/cp_async.cuh"
#include "../device/ptx.cuh"
#include "../device/types.cuh"

namespace jaxgemm::cuda::simt {

// kTranspose: k is contiguous in memory; single elements are scattered to their place in [k][x].
// kRows:      x is contiguous; single elements, for pitches and pointers of any alignment.
// kRows16:    x is contiguous and every run of 16 bytes is aligned.
// kConvert:   either, by run-time strides, through registers: f16 and bf16, which cp.async cannot move.
enum class Load { kTranspose, kRows, kRows16, kConvert };

// X is the tile's extent along x, Pitch the distance in shared memory from k to k + 1.
template <typename T, Load Mode, int X, int BK, int Pitch, int Threads>
struct Copy;

// Adds `by` to `value`, hidden from the compiler, which would otherwise keep a pointer for each row, at two
// instructions a tile for each, where one running offset for each operand takes two.
__device__ __forceinline__ void add_opaque(int64_t& value, int64_t by) {
  asm("add.s64 %0, %0, %1;" : "+l"(value) : "l"(by));
}

// 8 lanes along k read a 32-byte sector of a row, so that a warp reads 4 rows; 16 lanes along k where the
// block has more threads than that takes. A row's further values of k are at constant offsets from its first.
// Rows outside of the matrix read its last row instead, which takes no predicate.
template <typename T, int X, int BK, int Pitch, int Threads>
struct Copy<T, Load::kTranspose, X, BK, Pitch, Threads> {
  static constexpr int kAlong = Threads / 8 <= X ? 8 : Threads / X;
  static constexpr int kStep = Threads / kAlong, kRows = X / kStep;
  static_assert(X % kStep == 0 && BK % kAlong == 0);
  const char* row[kRows];
  int64_t offset = 0;
  int k, shared;

  __device__ __forceinline__ Copy(const T* base, int64_t ld, int64_t x0, int64_t extent, int64_t k0) {
    k = threadIdx.x % kAlong;
    const int x = threadIdx.x / kAlong;
    shared = k * Pitch + x;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t at = x0 + x + i * kStep;
      row[i] = reinterpret_cast<const char*>(base + (at < extent ? at : extent - 1) * ld + k0 + k);
    }
  }
  __device__ __forceinline__ void begin(T* stage, bool on) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < BK; j += kAlong)
        cp_async_if<sizeof(T)>(shared_address(stage + shared + j * Pitch + i * kStep),
                               row[i] + offset + j * sizeof(T), on);
    }
  }
  __device__ __forceinline__ void begin_partial(T* stage, int valid) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < BK; j += kAlong)
        cp_async_or_zero<sizeof(T)>(shared_address(stage + shared + j * Pitch + i * kStep),
                                    row[i] + offset + j * sizeof(T), k + j < valid);
    }
  }
  __device__ __forceinline__ void advance(int by) { add_opaque(offset, by * int64_t(sizeof(T))); }
  __device__ __forceinline__ void finish(T*) {}
};

// kRows and kRows16 differ in the width of an access only. Columns outside of the matrix are left out rather
// than clamped: a warp's lanes would all copy one address, which the hardware does one by one.
template <typename T, int Width, int X, int BK, int Pitch, int Threads>
struct CopyRows {
  static constexpr int kPerRow = X / Width;
  static constexpr int kAcross = kPerRow < 32 ? kPerRow : 32;  // neighbouring threads along x
  static constexpr int kDown = Threads / kAcross;              // and along k
  static constexpr int kCols = kPerRow / kAcross, kRows = BK / kDown;
  static_assert(kPerRow % kAcross == 0 && BK % kDown == 0 && kRows >= 1);
  const char* first;
  int64_t pitch;  // bytes from k to k + 1
  int64_t offset = 0;
  int k, shared, cols;  // cols: how many of this thread's columns are inside

  __device__ __forceinline__ CopyRows(const T* base, int64_t ld, int64_t x0, int64_t extent, int64_t k0) {
    k = threadIdx.x / kAcross;
    const int x = threadIdx.x % kAcross * Width;
    shared = k * Pitch + x;
    pitch = ld * int64_t(sizeof(T));
    first = reinterpret_cast<const char*>(base + (k0 + k) * ld + x0 + x);
    // Wide accesses are chosen only when Width divides the extent, so a run is inside or outside as a whole.
    const int64_t left = extent - x0 - x;
    constexpr int kStep = kAcross * Width;
    cols = left >= X ? kCols : left <= 0 ? 0 : (static_cast<int>(left) + kStep - 1) / kStep;
  }
  __device__ __forceinline__ void begin(T* stage, bool on) {
    const int cols_on = on ? cols : 0;
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int i = 0; i < kCols; ++i)
        cp_async_if<Width * sizeof(T)>(
            shared_address(stage + shared + j * kDown * Pitch + i * kAcross * Width),
            first + (offset + j * kDown * pitch) + i * kAcross * Width * sizeof(T), i < cols_on);
    }
  }
  __device__ __forceinline__ void begin_partial(T* stage, int valid) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int i = 0; i < kCols; ++i)
        cp_async_or_zero<Width * sizeof(T)>(
            shared_address(stage + shared + j * kDown * Pitch + i * kAcross * Width),
            first + (offset + j * kDown * pitch) + i * kAcross * Width * sizeof(T),
            i < cols && k + j * kDown < valid);
    }
  }
  __device__ __forceinline__ void advance(int by) { add_opaque(offset, by * pitch); }
  __device__ __forceinline__ void finish(T*) {}
};

template <typename T, int X, int BK, int Pitch, int Threads>
struct Copy<T, Load::kRows, X, BK, Pitch, Threads> : CopyRows<T, 1, X, BK, Pitch, Threads> {
  using CopyRows<T, 1, X, BK, Pitch, Threads>::CopyRows;
};

template <typename T, int X, int BK, int Pitch, int Threads>
struct Copy<T, Load::kRows16, X, BK, Pitch, Threads> : CopyRows<T, 16 / sizeof(T), X, BK, Pitch, Threads> {
  using CopyRows<T, 16 / sizeof(T), X, BK, Pitch, Threads>::CopyRows;
};

// Both strides, and which of f16 and bf16 the elements are, are known at run time. 256 threads cover 32
// values of x by 8 of k at a time; neighbouring threads run along whichever of the two is contiguous. The
// values wait in registers while the block computes.
template <int X, int BK, int Pitch, int Threads>
struct Copy<uint16_t, Load::kConvert, X, BK, Pitch, Threads> {
  static constexpr int kCols = X / 32, kRows = BK / 8;
  static_assert(Threads == 256 && X % 32 == 0 && BK % 8 == 0);
  const uint16_t* col[kCols];
  uint16_t value[kRows][kCols];
  int64_t stride_k, offset = 0;
  int k, shared;
  bool bf16;

  __device__ __forceinline__ Copy(const uint16_t* base, int64_t stride_x, int64_t stride_k_, int64_t x0,
                                  int64_t extent, int64_t k0, bool bf16_)
      : stride_k(stride_k_), bf16(bf16_) {
    const bool along_k = stride_k == 1;
    k = along_k ? threadIdx.x % 8 : threadIdx.x / 32;
    const int x = along_k ? threadIdx.x / 8 : threadIdx.x % 32;
    shared = k * Pitch + x;
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
      const int64_t at = x0 + x + i * 32;
      col[i] = base + (at < extent ? at : extent - 1) * stride_x + (k0 + k) * stride_k;
    }
  }
  __device__ __forceinline__ void begin(float* stage, bool on) { begin_partial(stage, on ? BK : 0); }
  __device__ __forceinline__ void begin_partial(float*, int valid) {
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) value[j][i] = k + j * 8 < valid ? col[i][offset + j * 8 * stride_k] : 0;
    }
  }
  __device__ __forceinline__ void advance(int by) { offset += by * stride_k; }
  __device__ __forceinline__ void finish(float* stage) {
    // One branch for all values, not one for each.
    if (bf16)
      put(stage, [](uint16_t bits) { return __bfloat162float(__ushort_as_bfloat16(bits)); });
    else
      put(stage, [](uint16_t bits) { return __half2float(__ushort_as_half(bits)); });
  }
  template <typename F>
  __device__ __forceinline__ void put(float* stage, F widen) {
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) stage[shared + j * 8 * Pitch + i * 32] = widen(value[j][i]);
    }
  }
};

}  // namespace jaxgemm::cuda::simt
