// How a problem is run: tile, split of K and copy modes, by a cost model and nothing else. Host code only.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "../../kernel.h"
#include "copy.cuh"
#include "tiles.cuh"

namespace jaxgemm::cuda::simt {

// The first `whole` output tiles take all of K each; the rest, which would keep only a part of the chip busy,
// are split along K and summed up by a second kernel. whole == 0 is plain split-K, splits == 1 none.
struct Plan {
  int tile = 0;  // index into tiles_for(p)
  int64_t whole = 0;
  int64_t splits = 1;   // parts of K of each remaining tile
  int64_t split_k = 0;  // values of k per part, a multiple of the tile's BK
  Load load_a = Load::kRows, load_b = Load::kRows;
  double cycles = 0;  // the model's estimate
};

std::span<const TileInfo> tiles_for(const GemmProblem& p);

// The tile that the option asks for, counted from 1; 0 for none, or one that the types do not have.
int64_t tile_option(const GemmProblem& p);

// An upper bound on a launch's workspace, the same on every device.
size_t workspace_bytes(const GemmProblem& p);

// The tiles, or the one asked for, with the time expected of each at its best split; the shortest first.
std::vector<Candidate> rank_tiles(const GemmProblem& p, int multiprocessors);

// `a` and `b` decide, with the strides, whether 16-byte copies are possible.
Plan make_plan(const GemmProblem& p, const void* a, const void* b, int multiprocessors);

}  // namespace jaxgemm::cuda::simt
