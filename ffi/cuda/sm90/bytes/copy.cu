// A block has pieces of 64 rows by 128 of k. Where rows are contiguous in memory along k a thread copies 16
// values of each of two rows. Elsewhere the block brings words of four rows through shared memory, and a
// thread turns those of eight values of k into two words of each row.
#include <algorithm>

#include "../../../arithmetic.h"
#include "../../device/divisor.cuh"
#include "../../device/types.cuh"
#include "../../planning.h"
#include "../configs.h"
#include "copy.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int kCopyThreads = 256, kCopyRows = 64;
constexpr int kBlocksEach = 6;  // of a multiprocessor

struct CopyWork {
  ByteOperand x;
  Divisor steps, blocks;    // pieces of k, and of one matrix
  Divisor inner;            // matrices of the inner batch
  uint32_t blocks_end = 0;  // where the pieces of its batch end, and those of the next operand begin
};

struct CopyTable {
  CopyWork work[2];
};

// The 4 kWords bytes at `from`, of which `count` exist; zeros behind them.
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

// Four words, each with a byte of four rows, become a word for each row.
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
  constexpr int kWords = kCopyRows / 4;  // of a line, which has the rows of one k
  __shared__ uint32_t tile[kLineBytes * kWords + kLineBytes / 8];
  // Eight lines on lie in other banks.
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
  const int group = thread / 16, line = thread % 16 * 8;  // of four rows, and of eight lines
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

__global__ void __launch_bounds__(kCopyThreads, kBlocksEach)
    repack_bytes(const __grid_constant__ CopyTable table) {
  for (uint32_t index = blockIdx.x; index < table.work[1].blocks_end; index += gridDim.x) {
    const bool second = index >= table.work[0].blocks_end;
    const CopyWork& work = table.work[second];
    const ByteOperand& x = work.x;
    const uint32_t piece = index - (second ? table.work[0].blocks_end : 0);
    const uint32_t batch = work.blocks(piece), block = piece - batch * work.blocks.divisor;
    const uint32_t rows = work.steps(block), step = block - rows * work.steps.divisor;
    const uint32_t outer = work.inner(batch), inner = batch - outer * work.inner.divisor;
    const uint8_t* const from = x.from + outer * x.outer_stride + inner * x.inner_stride;
    uint8_t* const to = x.to + batch * x.rows * x.pitch;
    const int64_t first_row = int64_t(rows) * kCopyRows, first_k = int64_t(step) * kLineBytes;
    if (x.k_stride == 1)
      copy_along_k(x, from, to, first_row, first_k);
    else
      copy_along_rows(x, from, to, first_row, first_k);
  }
}

}  // namespace

Status launch_byte_copies(const ByteOperand (&operands)[2], CUstream_st* stream) {
  CopyTable table{};
  int64_t blocks = 0;
  for (int i = 0; i < 2; ++i) {
    const ByteOperand& x = operands[i];
    const int64_t steps = std::max<int64_t>(1, ceil_div(x.k, kLineBytes));
    const int64_t own = steps * ceil_div(x.rows, kCopyRows);  // of a matrix
    blocks += own * x.batch_outer * x.batch_inner;
    if (blocks > INT32_MAX / 2) return {"kernel 'sm90': an operand is too large to be copied"};
    table.work[i] = {x, Divisor(static_cast<uint32_t>(steps)),
                     Divisor(static_cast<uint32_t>(std::max<int64_t>(1, own))),
                     Divisor(static_cast<uint32_t>(x.batch_inner)), static_cast<uint32_t>(blocks)};
  }
  const auto grid = static_cast<unsigned>(std::min<int64_t>(blocks, kBlocksEach * kModelSms));
  repack_bytes<<<grid, kCopyThreads, 0, stream>>>(table);
  return launch_status("sm90 (copies)");
}

}  // namespace jaxgemm::cuda::sm90
