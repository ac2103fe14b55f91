// From staged strips of results to rows of 16-bit elements that begin anywhere in memory.
//
// A vector of D is made of the ends of two that are staged, the first of a strip of the last one of the strip
// before it. Only the ends of a tile's rows are written in smaller parts.
#pragma once

#include "../device/ptx.cuh"

namespace jaxgemm::cuda::sm90 {

// Where a strip of kCols columns has this byte of a row: the 16-byte units of a line of 128 bytes are XORed
// with the line's number, as the copy engine does.
template <int kCols>
__device__ __forceinline__ uint32_t swizzled(int row, int byte_in_row) {
  const uint32_t byte = row * (2 * kCols) + byte_in_row;
  return byte ^ (byte >> 7 & (kCols / 8 - 1)) << 4;
}

// Where a lane finds or leaves its row of the four 8 x 8 matrices that make 16 columns from `column` on of a
// strip: matrix i of them is in rows 8 (i % 2), columns 8 (i / 2). A transposed strip has lines of 16 rows.
template <bool kTransposed, int kCols>
__device__ __forceinline__ uint32_t staged_matrix(int column, int lane) {
  const int matrix = lane / 8, line = lane % 8;
  return kTransposed ? swizzled<16>(column + matrix / 2 * 8 + line, matrix % 2 * 16)
                     : swizzled<kCols>(matrix % 2 * 8 + line, (column + matrix / 2 * 8) * 2);
}

// How far an element is from the aligned vector that it lies in.
__device__ __forceinline__ int elements_in(const uint16_t* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) / 2 % 8);
}

// The 16 bytes that a row which begins `late` elements late has in place of the staged vector at `vector`,
// with the one at `before` before it. They are part of three pieces of 8 bytes.
struct Realigned {
  uint32_t at[3];
  int shift;  // bytes within the first piece

  __device__ __forceinline__ Realigned(uint32_t before, uint32_t vector, int late) : shift(-2 * late & 7) {
    at[0] = late == 0 ? vector : before + (late <= 4 ? 8 : 0);
    at[1] = late <= 4 ? vector + (late == 0 ? 8 : 0) : before + 8;
    at[2] = vector + (late <= 4 ? 8 : 0);
  }

  // `turn` is a change of the swizzle, `down` the distance of the row from this one.
  __device__ __forceinline__ uint4 load(uint32_t turn, uint32_t down) const {
    uint32_t w[6];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(w[2 * i]), "=r"(w[2 * i + 1])
                   : "r"((at[i] ^ turn) + down));
    }
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
    const uint32_t bits = shift % 4 * 8;
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
  }
};

// Elements [begin, end) of an aligned vector, of which there is one at least: whole words, and the halves of
// those that the part begins or ends within. Every lane has another part, so nothing here is a branch.
__device__ __forceinline__ void store_part(uint16_t* to, uint4 v, int begin, int end) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) store_global_if(begin <= 2 * i && 2 * i + 2 <= end, to + 2 * i, words[i]);
  const auto word_of = [&](int element) {
    const uint32_t low = element & 2 ? v.y : v.x, high = element & 2 ? v.w : v.z;
    return element & 4 ? high : low;
  };
  store_global_if(begin % 2 != 0, to + begin, static_cast<uint16_t>(word_of(begin) >> 16));
  store_global_if(end % 2 != 0, to + end - 1, static_cast<uint16_t>(word_of(end - 1)));
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
    // Rows 8 apart are a multiple of 16 bytes apart.
    constexpr int kDifferent = kRows < 8 ? 8 / kRows : 1;
    const int unit = lane % kLanes, first_row = lane / kLanes;
    uint16_t* to = s.d + first_row * s.pitch + 8 * unit;
    const uint32_t vector = staged(first_row, unit), previous = staged(first_row, unit - 1);
    uint4 v[kParts];
#pragma unroll
    for (int i = 0; i < kDifferent; ++i) {
      const Realigned realigned(previous, vector, elements_in(to + i * kRows * s.pitch));
#pragma unroll
      for (int j = i; j < kParts; j += kDifferent) {
        // Their swizzles have no bits in common with the first rows'.
        const uint32_t down = j * kRows * 2 * kCols;
        v[j] = realigned.load(swizzled<kCols>(j * kRows, 0) ^ down, down);
      }
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i, to += kRows * s.pitch) {
      // A row's first vector is not the tile's alone where the row begins within it.
      const int late = elements_in(to), left = s.cols - 8 * unit + late;
      if (first_row + i * kRows < s.rows && left >= 8 && !(s.begins && late > 0 && unit == 0))
        store_global(to - late, v[i]);
    }
  }
  if (!s.begins && !s.ends) return;
  // One lane a row for what begins within a vector, another for what ends within one.
  const int row = lane % 16;
  uint16_t* const line = s.d + row * s.pitch;
  const int late = elements_in(line), end = late + s.cols;
  const bool tail = lane >= 16, cut = s.begins && late > 0;
  const int unit = tail ? end / 8 : 0;
  const bool at_end = s.ends & (end % 8 != 0) & !(cut & (unit == 0));
  if (!((tail ? at_end : cut) & (row < s.rows))) return;
  const Realigned realigned(staged(row, unit - 1), staged(row, min(unit, kLanes - 1)), late);
  store_part(line + (8 * unit - late), realigned.load(0, 0), tail ? 0 : late, min(end - 8 * unit, 8));
}

}  // namespace jaxgemm::cuda::sm90
