// The cost model of the direct kernel, in microseconds, from counts alone. It adds up the latency of memory,
// once for each `depth` chunks of a warp; the instructions for all chunks of a multiprocessor; the bytes; and
// each block's epilogue.
//
// The constants were fitted to timings of random small products on an H200. They are on the scale of sm90's
// model, because `auto` compares the two kernels by their models.
#include <algorithm>
#include <cmath>

#include "../../arithmetic.h"
#include "../planning.h"
#include "configs.h"

namespace jaxgemm::cuda::direct {
namespace {

constexpr double kLaunch = 1.007;
constexpr double kFinish = 0.072;     // each run of four results that a thread stores
constexpr double kSum = 0.0345;       // each warp whose sums are added up
constexpr double kScatter = 0.09;     // each wave whose rows of D are not whole vectors,
constexpr double kScattered = 0.077;  // and each 16 rows of such a D that a multiprocessor stores
constexpr double kActivated = 0.1;    // a bias and an activation, each 16 rows of a multiprocessor
constexpr double kFull = 0.25;        // any other epilogue, each row that a warp stores
constexpr double kTrip = 0.299;       // the latency of memory, with aligned operands
constexpr double kUnalignedTrip = 0.755;
constexpr double kChunks[] = {0.0743, 0.1373};  // instructions of a chunk, by tile, with aligned operands
constexpr double kUnalignedChunks[] = {0.1048, 0.1613};
constexpr double kTranspose = 0.0038;  // more of them for each operand that is contiguous along m or n
constexpr double kLoop = 1.554;        // factor on them in code with a loop
constexpr double kSchedulers = 4;      // of a multiprocessor: warps that issue at a time
constexpr double kL2 = 7.48e6;         // bytes a microsecond
constexpr double kDram = 8.53e6;

double tile_count(const GemmProblem& p, const TileConfig& t) {
  return double(ceil_div(p.m, t.m)) * double(ceil_div(p.n, t.n)) * double(p.batch_count());
}

double cost(const GemmProblem& p, const Config& c, bool aligned, int sms) {
  const TileConfig& t = kTiles[c.tile];
  const double tiles = tile_count(p, t);
  const double chunks = double(ceil_div(p.k, kChunk)), steps = std::ceil(chunks / c.warps);
  const Flow flow = flow_of(p, c, aligned, sms);
  const bool two = flow.blocks(t, aligned, major_a(p), major_b(p)) == 2;
  const double resident = std::max(1, (two ? 2 * kMaxWarps : kMaxWarps * 5 / 4) / c.warps);
  const double waves = std::ceil(tiles / (sms * resident));

  const double trips = waves * std::ceil(steps / flow.depth) * (aligned ? kTrip : kUnalignedTrip);
  const int transposed = (major_a(p) == Major::kMN) + (major_b(p) == Major::kMN);
  const double chunk =
      ((aligned ? kChunks : kUnalignedChunks)[c.tile] + kTranspose * transposed) * (flow.loops ? kLoop : 1);
  const double instructions = chunk * std::max(std::ceil(tiles / sms) * chunks / kSchedulers, steps);
  const double loaded = tiles * (t.m + t.n) * double(p.k) * 2;
  const double batch = double(p.batch_count());
  const double moved = 2 * batch * (double(p.k) * double(p.m + p.n) + double(p.m) * double(p.n));
  const double runs = t.runs();
  const Finish finish = finish_of(p, true);
  const double rows = std::ceil(tiles / sms) * t.m / 16;
  const double scattered = p.n % 4 != 0 ? waves * kScatter + kScattered * rows : 0;
  const double activated = finish == Finish::kActivated ? kActivated * rows : 0;
  const double full = finish == Finish::kFull ? kFull * std::ceil(double(t.m) / c.warps) : 0;
  const double finishing = kFinish * std::max(1.0, runs / c.warps) + kSum * c.warps + full;
  return kLaunch + waves * finishing + activated + scattered + trips + instructions + loaded / kL2 +
         moved / kDram;
}

}  // namespace

bool made_of_vectors(const GemmProblem& p) {
  const auto whole = [](const Matrix& x, int64_t length, int64_t lines) {
    return length % 8 == 0 && lines_aligned(x, lines);
  };
  return (p.a.transposed ? whole(p.a, p.m, p.k) : whole(p.a, p.k, p.m)) &&
         (p.b.transposed ? whole(p.b, p.k, p.n) : whole(p.b, p.n, p.k));
}

Finish finish_of(const GemmProblem& p, bool aligned) {
  const bool packed = aligned && p.d != DType::kF32 && p.n % 4 == 0;
  if (!p.has_c && !p.has_bias && p.activation == Activation::kNone)
    return packed ? Finish::kPacked : Finish::kPlain;
  return packed && !p.has_c && has_short_code(p.activation) ? Finish::kActivated : Finish::kFull;
}

Flow flow_of(const GemmProblem& p, const Config& c, bool aligned, int sms) {
  const TileConfig& t = kTiles[c.tile];
  const int64_t steps = ceil_div(ceil_div(p.k, kChunk), c.warps);
  return flow_of(t, aligned, tile_count(p, t) * c.warps <= double(kMaxWarps) * sms, steps);
}

std::vector<RankedConfig> rank_configs(const GemmProblem& p, int sms) {
  std::vector<RankedConfig> ranked;
  const bool aligned = made_of_vectors(p);
  for (int tile = 0; tile < kTileCount; ++tile) {
    const bool fits = kTiles[tile].fits(major_a(p)) && ceil_div(p.m, kTiles[tile].m) <= kMaxBlocks;
    if (fixed(p, kTile) ? fixed(p, kTile) != tile + 1 : !fits) continue;
    for (int warps = 1; warps <= kMaxWarps; warps *= 2) {
      if (fixed(p, kWarps) && fixed(p, kWarps) != warps) continue;
      const Config c{tile, warps};
      ranked.push_back({c, cost(p, c, aligned, sms)});
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const RankedConfig& x, const RankedConfig& y) {
    return x.microseconds < y.microseconds;
  });
  return ranked;
}

}  // namespace jaxgemm::cuda::direct
