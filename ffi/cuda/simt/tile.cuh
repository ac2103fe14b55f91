// The shape of one simt kernel: block tile, warp tile, thread tile, stages and slices, all compile-time.
//
// A warp's 32 lanes form a kLanesM x kLanesN grid. A thread's rows come in groups of kVec neighbours (16
// bytes, one LDS.128), the groups kLanesM * kVec apart, and its columns likewise, so a warp reads each
// fragment as one contiguous run of shared memory and writes contiguous runs of D.
#pragma once

#include "../device/types.cuh"

namespace jaxgemm::cuda::simt {

// Where sums over K wait for the next chunk's: see home.cuh.
enum class Home { kNone, kRegisters, kShared };

// BM x BN outputs per block, BK of K per stage. WM x WN outputs per warp, LM x (32 / LM) lanes.
// Slices: groups of warps that compute the same outputs, each over its own part of every stage's K; their
// sums are added up in shared memory. A thread of a small tile then has as many outputs, and so reuses a
// fragment as often, as one of a large tile.
// MinBlocks: how many blocks per multiprocessor the registers must allow.
template <typename Acc_, int BM_, int BN_, int BK_, int WM_, int WN_, int LM_, int Stages_, int Slices_,
          int MinBlocks_>
struct Tile {
  using Acc = Acc_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_;
  static constexpr int kStages = Stages_, kSlices = Slices_, kMinBlocks = MinBlocks_;
  static constexpr int kVec = 16 / sizeof(Acc);
  static constexpr int kLanesM = LM_, kLanesN = 32 / LM_;
  static constexpr int TM = WM / kLanesM, TN = WN / kLanesN;
  static constexpr int kWarpsM = BM / WM, kWarpsN = BN / WN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN * kSlices;
  static constexpr int kSliceK = BK / kSlices;

  // One vector of padding makes the transposing copies' writes (8 of k by 4 rows a warp) and the
  // accumulators' 128-bit writes free of bank conflicts, and keeps rows 16-byte aligned.
  static constexpr int kPitchA = BM + kVec, kPitchB = BN + kVec, kPitchD = BN + kVec;
  static constexpr int kStageA = BK * kPitchA, kStageB = BK * kPitchB;
  static constexpr int kSliceD = BM * kPitchD;

  // Registers have room for a second set of sums where they hold eight warps at most.
  static constexpr Home kHome = sizeof(Acc) == 8               ? Home::kNone
                                : kThreads * kMinBlocks <= 256 ? Home::kRegisters
                                                               : Home::kShared;
  static constexpr size_t kHomeBytes = kHome == Home::kShared ? sizeof(Acc) * TM * TN * kThreads : 0;
  static constexpr size_t kPipelineBytes = sizeof(Acc) * kStages * (kStageA + kStageB);
  static constexpr size_t kEpilogueBytes = sizeof(Acc) * kSlices * kSliceD;
  static constexpr size_t shared_bytes(bool chunked) {
    const size_t loop = kPipelineBytes + (chunked ? kHomeBytes : 0);
    return loop > kEpilogueBytes ? loop : kEpilogueBytes;
  }

  static_assert(TM % kVec == 0 && TN % kVec == 0 && BM % WM == 0 && BN % WN == 0);
  static_assert(BK % kSlices == 0 && kSliceK >= 2 && kSliceK % 2 == 0,
                "fragments alternate between two buffers");
  static_assert(kStages >= 2);
};

// This thread's place in the block. Lanes' bits alternate between the two directions (n m n n m for 4 x 8):
// then neighbouring lanes agree in one fragment's address, and those two apart in the other's, which is what
// lets the hardware serve a warp's 128-bit loads in two passes instead of four.
template <typename Tile>
struct Place {
  int slice, row, col;  // row and column of the first of this thread's outputs within the tile
  __device__ __forceinline__ explicit Place(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    constexpr int kWarps = Tile::kWarpsM * Tile::kWarpsN;
    slice = warp / kWarps;
    const int warp_m = warp % kWarps / Tile::kWarpsN, warp_n = warp % Tile::kWarpsN;
    int lane_m, lane_n;
    if constexpr (Tile::kLanesM == 4) {
      lane_m = (lane >> 1 & 1) | (lane >> 3 & 2);
      lane_n = (lane & 1) | (lane >> 1 & 6);
    } else if constexpr (Tile::kLanesM == 8) {
      lane_m = (lane >> 1 & 1) | (lane >> 2 & 6);
      lane_n = (lane & 1) | (lane >> 1 & 2);
    } else {
      lane_m = lane / Tile::kLanesN;
      lane_n = lane % Tile::kLanesN;
    }
    row = warp_m * Tile::WM + lane_m * Tile::kVec;
    col = warp_n * Tile::WN + lane_n * Tile::kVec;
  }
};

}  // namespace jaxgemm::cuda::simt
