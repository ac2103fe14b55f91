// A thread writes one 16-byte vector, or two in a large copy, so that more loads are in flight. A source row
// may begin at any element, so a thread loads the two aligned vectors that its own lies across, and shifts.
// The second of them is the first of the next lane, and comes from the L1 cache. Vectors are counted through
// all rows, so that no thread of a short row is idle. The last vector of a row is filled up with zeros.
#include <algorithm>

#include "../../../arithmetic.h"
#include "../../chip.h"
#include "../../device/divisor.cuh"
#include "../../device/ptx.cuh"
#include "../../device/shift.cuh"
#include "repack.cuh"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kManyVectors = 1 << 21;  // from so many on, a thread writes two

struct RepackWork {
  RepackOperand x;
  Divisor line_vectors;
  uint32_t vectors = 0;     // for each product of the batch
  uint32_t blocks_end = 0;  // where its blocks end, and those of the next operand begin
};

// The operands of a launch, kMost of them.
template <int kMost>
struct RepackTable {
  RepackWork work[kMost];

  // Whose block this is.
  __device__ __forceinline__ int owner(uint32_t block) const {
    int first = 0, last = kMost - 1;
    while (first < last) {
      const int middle = (first + last) / 2;
      if (block < work[middle].blocks_end)
        last = middle;
      else
        first = middle + 1;
    }
    return first;
  }
};
// As many as a kernel's parameters hold.
constexpr int kTableOperands = static_cast<int>(kParameterBytes / sizeof(RepackWork));

// Loads the elements of an aligned vector that lie in the operand; zeros for the others.
__device__ __forceinline__ uint4 load_elements(const uint8_t* address, const uint8_t* begin,
                                               const uint8_t* end) {
  uint4 v = make_uint4(0, 0, 0, 0);
  uint32_t* words = reinterpret_cast<uint32_t*>(&v);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint8_t* p = address + 2 * i;
    if (p >= begin && p < end) {
      words[i / 2] |= uint32_t(__ldg(reinterpret_cast<const uint16_t*>(p))) << (i % 2 * 16);
    }
  }
  return v;
}

template <int kVectors>
__device__ __forceinline__ void repack_block(const RepackWork& work, uint32_t batch, uint32_t block) {
  const RepackOperand& x = work.x;
  const uint32_t inner_count = static_cast<uint32_t>(x.batch_inner);
  const uint32_t outer = batch / inner_count, inner = batch % inner_count;
  const uint8_t* const begin =
      static_cast<const uint8_t*>(x.from) + 2 * (outer * x.from_outer + inner * x.from_inner);
  const uint8_t* const end = begin + 2 * ((x.lines - 1) * x.from_pitch + x.length);
  uint4* const to = static_cast<uint4*>(x.to) + batch * x.lines * (x.to_pitch / 8);

  const uint8_t* from[kVectors];
  uint32_t shift[kVectors];
  int64_t at[kVectors];
  int left[kVectors];  // elements of the row from here on, or 8
  bool inside = true;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const uint32_t index = (block * kVectors + i) * kThreads + threadIdx.x;
    const uint32_t line = work.line_vectors(min(index, work.vectors - 1));
    const uint32_t vector = min(index, work.vectors - 1) - line * work.line_vectors.divisor;
    const uint8_t* address = begin + 2 * (line * x.from_pitch + 8 * int64_t(vector));
    shift[i] = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % 16);
    from[i] = address - shift[i];
    at[i] = index < work.vectors ? line * (x.to_pitch / 8) + vector : -1;
    left[i] = static_cast<int>(min(x.length - 8 * int64_t(vector), int64_t(8)));
    inside = inside && from[i] >= begin && from[i] + 32 <= end;
  }

  uint4 lo[kVectors], hi[kVectors];
  if (inside) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      lo[i] = __ldg(reinterpret_cast<const uint4*>(from[i]));
      hi[i] = __ldg(reinterpret_cast<const uint4*>(from[i]) + 1);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      lo[i] = load_elements(from[i], begin, end);
      hi[i] = load_elements(from[i] + 16, begin, end);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (at[i] < 0) continue;
    const uint4 v = shift_vector(lo[i], hi[i], shift[i]);
    to[at[i]] = left[i] < 8 ? keep_first<uint16_t>(v, left[i]) : v;
  }
}

template <int kVectors, int kMost>
__global__ void __launch_bounds__(kThreads) repack(const __grid_constant__ RepackTable<kMost> table) {
  const int owner = table.owner(blockIdx.x);
  const RepackWork& work = table.work[owner];
  const uint32_t block = blockIdx.x - (owner > 0 ? table.work[owner - 1].blocks_end : 0);
  const int64_t products = work.x.batch_outer * work.x.batch_inner;
  for (int64_t batch = blockIdx.y; batch < products; batch += gridDim.y) {
    repack_block<kVectors>(work, static_cast<uint32_t>(batch), block);
  }
  // The product's kernel may be launched now, and waits for the copies itself.
  release_next_kernel();
}

Status prepare_work(const RepackOperand& x, RepackWork* work) {
  work->x = x;
  work->vectors = 0;
  if (x.lines == 0 || x.length == 0) return {};
  const int64_t line_vectors = ceil_div(x.length, 8);
  if (x.lines > (INT32_MAX - 2 * kThreads) / line_vectors) {
    return {"an unaligned operand has more than 2^34 elements"};
  }
  work->line_vectors = Divisor(static_cast<uint32_t>(line_vectors));
  work->vectors = static_cast<uint32_t>(x.lines * line_vectors);
  return {};
}

// Copies at most kMost operands. The others of the table have no blocks.
template <int kMost>
Status launch_table(std::span<const RepackOperand> operands, CUstream_st* stream) {
  static thread_local RepackTable<kMost> table;
  int64_t batch = 1;
  uint64_t vectors = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    RepackWork& work = table.work[i];
    if (Status status = prepare_work(operands[i], &work); !status.ok()) return status;
    batch = std::max(batch, work.x.batch_outer * work.x.batch_inner);
    vectors += work.vectors;
  }
  const auto run = [&]<int kVectors>() {
    uint32_t end = 0;
    for (size_t i = 0; i < kMost; ++i) {
      if (i < operands.size())
        end += static_cast<uint32_t>(ceil_div(table.work[i].vectors, kThreads * kVectors));
      table.work[i].blocks_end = end;
    }
    const dim3 grid(end, static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
    repack<kVectors, kMost><<<grid, kThreads, 0, stream>>>(table);
  };
  if (vectors < kManyVectors)
    run.template operator()<1>();
  else
    run.template operator()<2>();
  return launch_status("sm90 (repack)");
}

}  // namespace

Status launch_repack(std::span<const RepackOperand> operands, CUstream_st* stream) {
  if (operands.size() <= 2) return operands.empty() ? Status{} : launch_table<2>(operands, stream);
  Status status;
  for (; status.ok() && !operands.empty();) {
    const size_t count = std::min<size_t>(operands.size(), kTableOperands);
    status = launch_table<kTableOperands>(operands.first(count), stream);
    operands = operands.subspan(count);
  }
  return status;
}

}  // namespace jaxgemm::cuda::sm90
