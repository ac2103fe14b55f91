// From accumulators to rows of 16-bit elements that begin anywhere in memory, one warp at a time.
//
// A vector of D is made of the ends of two that are staged. Only the ends of rows are written in smaller
// parts. Few warps run, and each waits for its own instructions, so that there should be few, and many that
// are independent: strips are written two at a time, and `start` works out what a lane has to know of both.
#pragma once

#include "../device/pair.cuh"
#include "../device/ptx.cuh"

namespace jaxgemm::cuda::sm90 {

// How far an element is from the aligned vector that it lies in.
__device__ __forceinline__ int elements_in(const uint16_t* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) / 2 % 8);
}

// Lines of shared memory of kColumns elements, one for each of 16 rows. Their 16-byte units are XORed with
// the row, so that 8 rows' fall in different banks.
template <int kColumns>
struct StagedRows {
  static constexpr int kLine = 2 * kColumns, kUnits = kLine / 16;  // bytes, and vectors
  static __device__ __forceinline__ uint32_t at(int row, int unit) {
    constexpr int kRowsOfBanks = kLine < 128 ? 128 / kLine : 1;
    const int turn = row / kRowsOfBanks % (kUnits < 8 ? kUnits : 8);
    return row * kLine + 16 * ((unit & (kUnits - 1)) ^ turn);
  }
};

// The 16 bytes that a row which begins `late` elements late has in place of the staged vector at `vector`,
// with the one at `before` before it. They are part of three pieces of 8 bytes.
struct Realigned {
  uint32_t at[3];
  int late;

  Realigned() = default;
  __device__ __forceinline__ Realigned(uint32_t before, uint32_t vector, int late) : late(late) {
    at[0] = late == 0 ? vector : before + (late <= 4 ? 8 : 0);
    at[1] = late <= 4 ? vector + (late == 0 ? 8 : 0) : before + 8;
    at[2] = vector + (late <= 4 ? 8 : 0);
  }

  // `down` is the distance of the line from this one.
  __device__ __forceinline__ uint4 load(uint32_t down) const {
    uint32_t w[6];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(w[2 * i]), "=r"(w[2 * i + 1])
                   : "r"(at[i] + down));
    }
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = (late ^ late >> 1) & 1 ? w[i + 1] : w[i];
    const uint32_t bits = late % 2 * 16;
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
  }
};

// Elements [begin, end) of an aligned vector: whole pairs of words, whole words, and the halves of those that
// the part begins or ends within. Every lane has another part, so nothing here is a branch.
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

// Writes 16 rows of kStrips strips side by side, which are staged together.
template <int kCols, int kStrips>
class RowWriter {
  using Lines = StagedRows<kStrips * kCols>;
  static constexpr int kLanes = Lines::kUnits, kRows = 32 / kLanes;
  // Rows 8 apart are a multiple of 16 bytes apart.
  static constexpr int kDifferent = kRows < 8 ? 8 / kRows : 1;

 public:
  // `pitch` is in elements.
  __device__ __forceinline__ RowWriter(int64_t pitch, uint32_t staging)
      : pitch_(2 * pitch),
        staging_(staging),
        lane_(static_cast<int>(threadIdx.x % 32)),
        fill_(staging + Lines::at(lane_ / 8 % 2 * 8 + lane_ % 8, lane_ / 16)) {}

  // For rows of which `cols` elements exist, one at least, and the first of which begins at `d`, or at a
  // multiple of 16 bytes from there.
  __device__ __forceinline__ void start(const uint16_t* d, int cols) {
    phase_ = elements_in(d);
    cols_ = cols;
    find_vectors();
    find_ends();
  }
  // Stages a lane's values of a strip, in the accumulators' order.
  template <typename Out>
  __device__ __forceinline__ void fill(int strip, const float (&x)[kCols / 2]) const {
#pragma unroll
    for (int j = 0; j < kCols; j += 16) {
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = pack<Out>(x[j / 2 + 2 * i], x[j / 2 + 2 * i + 1]);
      store_matrix_x4(fill_ ^ 2 * (strip * kCols + j), r);
    }
  }

  // Writes what is staged to `rows` rows from `d` on, as many at a time as differ in where vectors begin:
  // more code would have to be fetched anew for every strip.
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
                        there + (i * kRows * pitch_ - 2 * vectors_[i].late), v[i]);
      }
    }
    end_part_.store_if(lane_ % 16 < rows, to + end_offset_, end_vector_.load(0));
  }

 private:
  // How many elements late a row begins.
  __device__ __forceinline__ int late_of(int row) const {
    return (phase_ + row * static_cast<int>(pitch_ / 2)) & 7;
  }

  __device__ __forceinline__ void find_vectors() {
    const int unit = lane_ % kLanes;
    offset_ = lane_ / kLanes * pitch_ + 16 * unit;
#pragma unroll
    for (int i = 0; i < kDifferent; ++i) {
      const int row = lane_ / kLanes + i * kRows, late = late_of(row);
      vectors_[i] = Realigned(staging_ + Lines::at(row, unit - 1), staging_ + Lines::at(row, unit), late);
    }
  }

  // The first vector of a row is not the tile's alone where the row begins within it, nor is the last one.
  __device__ __forceinline__ void find_ends() {
    const int unit = lane_ % kLanes;
    whole_ = 0;
#pragma unroll
    for (int i = 0; i < kDifferent; ++i) {
      const int late = late_of(lane_ / kLanes + i * kRows), begin = 8 * unit - late;
      whole_ |= (begin >= 0 && begin + 8 <= cols_) << i;
    }
    // One lane a row for what begins within a vector, another for what ends within one.
    const bool tail = lane_ >= 16;
    const int row = lane_ % 16, late = late_of(row), end = late + cols_, end_unit = tail ? end / 8 : 0;
    const bool both = late > 0 && end_unit == 0;  // and the first lane's
    end_part_ = tail ? VectorPart(0, both ? 0 : end % 8) : VectorPart(late, late > 0 ? min(end, 8) : 0);
    end_vector_ =
        Realigned(staging_ + Lines::at(row, end_unit - 1), staging_ + Lines::at(row, end_unit), late);
    end_offset_ = row * pitch_ + 2 * (8 * end_unit - late);
  }

  int64_t pitch_;  // bytes
  uint32_t staging_;
  int lane_;
  uint32_t fill_;
  int phase_, cols_;
  Realigned vectors_[kDifferent];
  int64_t offset_;  // bytes to the first of them, were it not late
  int whole_;       // a bit for each of them
  Realigned end_vector_;
  int64_t end_offset_;
  VectorPart end_part_;
};

}  // namespace jaxgemm::cuda::sm90
