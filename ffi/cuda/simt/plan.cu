// How a problem is run: the plan that costs least by cost.cuh.
#include <algorithm>
#include <bit>

#include "../../arithmetic.h"
#include "cost.cuh"
#include "plan.cuh"

namespace jaxgemm::cuda::simt {
namespace {

constexpr double kL2Bytes = 40e6;         // bytes of operands that stay in the L2
constexpr double kRepackOverhead = 5000;  // clocks: a kernel before this one
constexpr double kMostRepacked = 512e6;   // bytes of workspace for repacked operands

// How many stages a thread adds up before it adds their sum to its sum so far; kNoChunks if all of them. An
// eighth of K costs little for every K. Chunks of 256 values make the error of K = 8192 that of K = 288: 256
// terms of a chunk and 32 chunks. Chunks follow from K, the tile and the chip's room for sums in shared
// memory. A thread of a tile with slices has fewer values to add to a sum, so that shorter chunks are cheap.
unsigned chunk_stages(const GemmProblem& p, const TileInfo& t, const Chip& chip) {
  const auto eighth = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(p.k) / 8));
  const int64_t values = std::clamp<int64_t>(eighth, t.slices > 1 ? 32 : 64, 256);
  const bool home = t.home == Home::kRegisters || (t.home == Home::kShared && has_room_for_chunks(chip));
  if (!home || p.k <= values * t.slices) return kNoChunks;
  return static_cast<unsigned>(values / t.slice_k());
}

int64_t resident_blocks(const TileInfo& t, const Chip& chip, bool chunked) {
  constexpr size_t kReserved = 1024;  // by the system, for each block
  const auto fit = static_cast<int64_t>(chip.shared_bytes / (t.shared_bytes[chunked] + kReserved));
  return std::clamp<int64_t>(fit, 1, t.blocks_per_sm);
}

int64_t tile_total(const GemmProblem& p, const TileInfo& t) {
  return ceil_div(p.m, t.bm) * ceil_div(p.n, t.bn) * p.batch_count();
}

size_t partial_bytes(const GemmProblem& p, const Plan& plan) {
  if (plan.ranges == 0) return 0;
  const TileInfo& t = tiles_for(p)[plan.tile];
  // The number of slots: see Cuts::slot.
  const int64_t slots = plan.ranges + tile_total(p, t) - plan.whole - 1;
  return static_cast<size_t>(slots) * t.bm * t.bn * (16 / t.vec);
}

// How an operand lies once it is repacked. Products of the batch that share it share its copy.
Matrix repacked(const GemmProblem& p, const Matrix& x, int64_t extent, bool transposed) {
  Matrix y{.dtype = x.dtype, .transposed = transposed};
  y.ld = round_up(extent, static_cast<int64_t>(16 / dtype_bytes(x.dtype)));
  if (x.batch_stride[1]) y.batch_stride[1] = p.k * y.ld;
  if (x.batch_stride[0]) y.batch_stride[0] = p.k * y.ld * (x.batch_stride[1] ? p.batch[1] : 1);
  return y;
}

size_t bytes_of(const GemmProblem& p, const Matrix& x) {
  const int64_t copies = (x.batch_stride[0] ? p.batch[0] : 1) * (x.batch_stride[1] ? p.batch[1] : 1);
  return static_cast<size_t>(p.k * x.ld * copies) * dtype_bytes(x.dtype);
}

Load load_for(const Matrix& x, bool rows_contiguous, int64_t extent, const void* data, const TileInfo& any) {
  if (dtype_bytes(x.dtype) < 4) return Load::kConvert;
  if (!rows_contiguous) return Load::kTranspose;
  const int64_t v = any.vec;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0 && x.ld % v == 0 &&
                       x.batch_stride[0] % v == 0 && x.batch_stride[1] % v == 0 && extent % v == 0;
  return aligned ? Load::kRows16 : Load::kRows;
}

struct Loads {
  Load a, b;
};

