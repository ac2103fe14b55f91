// How a problem is run: tile, cuts, copy modes and repacked operands, by a cost model and nothing else. Host
// code only.
#pragma once

#include <span>
#include <vector>

#include "../../kernel.h"
#include "copy.cuh"
#include "tiles.cuh"

namespace jaxgemm::cuda::simt {

// What a plan needs to know of a chip. The defaults are the reference chip: the workspace must be known
// before the device is, so its bound is that chip's.
struct Chip {
  int multiprocessors = 132;
  size_t shared_bytes = 228 << 10;  // of one multiprocessor
};

// The first `whole` output tiles take a block each. The rest is cut into `ranges` equal runs of stages, a
// block each, and a second kernel sums up the tiles that were cut: see work.cuh. With ranges == 0 all tiles
// are whole. Where `ranges` is a multiple of the number of cut tiles, this is plain split-K.
struct Plan {
  int tile = 0;  // index into tiles_for(p)
  int64_t whole = 0;
  int64_t ranges = 0;
  unsigned chunk = 0;  // stages, see chunk_stages
  Load load_a = Load::kRows, load_b = Load::kRows;
  bool repack_a = false, repack_b = false;  // before the product: see repack_rows.cuh
  double cycles = 0;                        // the model's estimate
};

// A launch's workspace: the partial sums, then the repacked operands at byte offsets `a` and `b`.
struct Workspace {
  size_t a = 0, b = 0, total = 0;
};
Workspace workspace_of(const GemmProblem& p, const Plan& plan);

// How op(A) lies once it is repacked, and op(B).
Matrix repacked_a(const GemmProblem& p);
Matrix repacked_b(const GemmProblem& p);

constexpr unsigned kNoChunks = ~0u;

// Whether shared memory has room for sums beside the stages. Without it, tiles with Home::kShared have one
// chunk of K.
constexpr bool has_room_for_chunks(const Chip& chip) { return chip.shared_bytes >= (160 << 10); }

std::span<const TileInfo> tiles_for(const GemmProblem& p);

// The tile that the option asks for, counted from 1; 0 for none, or one that the types do not have.
int64_t tile_option(const GemmProblem& p);

// An upper bound on a launch's workspace, the same on every device.
size_t workspace_bytes(const GemmProblem& p);

// The tiles, or the one asked for, with the time expected of each with its best cuts; the fastest first.
std::vector<Candidate> rank_tiles(const GemmProblem& p, int multiprocessors);

// `a` and `b` decide, with the strides, whether 16-byte copies are possible.
Plan make_plan(const GemmProblem& p, const void* a, const void* b, const Chip& chip);

}  // namespace jaxgemm::cuda::simt
