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
  // Blocks of the most warps that a multiprocessor has registers for: two of the larger tile where loads are
  // neither realigned nor alike for both operands.
  constexpr int blocks(Major major_a, Major major_b, bool aligned) const {
    return m < 32 || (aligned && major_a != major_b) ? 2 : 1;
  }
};

// By the value of the option `tile`, less one.
constexpr TileConfig kTiles[] = {{16, 32}, {32, 32}};
constexpr int kTileCount = sizeof(kTiles) / sizeof(kTiles[0]);

constexpr int kModelSms = 132;  // multiprocessors of the chip that the cost model was fitted on

constexpr int kPitch = 36;  // of a tile's rows in shared memory

constexpr int kChunk = 32;  // of k, that a warp loads at a time

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

inline Major major_a(const GemmProblem& p) { return p.a.transposed ? Major::kMN : Major::kK; }
inline Major major_b(const GemmProblem& p) { return p.b.transposed ? Major::kK : Major::kMN; }

// Whether both operands are made of 16-byte vectors, if they begin with one.
bool made_of_vectors(const GemmProblem& p);

struct RankedConfig {
  Config config;
  double microseconds;  // by the model in plan.cc
};

// The configurations that can run a problem, the cheapest first, with the options that it fixes kept. Empty
// when nothing matches.
std::vector<RankedConfig> rank_configs(const GemmProblem& problem, int sm_count);

}  // namespace jaxgemm::cuda::direct
