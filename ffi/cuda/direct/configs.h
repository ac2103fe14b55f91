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

constexpr int kChunk = 32;    // of k, that a warp loads at a time
constexpr int kMaxDepth = 4;  // chunks of a warp on their way

// How a warp goes through its chunks. `depth` of them are on their way at a time; where it has no more than
// that there is no loop, which spares the instructions of the next loads and the registers of their
// addresses.
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

// In one wave of blocks warps have registers for many chunks on their way. In more it is other blocks that
// are busy while one waits.
constexpr Flow loop(const TileConfig& t, bool aligned, bool one_wave) {
  if (!aligned) return {one_wave ? 2 : 1, true};
  return {one_wave ? (t.m < 32 ? 4 : 3) : 2, true};
}

// For `steps` chunks of a warp, which is what the first has. Compiled are those that this can give.
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

// What is done to sums. Packed: alpha is all there is, and results of 16 bits are stored in aligned groups of
// four; activated: these, with a bias and one of the usual activations; plain: alpha is all there is. What
// else there may be is long, and instructions are cold when a kernel starts, so each has code of its own.
enum class Finish : uint8_t { kPacked, kActivated, kPlain, kFull };

// Blocks along the second and third extent of a grid: rows of tiles, and the batch.
constexpr int64_t kMaxBlocks = 65535;

// What takes the place of a tile that operands do not fit: the same sums, in the same order.
constexpr int kFallback = 1;

// Positions in GemmProblem::config. 0 leaves the choice to the model.
enum Option { kTile, kWarps, kOptionCount };

struct Config {
  int tile = 0;   // of kTiles
  int warps = 1;  // of a block, each with its own chunks of K
};

// Whether both operands are made of 16-byte vectors, if they begin with one.
bool made_of_vectors(const GemmProblem& p);

// What is done to sums, where the result and the bias begin at a multiple of 8 bytes and where they do not.
Finish finish_of(const GemmProblem& p, bool aligned);

// How warps go through K, with the tile and the alignment that there are.
Flow flow_of(const GemmProblem& p, const Config& config, bool aligned, int sm_count);

struct RankedConfig {
  Config config;
  double microseconds;  // by the model in plan.cc
};

// The configurations that can run a problem, the cheapest first, with the options that it fixes kept.
std::vector<RankedConfig> rank_configs(const GemmProblem& problem, int sm_count);

}  // namespace jaxgemm::cuda::direct
