// From staged strips of results to rows of 16-bit elements that begin anywhere in memory.
//
// A vector of D is made of the ends of two that are staged, the first of a strip of the last one of the strip
// before it. Only the ends of a tile's rows are written in smaller parts.
#pragma once

#include "../device/ptx.cuh"
#include "../device/shift.cuh"

namespace jaxgemm::cuda::sm90 {

// Where a strip of kCols columns has this byte of a row: the 16-byte units of a line of 128 bytes are XORed
// with the line's number, as the copy engine does.
template <int kCols>
__device__ __forceinline__ uint32_t swizzled(int row, int byte_in_row) {
  const uint32_t byte = row * (2 * kCols) + byte_in_row;
  return byte ^ (byte >> 7 & (kCols / 8 - 1)) << 4;
}

__device__ __forceinline__ uint4 staged_vector(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

// How far an element is from the aligned vector that it lies in.
__device__ __forceinline__ int elements_in(const uint16_t* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) / 2 % 8);
}

// The vector that a row which begins `shift` elements late has in place of hi, with lo before it.
__device__ __forceinline__ uint4 realigned(uint4 lo, uint4 hi, int shift) {
  return shift_vector(shift > 0 ? lo : hi, hi, (16 - 2 * shift) & 15);
}

// Elements [begin, end) of an aligned vector.
__device__ __forceinline__ void store_part(uint16_t* to, uint4 v, int begin, int end) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const bool lo = begin <= i && i < end, hi = begin <= i + 1 && i + 1 < end;
    if (lo && hi)
      *reinterpret_cast<uint32_t*>(to + i) = words[i / 2];
    else if (lo)
      to[i] = static_cast<uint16_t>(words[i / 2]);
    else if (hi)
      to[i + 1] = static_cast<uint16_t>(words[i / 2] >> 16);
  }
}

struct RowStrip {
  uint16_t* d;
  int64_t pitch;      // elements
  int rows, cols;     // that exist
  bool begins, ends;  // a tile's rows
};

// Writes what `buffer` holds; the strip before it is still in `before`.
template <int kCols>
__device__ __forceinline__ void write_rows(const RowStrip& s, uint32_t buffer, uint32_t before) {
  constexpr int kLanes = kCols / 8, kRows = 32 / kLanes, kParts = 16 / kRows;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto staged = [&](int row, int unit) {
    return unit >= 0 ? buffer + swizzled<kCols>(row, 16 * unit)
                     : before + swizzled<kCols>(row, 2 * kCols - 16);
  };
  {
    const int unit = lane % kLanes, first_row = lane / kLanes;
    const uint32_t hi_at = staged(first_row, unit), lo_at = staged(first_row, unit - 1);
    uint4 hi[kParts], lo[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      // Their swizzles have no bits in common with the first rows'.
      const uint32_t down = i * kRows * 2 * kCols, turn = swizzled<kCols>(i * kRows, 0) ^ down;
      hi[i] = staged_vector((hi_at ^ turn) + down);
      lo[i] = staged_vector((lo_at ^ turn) + down);
    }
    uint16_t* to = s.d + first_row * s.pitch + 8 * unit;
#pragma unroll
    for (int i = 0; i < kParts; ++i, to += kRows * s.pitch) {
      // A row's first vector is not the tile's alone where the row begins within it.
      const int shift = elements_in(to), left = s.cols - 8 * unit + shift;
      const uint4 v = realigned(lo[i], hi[i], shift);
      if (first_row + i * kRows < s.rows && left >= 8 && !(s.begins && shift > 0 && unit == 0))
        store_global(to - shift, v);
    }
  }
  if (!s.begins && !s.ends) return;
  // One lane a row for what begins within a vector, another for what ends within one.
  const int row = lane % 16;
  uint16_t* const line = s.d + row * s.pitch;
  const int shift = elements_in(line), end = shift + s.cols;
  const bool tail = lane >= 16, cut = s.begins && shift > 0;
  const int unit = tail ? end / 8 : 0;
  if (row >= s.rows || (tail ? !s.ends || end % 8 == 0 || (cut && unit == 0) : !cut)) return;
  const uint4 v = realigned(staged_vector(staged(row, unit - 1)),
                            staged_vector(staged(row, min(unit, kLanes - 1))), shift);
  store_part(line + (8 * unit - shift), v, tail ? 0 : shift, min(end - 8 * unit, 8));
}

}  // namespace jaxgemm::cuda::sm90
