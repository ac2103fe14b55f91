// Stores strips of 16-bit results to rows of D that are unaligned, one warp at a time.
//
// Strips are staged in shared memory. A 16-byte vector of D then lies across two vectors of the staged row,
// so a lane loads both and shifts them. Only the ends of rows, where a vector is not the tile's alone, are
// written in smaller pieces. Few warps run, so what counts is the number of instructions and how many are
// independent: two strips side by side are written at a time, and RowWriter::start works out what a lane
// needs for both.
#pragma once

#include "../../device/mma.cuh"
#include "../../device/ptx.cuh"
#include "../staged.cuh"

namespace jaxgemm::cuda::sm90 {

// How many elements after a multiple of 16 bytes an element lies.
__device__ __forceinline__ int misalignment_of(const uint16_t* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) / 2 % 8);
}

// 16 staged rows of kColumns elements. The number of a 16-byte unit in its row is XORed with the row's
// number, so that the same units of 8 rows lie in different banks.
template <int kColumns>
struct StagedRows {
  static constexpr int kLine = 2 * kColumns, kUnits = kLine / 16;  // bytes and vectors of a row
  static __device__ __forceinline__ uint32_t at(int row, int unit) {
    constexpr int kRowsOfBanks = kLine < 128 ? 128 / kLine : 1;
    const int turn = row / kRowsOfBanks % (kUnits < 8 ? kUnits : 8);
    return row * kLine + 16 * ((unit & (kUnits - 1)) ^ turn);
  }
};

// One vector of D in a row that begins `misalignment` elements after a multiple of 16 bytes: the last
// `misalignment` elements of the staged vector at `before`, then the first ones of the staged vector at
// `vector`. They lie in three pieces of 8 bytes.
struct ShiftedVector {
  uint32_t at[3];
  int misalignment;

  ShiftedVector() = default;
  __device__ __forceinline__ ShiftedVector(uint32_t before, uint32_t vector, int misalignment)
      : misalignment(misalignment) {
    at[0] = misalignment == 0 ? vector : before + (misalignment <= 4 ? 8 : 0);
    at[1] = misalignment <= 4 ? vector + (misalignment == 0 ? 8 : 0) : before + 8;
    at[2] = vector + (misalignment <= 4 ? 8 : 0);
  }

  // `down`: bytes from this row to the one that is loaded.
  __device__ __forceinline__ uint4 load(uint32_t down) const {
    uint32_t w[6];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(w[2 * i]), "=r"(w[2 * i + 1])
                   : "r"(at[i] + down));
    }
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = (misalignment ^ misalignment >> 1) & 1 ? w[i + 1] : w[i];
    const uint32_t bits = misalignment % 2 * 16;
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
  }
};

// Elements [begin, end) of an aligned vector, stored as pieces of 8, 4 and 2 bytes. Lanes have different
// parts, so stores are predicated and nothing branches.
class VectorPart {
 public:
  VectorPart() = default;
  __device__ __forceinline__ VectorPart(int begin, int end) : begin_(begin), last_(end - 1) {
    if (begin >= end) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) words_ |= (begin <= 2 * i && 2 * i + 2 <= end) << i;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pair = words_ >> 2 * i & 3;
      stores_ |= (pair == 3) << i | (pair == 1 || pair == 2) << (2 + i);
    }
    stores_ |= begin % 2 << 4 | end % 2 << 5;
  }
  __device__ __forceinline__ void store_if(bool on, uint8_t* to, uint4 v) const {
    const int stores = on ? stores_ : 0;
    store_global_if(stores & 1, to, make_uint2(v.x, v.y));
    store_global_if(stores & 2, to + 8, make_uint2(v.z, v.w));
    store_global_if(stores & 4, to + (words_ & 2 ? 4 : 0), words_ & 2 ? v.y : v.x);
    store_global_if(stores & 8, to + (words_ & 8 ? 12 : 8), words_ & 8 ? v.w : v.z);
    const auto word_of = [&](int element) {
      const uint32_t low = element & 2 ? v.y : v.x, high = element & 2 ? v.w : v.z;
      return element & 4 ? high : low;
    };
    store_global_if(stores & 16, to + 2 * begin_, static_cast<uint16_t>(word_of(begin_) >> 16));
    store_global_if(stores & 32, to + 2 * last_, static_cast<uint16_t>(word_of(last_)));
  }

 private:
  int begin_ = 0, last_ = 0, words_ = 0, stores_ = 0;
};

// Stages kStrips strips side by side and writes their 16 rows. kTurned: as row_of_line() has it.
template <int kCols, int kStrips, bool kTurned>
class RowWriter {
  using Lines = StagedRows<kStrips * kCols>;
  static constexpr int kLanes = Lines::kUnits, kRows = 32 / kLanes;
  // Rows that a lane writes before its misalignments repeat: rows 8 apart have the same.
  static constexpr int kDifferent = kRows < 8 ? 8 / kRows : 1;

