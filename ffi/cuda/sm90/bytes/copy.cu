// A block has pieces of 64 rows by 128 of k. If rows are contiguous in memory along k, a thread copies 16
// values of each of two rows. Else the block brings words of four rows through shared memory, and a thread
// turns the words of eight values of k into two words of each row.
#include "../../device/types.cuh"
#include "../configs.h"
#include "../pieces.cuh"
#include "copy.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int kCopyThreads = 256, kCopyRows = 64;
constexpr int kCopyBlocksEach = 6;  // blocks of a multiprocessor

// Loads the 4 * kWords bytes at `from`, of which `count` exist; the others are zeros.
template <int kWords>
__device__ __forceinline__ void load_bytes(const uint8_t* from, int64_t count, uint32_t (&word)[kWords]) {
  const int skew = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
  const uint32_t* const aligned = reinterpret_cast<const uint32_t*>(from - skew);
  uint32_t raw[kWords + 1];
#pragma unroll
  for (int i = 0; i <= kWords; ++i) {
    const bool needed = i < kWords || skew > 0;
    raw[i] = needed && 4 * i - skew < count ? __ldg(aligned + i) : 0;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    word[i] = __funnelshift_r(raw[i], raw[i + 1], 8 * skew);
    const int64_t left = count - 4 * i;
    if (left < 4) word[i] &= left <= 0 ? 0 : 0xffffffffu >> (8 * (4 - left));
  }
}

__device__ __forceinline__ void copy_along_k(const ByteOperand& x, const uint8_t* from, uint8_t* to,
                                             int64_t first_row, int64_t first_k) {
  const int64_t k = first_k + threadIdx.x % 8 * 16;
  if (k >= x.pitch) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = first_row + threadIdx.x / 8 + 32 * i;
    if (row >= x.rows) continue;
    uint32_t word[4];
    load_bytes(from + row * x.row_stride + k, x.k - k, word);
    *reinterpret_cast<uint4*>(to + row * x.pitch + k) = make_uint4(word[0], word[1], word[2], word[3]);
  }
}

// Turns four words, each with one byte of each of four rows, into a word for each row.
__device__ __forceinline__ void turn(uint32_t (&x)[4]) {
  const uint32_t low01 = __byte_perm(x[0], x[1], 0x5140), low23 = __byte_perm(x[2], x[3], 0x5140);
  const uint32_t high01 = __byte_perm(x[0], x[1], 0x7362), high23 = __byte_perm(x[2], x[3], 0x7362);
  x[0] = __byte_perm(low01, low23, 0x5410);
  x[1] = __byte_perm(low01, low23, 0x7632);
  x[2] = __byte_perm(high01, high23, 0x5410);
  x[3] = __byte_perm(high01, high23, 0x7632);
}

__device__ __forceinline__ void copy_along_rows(const ByteOperand& x, const uint8_t* from, uint8_t* to,
                                                int64_t first_row, int64_t first_k) {
  constexpr int kWords = kCopyRows / 4;  // words of a line, which has the rows of one k
  __shared__ uint32_t tile[kLineBytes * kWords + kLineBytes / 8];
  // The shift by a word every eight lines puts lines that are eight apart into other banks.
  const auto at = [](int line, int word) { return line * kWords + line / 8 + word; };
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int line = thread / kWords; line < kLineBytes; line += kCopyThreads / kWords) {
    const int64_t k = first_k + line, row = first_row + thread % kWords * 4;
    uint32_t word[1] = {0};
    if (k < x.k && row < x.rows) load_bytes(from + row + k * x.k_stride, x.rows - row, word);
    tile[at(line, thread % kWords)] = word[0];
  }
  __syncthreads();
  const int group = thread / 16, line = thread % 16 * 8;  // the thread's four rows and eight lines
  uint32_t first[4], second[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    first[i] = tile[at(line + i, group)];
    second[i] = tile[at(line + 4 + i, group)];
  }
  turn(first);
  turn(second);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first_row + 4 * group + i, k = first_k + line;
    if (row < x.rows && k < x.pitch)
      *reinterpret_cast<uint2*>(to + row * x.pitch + k) = make_uint2(first[i], second[i]);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kCopyThreads, kCopyBlocksEach)
    repack_bytes(const __grid_constant__ Pieces<uint8_t> pieces) {
  for_pieces<kCopyRows, kLineBytes>(
      pieces, [](const ByteOperand& x, const uint8_t* from, uint32_t batch, int first_row, int first_k) {
        uint8_t* const to = static_cast<uint8_t*>(x.to) + batch * x.rows * x.pitch;
        if (x.k_stride == 1)
          copy_along_k(x, from, to, first_row, first_k);
        else
          copy_along_rows(x, from, to, first_row, first_k);
      });
}

}  // namespace

Status launch_byte_copies(const ByteOperand (&operands)[2], CUstream_st* stream) {
  Pieces<uint8_t> pieces{};
  if (!make_pieces<kCopyRows, kLineBytes>(operands, &pieces))
    return {"kernel 'sm90': an operand is too large to be copied"};
  repack_bytes<<<grid_of(pieces, kCopyBlocksEach), kCopyThreads, 0, stream>>>(pieces);
  return launch_status("sm90 (copies)");
}

}  // namespace jaxgemm::cuda::sm90
