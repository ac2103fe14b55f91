// The compiled tile shapes of the direct kernel, and the choice among them. Host and device.
#pragma once

#include <cstdint>
#include <vector>

#include "../../arithmetic.h"
#include "../../kernel.h"
#include "../device/major.h"

namespace jaxgemm::cuda::direct {

constexpr int kMaxWarps = 8;  // of a block

// A block's tile of D, which each of its warps computes over its own part of K.
struct TileConfig {
  int m, n;

  // Rows of A that lie along m are loaded 32 at a time.
  constexpr bool fits(Major major_a) const { return major_a == Major::kK || m % 32 == 0; }
  constexpr int groups() const { return m * n / 128; }  // of four neighbouring results of a row, a lane
};

// By the value of the option `tile`, less one.
constexpr TileConfig kTiles[] = {{16, 32}, {32, 32}};
constexpr int kTileCount = sizeof(kTiles) / sizeof(kTiles[0]);

constexpr int kChunk = 32;    // values of k that a warp loads at a time
constexpr int kMaxDepth = 4;  // chunks that a warp has in flight, at most

// How a warp goes through its chunks. `depth` of them are in flight at a time. Where it has no more chunks
// than that it runs code without a loop, which needs no instructions and no registers for further loads.
struct Flow {
  int depth = 1;
  bool loops = false;

  constexpr bool operator==(const Flow&) const = default;
  // Registers of a lane for chunks on their way; vectors of any alignment lie in two each.
  constexpr int registers(const TileConfig& t, bool aligned) const {
    return depth * (t.m + t.n) / (aligned ? 2 : 1);
  }
  // Blocks of the most warps that a multiprocessor has registers for.
  constexpr int blocks(const TileConfig& t, bool aligned, Major major_a, Major major_b) const {
    if (registers(t, aligned) >= 96) return 1;
    return !loops || t.m < 32 || (aligned && major_a != major_b) ? 2 : 1;
  }
};

// Where there is one wave of blocks, warps have registers for many chunks in flight. Where there are more,
// other blocks of the multiprocessor run while one waits, so few are enough.
constexpr Flow loop(const TileConfig& t, bool aligned, bool one_wave) {
  if (!aligned) return {one_wave ? 2 : 1, true};
  return {one_wave ? (t.m < 32 ? 4 : 3) : 2, true};
}

// The flow for `steps` chunks of a warp, as many as the first warp has. Kernels are compiled for all flows
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

// What is done to sums. Each has code of its own: when a kernel starts its instructions are not cached, so
// the code that runs should lie together.
//  kPacked: times alpha, to 16-bit results that are stored in aligned groups of four.
//  kActivated: the same with a bias and an activation of short code.
//  kPlain: times alpha, to any results.
//  kFull: everything else.
enum class Finish : uint8_t { kPacked, kActivated, kPlain, kFull };

// Blocks along the second and third extent of a grid: rows of tiles, and the batch.
constexpr int64_t kMaxBlocks = 65535;

// The tile that takes the place of one that operands do not fit. Its sums are the same, in the same order.
constexpr int kFallback = 1;

// Positions in GemmProblem::config. 0 leaves the choice to the model.
enum Option { kTile, kWarps, kOptionCount };

struct Config {
  int tile = 0;   // of kTiles
  int warps = 1;  // of a block, each with its own chunks of K
};

// Whether both operands are made of 16-byte vectors, if they begin with one.
bool made_of_vectors(const GemmProblem& p);

// What is done to sums. `aligned`: the result and the bias begin at a multiple of 8 bytes.
Finish finish_of(const GemmProblem& p, bool aligned);

// How warps go through K. `aligned`: both operands are aligned vectors.
Flow flow_of(const GemmProblem& p, const Config& config, bool aligned, int sm_count);

struct RankedConfig {
  Config config;
  double microseconds;  // by the model in plan.cc
};

// The configurations that can run a problem, the cheapest first, with the options that it fixes kept.
std::vector<RankedConfig> rank_configs(const GemmProblem& problem, int sm_count);

}  // namespace jaxgemm::cuda::direct
