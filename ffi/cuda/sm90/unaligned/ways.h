// Operands and results whose rows are unaligned: what is done about them, and the layouts that it takes.
//
// The copy engine addresses rows that are a multiple of 16 bytes (8 elements) apart, and boxes that begin at
// such a multiple. A row pitch that is no multiple of 8 elements is called unaligned. There are four ways
// around it, three for operands and one for results; the cost model decides between those for operands.
//
//  Copy (repack.cu). A kernel copies the operand into the workspace, to rows that begin at lines of L2, and
//    the product loads the copy. Every operand can be copied, in every layout and with every tile: it is the
//    way that is always there, at the price of writing and reading the operand once more.
//  Shift on the way (realign.cuh; tiles with `realigns`; option unaligned=2). y is loaded as it lies, and
//    eight warps more shift it in registers on its way into the ring of stages. Each tile shifts anew what
//    it loads, so this is for a large y and few rows of x.
//  Every eighth row (every_eighth.cuh; tiles with `every_eighth`; option every_eighth=2). Rows of x that are
//    8 apart are a multiple of 16 bytes apart, whatever the pitch, so a tile has every eighth row of x and
//    the copy engine loads it where it lies. It needs a row-major A and B, no batch and no swap, and is for
//    an A that takes long to copy.
//  Result rows (result_rows.cuh). Where n is no multiple of 8 the copy engine cannot write D. A warp stages
//    strips of results in shared memory and writes whole 16-byte vectors along D's rows, and the ends of rows
//    in smaller pieces. Every tile can do this. When operands are swapped or D is fp32, elements.cuh stores
//    instead.
//
// An element's `misalignment` is how many elements after a multiple of 8 (or of another power of two) it
// lies.
#pragma once

#include <cstdint>

#include "../../../arithmetic.h"
#include "../configs.h"

namespace jaxgemm::cuda::sm90 {

// Every eighth row: layout.

// Rows of clusters of `cluster` tiles that `rows` rows of x make. A tile of every eighth row has rows first,
// first + 8, first + 16, ..., for one `first` of 0 to 7. Each of these 8 classes has rows / 8 rows, and the
// first rows % 8 classes one row more, for which they may need a row of tiles more.
constexpr int64_t unit_rows(const TileConfig& t, int64_t rows, int cluster) {
  const int64_t unit = int64_t(t.result_m()) * cluster;
  if (!t.every_eighth) return ceil_div(ceil_div(rows, t.result_m()), cluster);
  const int64_t rest = rows % (8 * unit);
  return rows / (8 * unit) * 8 + (rest < 8 ? rest : 8);
}

// All rows of one class begin as many elements after a multiple of this: 64 elements, which are a line of L2,
// where 8 * pitch is a multiple of 64, and else the largest power of two that divides 8 * pitch. Loads of the
// class, and its steps of k, begin at such a multiple.
constexpr int64_t lowest_bit(int64_t x) { return x & -x; }
constexpr int every_eighth_align(int64_t pitch) {
  return static_cast<int>(lowest_bit(pitch) < 8 ? 8 * lowest_bit(pitch) : 64);
}
// Steps of k of the class that begins latest after such a multiple.
constexpr int64_t every_eighth_steps(int64_t k, int64_t pitch) {
  const int64_t align = every_eighth_align(pitch), apart = lowest_bit(pitch);
  return ceil_div(k + align - (apart < align ? apart : align), kStepK16);
}

// Shift on the way: layout.

// A raw stage holds a stage of y as the copy engine brings it, before it is shifted. Its lines are rows of y
// (K-major), or lines along y's rows, one for each k (MN-major). They come in 8 boxes of every eighth line.
// Each line has one vector of 16 bytes more than it fills, as it may begin anywhere in its first vector.
struct RawStage {
  int lines, vectors;  // in a stage; in a line
  int line_bytes, box_lines, box_bytes, bytes;

  constexpr RawStage(const TileConfig& t, bool mn_major)
      : lines(mn_major ? kStepK16 : t.tile_n),
        vectors((mn_major ? t.tile_n : kStepK16) / 8 + 1),
        line_bytes(16 * vectors),
        box_lines(lines / 8),
        box_bytes(box_lines * line_bytes),
        bytes(8 * box_bytes) {}
};

// Tiles that realign have two rings. The ring of stages is short: it holds x, which is small and comes from
// L2, and what has been shifted. The rest of shared memory holds raw stages, whose bytes come from memory.
constexpr int kRealignRingStages = 4;
constexpr int realign_raw_stages(const TileConfig& t, int stage_bytes, bool mn_major) {
  const int fit = (t.room() - kRealignRingStages * stage_bytes) / RawStage(t, mn_major).bytes;
  return fit < 12 ? fit : 12;
}
// Teams of warps shift stages in turn, as one team takes longer for a stage than multiplying it does.
constexpr int kRealignTeams = 2, kRealignTeamWarps = 4, kRealignWarps = kRealignTeams * kRealignTeamWarps;

}  // namespace jaxgemm::cuda::sm90