// Clocks to repack the plan's operands, each read and written once.
double repack_cycles(const GemmProblem& p, const Plan& plan) {
  double bytes = 0;
  if (plan.repack_a) bytes += static_cast<double>(bytes_of(p, repacked_a(p)));
  if (plan.repack_b) bytes += static_cast<double>(bytes_of(p, repacked_b(p)));
  return bytes > 0 ? kRepackOverhead + 2 * bytes / kMemoryRate : 0;
}

Loads loads_for(const GemmProblem& p, const void* a, const void* b, bool repack_a, bool repack_b) {
  const TileInfo& any = tiles_for(p)[0];
  Loads loads{repack_a ? Load::kRows16 : load_for(p.a, p.a.transposed, p.m, a, any),
              repack_b ? Load::kRows16 : load_for(p.b, !p.b.transposed, p.n, b, any)};
  // Mixed widths would double the number of kernels for a few per cent on few problems.
  if (loads.a == Load::kRows && loads.b == Load::kRows16) loads.b = Load::kRows;
  if (loads.b == Load::kRows && loads.a == Load::kRows16) loads.a = Load::kRows;
  return loads;
}

// The best cuts for a plan's tile: of no tiles, of all, or of those that whole rounds of the chip leave over.
Plan best_cuts(const GemmProblem& p, Plan best, const Chip& chip, size_t workspace) {
  const TileInfo& t = tiles_for(p)[best.tile];
  best.chunk = chunk_stages(p, t, chip);
  const int64_t tiles = best.whole = tile_total(p, t);
  const int64_t resident = resident_blocks(t, chip, best.chunk != kNoChunks);
  const int64_t wave = chip.multiprocessors * resident;
  const Cost cost{p,
                  static_cast<double>(chip.multiprocessors),
                  static_cast<double>(resident),
                  best.load_a,
                  best.load_b,
                  p.d == DType::kF64 ? 2.0 : 1.0};
  const double before = repack_cycles(p, best);
  best.cycles = before + cost(t, best, tiles);

  // Ranges shorter than four stages only wait for their first copies.
  const int64_t stages = ceil_div(p.k, t.bk);
  const auto consider = [&](int64_t whole, int64_t ranges) {
    if ((tiles - whole) * stages / ranges < 4) return false;
    Plan plan = best;
    plan.whole = whole;
    plan.ranges = ranges;
    if (workspace_of(p, plan).total > workspace) return true;
    plan.cycles = before + cost(t, plan, tiles);
    if (plan.cycles < best.cycles) best = plan;
    return true;
  };
  const int64_t rounds = tiles / wave * wave;
  if (rounds == tiles) return best;
  // The same number of ranges for every multiprocessor. At any time ranges are at different stages of K, so
  // all operands must stay in the L2.
  const bool few = cost.traffic() < kL2Bytes;
  for (int64_t r = resident; r > 0 && r * chip.multiprocessors >= tiles / 8; --r) {
    if (few) consider(0, r * chip.multiprocessors);
  }
  if (rounds > 0) consider(rounds - wave, wave);
  // Plain split-K, from half the multiprocessors busy to two waves of parts. Each candidate takes time at a
  // launch, so the steps are coarse.
  const int64_t rest = tiles - rounds;
  const int64_t fewest = std::max<int64_t>(2, chip.multiprocessors / (2 * rest));
  for (int64_t parts = fewest; rest * parts <= 2 * wave; parts += std::max<int64_t>(1, parts / 6)) {
    if (!consider(rounds, rest * parts)) break;
  }
  return best;
}