 public:
  // `pitch` is in elements.
  __device__ __forceinline__ RowWriter(int64_t pitch, uint32_t staging)
      : pitch_(2 * pitch),
        staging_(staging),
        lane_(static_cast<int>(threadIdx.x % 32)),
        fill_(staging + Lines::at(row_of_line<kTurned>(lane_ / 8 % 2, lane_ % 8), lane_ / 16)) {}

  // Prepares for rows of which `cols` >= 1 elements exist. The first begins at `d`, or a multiple of 16 bytes
  // from there.
  __device__ __forceinline__ void start(const uint16_t* d, int cols) {
    first_misalignment_ = misalignment_of(d);
    cols_ = cols;
    find_vectors();
    find_ends();
  }
  // Stages a lane's values of a strip, in the accumulators' order; pack(lo, hi) makes two of them a pair.
  template <typename Pack>
  __device__ __forceinline__ void fill(int strip, const float (&x)[kCols / 2], Pack&& pack) const {
#pragma unroll
    for (int j = 0; j < kCols; j += 16) {
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = pack(x[j / 2 + 2 * i], x[j / 2 + 2 * i + 1]);
      store_matrix_x4(fill_ ^ 2 * (strip * kCols + j), r);
    }
  }

  // Writes what is staged to `rows` rows from `d` on. The loop covers kDifferent rows of a lane at a time and
  // no more, as longer code would have to be fetched anew for every strip.
  __device__ __forceinline__ void write(uint16_t* d, int rows) const {
    uint8_t* const to = reinterpret_cast<uint8_t*>(d);
#pragma unroll 1
    for (int first = 0; first < 16; first += kDifferent * kRows) {
      uint4 v[kDifferent];
#pragma unroll
      for (int i = 0; i < kDifferent; ++i) v[i] = vectors_[i].load(first * Lines::kLine);
      uint8_t* const there = to + (offset_ + first * pitch_);
#pragma unroll
      for (int i = 0; i < kDifferent; ++i) {
        store_global_if((whole_ & 1 << i) && lane_ / kLanes + i * kRows + first < rows,
                        there + (i * kRows * pitch_ - 2 * vectors_[i].misalignment), v[i]);
      }
    }
    end_part_.store_if(lane_ % 16 < rows, to + end_offset_, end_vector_.load(0));
  }

 private:
  __device__ __forceinline__ int misalignment(int row) const {
    return (first_misalignment_ + row * static_cast<int>(pitch_ / 2)) & 7;
  }

  __device__ __forceinline__ void find_vectors() {
    const int unit = lane_ % kLanes;
    offset_ = lane_ / kLanes * pitch_ + 16 * unit;
#pragma unroll
    for (int i = 0; i < kDifferent; ++i) {
      const int row = lane_ / kLanes + i * kRows, skew = misalignment(row);
      vectors_[i] = ShiftedVector(staging_ + Lines::at(row, unit - 1), staging_ + Lines::at(row, unit), skew);
    }
  }

  // A row's first vector is written in pieces where the row begins within it, and its last where the row ends
  // within it. `skew` is the row's misalignment.
  __device__ __forceinline__ void find_ends() {
    const int unit = lane_ % kLanes;
    whole_ = 0;
#pragma unroll
    for (int i = 0; i < kDifferent; ++i) {
      const int skew = misalignment(lane_ / kLanes + i * kRows), begin = 8 * unit - skew;
      whole_ |= (begin >= 0 && begin + 8 <= cols_) << i;
    }
    // Lanes 0 to 15 write the first vectors of the 16 rows, lanes 16 to 31 the last ones.
    const bool tail = lane_ >= 16;
    const int row = lane_ % 16, skew = misalignment(row), end = skew + cols_, end_unit = tail ? end / 8 : 0;
    const bool both = skew > 0 && end_unit == 0;  // it is the first vector, too
    end_part_ = tail ? VectorPart(0, both ? 0 : end % 8) : VectorPart(skew, skew > 0 ? min(end, 8) : 0);
    end_vector_ =
        ShiftedVector(staging_ + Lines::at(row, end_unit - 1), staging_ + Lines::at(row, end_unit), skew);
    end_offset_ = row * pitch_ + 2 * (8 * end_unit - skew);
  }

  int64_t pitch_;  // bytes
  uint32_t staging_;
  int lane_;
  uint32_t fill_;
  int first_misalignment_, cols_;
  ShiftedVector vectors_[kDifferent];
  int64_t offset_;  // bytes from `d` to the first of them, before its misalignment is subtracted
  int whole_;       // a bit for each of them: written as a whole
  ShiftedVector end_vector_;
  int64_t end_offset_;
  VectorPart end_part_;
};

}  // namespace jaxgemm::cuda::sm90
