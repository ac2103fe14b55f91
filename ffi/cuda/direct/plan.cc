// The cost model of the direct kernel, in microseconds, from counts alone: a trip to memory for as many
// chunks as a warp has in flight, the instructions of all chunks of a multiprocessor, the bytes, and what
// every block does in the end.
//
// The constants were fitted to timings of 898 small products on an H200, by the time that a choice between
// configurations, and between the best of them and sm90, loses against the best. They are on the scale of
// sm90's model, which the two are compared by.
#include <algorithm>
#include <cmath>

#include "../../arithmetic.h"
#include "configs.h"

namespace jaxgemm::cuda::direct {
namespace {

constexpr double kLaunch = 1.459;
constexpr double kFinish = 0.0811;  // of a tile's results, four a thread,
constexpr double kSum = 0.0405;     // and of each warp's sums
constexpr double kTrip = 0.4432;    // to memory, with aligned operands,
constexpr double kUnalignedTrip = 0.6201;
constexpr double kFull = 0.25;                  // and of each row that a warp finishes with more than alpha
constexpr double kChunks[] = {0.0236, 0.1189};  // a chunk's instructions, by tile, with aligned operands,
constexpr double kUnalignedChunks[] = {0.0469, 0.1617};
constexpr double kTranspose = 0.0165;  // and more of them for an operand whose k is the slow index
constexpr double kSchedulers = 4;      // of a multiprocessor: warps that issue at a time
constexpr double kL2 = 8.73e6;         // bytes a microsecond
constexpr double kDram = 11.4e6;

int64_t fixed(const GemmProblem& p, Option option) {
  return option < static_cast<int>(p.config.size()) ? p.config[option] : 0;
}

double cost(const GemmProblem& p, const Config& c, bool aligned, int sms) {
  const TileConfig& t = kTiles[c.tile];
  const double tiles = double(ceil_div(p.m, t.m)) * double(ceil_div(p.n, t.n)) * double(p.batch_count());
  const double chunks = double(ceil_div(p.k, kChunk)), steps = std::ceil(chunks / c.warps);
  const bool two = t.blocks(major_a(p), major_b(p), aligned) == 2;
  const double resident = std::max(1, (two ? 2 * kMaxWarps : kMaxWarps * 5 / 4) / c.warps);
  const double waves = std::ceil(tiles / (sms * resident));

  const double trips = waves * (aligned ? std::ceil(steps / 2) * kTrip : steps * kUnalignedTrip);
  const int transposed = (major_a(p) == Major::kMN) + (major_b(p) == Major::kMN);
  const double chunk = (aligned ? kChunks : kUnalignedChunks)[c.tile] + kTranspose * transposed;
  const double instructions = chunk * std::max(std::ceil(tiles / sms) * chunks / kSchedulers, steps);
  const double loaded = tiles * (t.m + t.n) * double(p.k) * 2;
  const double batch = double(p.batch_count());
  const double moved = 2 * batch * (double(p.k) * double(p.m + p.n) + double(p.m) * double(p.n));
  const double groups = t.groups();
  const bool full = p.has_c || p.has_bias || p.activation != Activation::kNone;
  const double rows = full ? std::ceil(double(t.m) / c.warps) : 0;
  const double finish = kFinish * std::max(1.0, groups / c.warps) + kSum * c.warps + kFull * rows;
  return kLaunch + waves * finish + trips + instructions + loaded / kL2 + moved / kDram;
}

// Whether each of the operand's lines of `length` is made of aligned vectors.
bool made_of_vectors(const Matrix& x, int64_t length, int64_t lines) {
  return length % 8 == 0 && (lines <= 1 || x.ld % 8 == 0) && x.batch_stride[0] % 8 == 0 &&
         x.batch_stride[1] % 8 == 0;
}

}  // namespace

bool made_of_vectors(const GemmProblem& p) {
  return made_of_vectors(p.a, p.a.transposed ? p.m : p.k, p.a.transposed ? p.k : p.m) &&
         made_of_vectors(p.b, p.b.transposed ? p.k : p.n, p.b.transposed ? p.n : p.k);
}

std::vector<RankedConfig> rank_configs(const GemmProblem& p, int sms) {
  std::vector<RankedConfig> ranked;
  const bool aligned = made_of_vectors(p);
  for (int tile = 0; tile < kTileCount; ++tile) {
    const TileConfig& t = kTiles[tile];
    if (ceil_div(p.m, t.m) > kMaxBlocks) continue;
    if (fixed(p, kTile) ? fixed(p, kTile) != tile + 1 : !t.fits(major_a(p))) continue;
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