// The best cuts for one tile, with operands as they are or repacked.
Plan best_for(const GemmProblem& p, int tile, const void* a, const void* b, const Chip& chip,
              size_t workspace) {
  const Loads given = loads_for(p, a, b, false, false);
  Plan best = best_cuts(p, {.tile = tile, .load_a = given.a, .load_b = given.b}, chip, workspace);
  if (given.a == Load::kConvert || p.k == 0) return best;
  for (const auto& [repack_a, repack_b] : {std::pair(true, false), {false, true}, {true, true}}) {
    if ((repack_a && given.a == Load::kRows16) || (repack_b && given.b == Load::kRows16)) continue;
    const Loads loads = loads_for(p, a, b, repack_a, repack_b);
    Plan plan{.tile = tile, .load_a = loads.a, .load_b = loads.b, .repack_a = repack_a, .repack_b = repack_b};
    const auto bytes = static_cast<double>(workspace_of(p, plan).total);
    if (bytes > std::min(static_cast<double>(workspace), kMostRepacked)) continue;
    // Repacking that costs a fifth of the product does not pay.
    if (repack_cycles(p, plan) > best.cycles / 5) continue;
    plan = best_cuts(p, plan, chip, workspace);
    if (plan.cycles < best.cycles) best = plan;
  }
  return best;
}

Plan search(const GemmProblem& p, const void* a, const void* b, const Chip& chip, size_t workspace) {
  if (const int64_t asked = tile_option(p)) {
    return best_for(p, static_cast<int>(asked) - 1, a, b, chip, workspace);
  }
  Plan best = best_for(p, 0, a, b, chip, workspace);
  for (int tile = 1; tile < static_cast<int>(tiles_for(p).size()); ++tile) {
    const Plan plan = best_for(p, tile, a, b, chip, workspace);
    if (plan.cycles < best.cycles) best = plan;
  }
  return best;
}

}  // namespace

std::span<const TileInfo> tiles_for(const GemmProblem& p) {
  if (p.a.dtype == DType::kF64) return kF64Tiles;
  if (p.a.dtype == DType::kF32) return kF32Tiles;
  return kHalfTiles;
}

int64_t tile_option(const GemmProblem& p) {
  const int64_t asked = p.config.empty() ? 0 : p.config[0];
  return asked >= 1 && asked <= static_cast<int64_t>(tiles_for(p).size()) ? asked : 0;
}

Matrix repacked_a(const GemmProblem& p) { return repacked(p, p.a, p.m, true); }
Matrix repacked_b(const GemmProblem& p) { return repacked(p, p.b, p.n, false); }

Workspace workspace_of(const GemmProblem& p, const Plan& plan) {
  Workspace w;
  w.a = round_up(static_cast<int64_t>(partial_bytes(p, plan)), 256);
  w.b = w.a + (plan.repack_a ? round_up(static_cast<int64_t>(bytes_of(p, repacked_a(p))), 256) : 0);
  w.total = w.b + (plan.repack_b ? bytes_of(p, repacked_b(p)) : 0);
  return w;
}

// The workspace is asked for before the device and the buffers' addresses are known. So its size is what
// aligned operands want on the reference chip, and every plan keeps within it.
size_t workspace_bytes(const GemmProblem& p) {
  if (p.output_empty()) return 0;
  return workspace_of(p, search(p, nullptr, nullptr, Chip{}, SIZE_MAX)).total;
}

std::vector<Candidate> rank_tiles(const GemmProblem& p, int multiprocessors) {
  constexpr double kClocksPerMicrosecond = 1980;
  if (p.output_empty()) return {};
  const int64_t asked = tile_option(p);
  std::vector<Candidate> ranked;
  for (int tile = 0; tile < static_cast<int>(tiles_for(p).size()); ++tile) {
    if (asked != 0 && asked != tile + 1) continue;
    const Chip chip{.multiprocessors = multiprocessors};
    const Plan plan = best_for(p, tile, nullptr, nullptr, chip, SIZE_MAX);
    ranked.push_back({{tile + 1}, plan.cycles / kClocksPerMicrosecond});
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Candidate& x, const Candidate& y) { return x.microseconds < y.microseconds; });
  return ranked;
}

Plan make_plan(const GemmProblem& p, const void* a, const void* b, const Chip& chip) {
  const Plan plan = search(p, a, b, chip, SIZE_MAX);
  const size_t wanted = workspace_of(p, plan).total;
  if (wanted == 0) return plan;
  const size_t given = workspace_bytes(p);
  return wanted <= given ? plan : search(p, a, b, chip, given);
}

}  // namespace jaxgemm::cuda::simt
