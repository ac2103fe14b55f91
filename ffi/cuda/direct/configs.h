// The compiled tile shapes of the direct kernel, and the choice among them. Host and device.
#pragma once

#include <cstdint>
#include <vector>

#include "../../kernel.h"
#include "../device/major.h"

namespace jaxgemm::cuda::direct {

constexpr int kMaxWarps = 8;  // of a block

// A block tile of D. Each warp of the block computes all of it, over the warp's own part of K.
struct TileConfig {
  int m, n;

  // Rows of A that lie along m are loaded 32 at a time.
  constexpr bool fits(Major major_a) const { return major_a == Major::kK || m % 32 == 0; }
  // Runs of four neighbouring results of a row, for each lane of a warp.
  constexpr int runs() const { return m * n / 128; }
};

// Indexed by the option `tile`, less one.
constexpr TileConfig kTiles[] = {{16, 32}, {32, 32}};
constexpr int kTileCount = sizeof(kTiles) / sizeof(kTiles[0]);

constexpr int kChunk = 32;    // values of k that a warp loads at a time
constexpr int kMaxDepth = 4;  // chunks that a warp has in flight, at most

// How a warp goes through its chunks: `depth` of them are in flight at a time. A warp with no more than
// `depth` chunks runs code without a loop, which needs no instructions and no registers for further loads.
struct Flow {
  int depth = 1;
  bool loops = false;

  constexpr bool operator==(const Flow&) const = default;
  // Registers of a lane for the chunks in flight. An unaligned vector is loaded as the two aligned ones
  // around it.
  constexpr int registers(const TileConfig& t, bool aligned) const {
    return depth * (t.m + t.n) / (aligned ? 2 : 1);
  }
  // Blocks of kMaxWarps warps that a multiprocessor has registers for.
  constexpr int blocks(const TileConfig& t, bool aligned, Major major_a, Major major_b) const {
    if (registers(t, aligned) >= 96) return 1;
    return !loops || t.m < 32 || (aligned && major_a != major_b) ? 2 : 1;
  }
};

// If all blocks run in one wave, warps have registers for many chunks in flight. If there are more waves,
// other blocks of the multiprocessor run while one waits for memory, so few chunks in flight are enough.
constexpr Flow loop(const TileConfig& t, bool aligned, bool one_wave) {
  if (!aligned) return {one_wave ? 2 : 1, true};
  return {one_wave ? (t.m < 32 ? 4 : 3) : 2, true};
}

// The flow for `steps` chunks, the most that a warp of the block has. Kernels are compiled for every flow
// that this returns.
constexpr Flow flow_of(const TileConfig& t, bool aligned, bool one_wave, int64_t steps) {
  if (steps <= 2) return {steps <= 1 ? 1 : 2, false};
  if (steps <= 4 && aligned && one_wave) return {4, false};
  return loop(t, aligned, one_wave);
}
constexpr bool compiled(const TileConfig& t, bool aligned, Flow flow) {
  for (const bool one_wave : {false, true}) {
    for (int steps = 1; steps <= 5; ++steps) {
      if (flow == flow_of(t, aligned, one_wave, steps)) return true;
    }
  }
  return false;
}

// The epilogues. Each has code of its own: when a kernel starts, its instructions are not cached, so the code
// that runs should lie together.
//   kPacked: alpha * sum, to 16-bit results that are stored in aligned runs of four.
//   kActivated: kPacked with a bias and an activation of short code.
//   kPlain: alpha * sum, to any results.
//   kFull: everything else.
enum class Finish : uint8_t { kPacked, kActivated, kPlain, kFull };

// The largest extents of a grid along y, which counts rows of tiles, and along z, which counts the batch.
constexpr int64_t kMaxBlocks = 65535;

// The tile that takes the place of one that does not fit A's major. Its sums are the same, in the same order.
constexpr int kFallback = 1;

// Positions in GemmProblem::config. 0 leaves the choice to the model.
enum Option { kTile, kWarps };

struct Config {
  int tile = 0;   // index into kTiles
  int warps = 1;  // of a block; each takes its own chunks of K
};

// Whether every line of both operands is made of whole 16-byte vectors, aligned if the operand itself is.
bool made_of_vectors(const GemmProblem& p);

// The epilogue of a problem. `aligned`: D and the bias begin at a multiple of 8 bytes.
Finish finish_of(const GemmProblem& p, bool aligned);

// The flow of a problem. `aligned`: both operands are made of aligned vectors.
Flow flow_of(const GemmProblem& p, const Config& config, bool aligned, int sm_count);

struct RankedConfig {
  Config config;
  double microseconds;  // by the model in plan.cc
};

// The configurations that can run a problem, the cheapest first, with the options that it fixes kept.
std::vector<RankedConfig> rank_configs(const GemmProblem& problem, int sm_count);

}  // namespace jaxgemm::cuda::direct
