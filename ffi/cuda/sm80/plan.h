// What one problem becomes: a tile shape, a split of K and operands to repack. A pure function of the
// problem, so that the workspace asked for while tracing and the launch agree, and the result's bits do not
// depend on the device.
#pragma once

#include "../planning.h"
#include "configs.h"

namespace jaxgemm::cuda::sm80 {

// One operand as rows of `inner` contiguous elements, `outer` of them in each product.
struct PlannedOperand {
  int64_t inner = 0, outer = 0, ld = 0;
  int64_t batch_stride[2] = {0, 0};
  int width = 1;        // elements (8, 2 or 1) of the widest access that every row, as given, is aligned to
  bool repack = false;  // into rows that 16-byte copies can address; ld and batch_stride are the copy's
  size_t workspace_offset = 0;  // of the copy
};

struct Plan {
  int tile = 0;      // of kTiles
  bool wide = true;  // otherwise kNarrowTile
  // The last `split_tiles` tiles are split along K: all tiles when there are few, otherwise those of an
  // incomplete round.
  int splits = 1;
  int64_t split_tiles = 0;
  PlannedOperand a, b;
  size_t partial_offset = 0;  // of the split tiles' partial results, fp32
  size_t workspace = 0;

  const TileConfig& tile_config() const { return wide ? kTiles[tile] : kNarrowTile; }
};

// Operands are assumed to begin at multiples of 16 bytes. A launch whose operands do not takes narrow copies
// and splits nothing.
Plan make_plan(const GemmProblem& problem);

// Modelled microseconds of the product alone.
double modelled_time(const GemmProblem& problem, const Plan& plan);
// Blocks of the plan's tile that run at a time on the model's machine.
int64_t modelled_slots(const Plan& plan);

int64_t tile_count(const GemmProblem& problem, const TileConfig& tile);

}  // namespace jaxgemm::cuda::sm80
