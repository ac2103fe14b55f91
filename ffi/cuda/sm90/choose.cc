// The cost model: what a configuration should take on a problem, in microseconds, from counts alone.
//
// A block's time for one step along K is the largest of three: what its tensor cores need, what its share of
// L2 bandwidth needs, and a floor for the hand-over of a stage. Units go over the blocks in waves, and each
// unit ends with an epilogue, which ping-pong hides under the other group's steps. Device memory bounds the
// whole. Splitting K buys parallelism for the price of partial results, written and read, and of a second
// kernel.
//
// The constants were fitted to timings of problems on an H200, in a few of which D is unaligned; how well the
// choice does on problems outside of that fit is not known. They absorb what the
// model leaves out, so they are not the machine's rates.
#include <algorithm>
#include <cmath>

#include "configs.h"

namespace jaxgemm::cuda::sm90 {
namespace {

constexpr double kDram = 4.42e6;  // bytes a microsecond
constexpr double kL2 = 6.68e6;    // bytes a microsecond, to all multiprocessors
constexpr double kMma = 2.37e6;   // multiply-adds a microsecond and multiprocessor, cooperative
constexpr double kPingPongMma = 3.77e6;
constexpr double kStep = 0.141;       // shortest step
constexpr double kLaunch = 0.91;      // launch, and the way of the first bytes
constexpr double kCluster = 1.47;     // blocks in pairs: starting and waiting for each other
constexpr double kSplit = 2.37;       // second kernel
constexpr double kPartials = 0.99e6;  // bytes a microsecond, written and read again
constexpr double kTile = 1.22;        // epilogue of 128 x 256 results of 2 bytes
constexpr double kTileFixed = 0.24;
constexpr double kSwapped = 1.22;  // epilogue of a transposed tile
constexpr double kUnaligned =
    3.1;  // epilogue of rows that the copy engine cannot write; twice that when transposed
constexpr double kFinished = 2.5;       // epilogue with C, bias or activation
constexpr double kNarrowBlock = 1.49;   // loads in 64-byte lines
constexpr double kNarrowRows = 0.0625;  // B read in pieces of 128 bytes from each row
constexpr double kUneven = 0.40;        // how much of a half-empty last wave's bandwidth is lost

struct Shape {
  int64_t m, n, k, batch;  // in the engine's orientation
  bool y_blocks;           // y comes in whole blocks of columns
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Fraction of the tensor cores' rate that shared memory can feed: narrow tiles read the same rows for fewer
// columns.
double fed(const TileConfig& t) {
  const double blocks = t.group_rows() / 64;
  const double cycles = blocks * t.tile_n / 2, reads = blocks * (64 + t.tile_n) * 32 / 128;
  return std::min(1.0, cycles / reads);
}

double cost(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c, int sms) {
  const int64_t rows = ceil_div(ceil_div(s.m, t.tile_m), c.cluster_m) * c.cluster_m;
  const int64_t cols = ceil_div(ceil_div(s.n, t.tile_n), c.cluster_n) * c.cluster_n;
  const int64_t units = rows * cols * s.batch * c.split_k;
  const int64_t blocks = std::min<int64_t>(units, sms);
  const double waves = static_cast<double>(ceil_div(units, blocks));
  const double steps = static_cast<double>(std::max<int64_t>(1, ceil_div(ceil_div(s.k, kTileK), c.split_k)));

  const double area = double(t.tile_m) * t.tile_n;
  const int block = rows_block(t.tile_n);
  const double y_lines =
      s.y_blocks ? ceil_div(t.tile_n, block) * block * (block == 32 ? kNarrowBlock : 1.0) : t.tile_n;
  const double rate = (t.schedule == Schedule::kPingPong ? kPingPongMma : kMma) * fed(t);
  const double mma = area * kTileK / rate;
  const double load = (double(t.tile_m) / c.cluster_n + y_lines / c.cluster_m) * kTileK * 2 * sms / kL2;
  const double unit = steps * std::max({mma, load, kStep});

  const double result_bytes = p.d == DType::kF32 || c.split_k > 1 ? 4 : 2;
  double epilogue = kTile * area / 32768 * result_bytes / 2 + kTileFixed;
  if (c.split_k == 1) {
    if (c.swap) epilogue *= kSwapped;
    if (p.n % 8 != 0) epilogue *= kUnaligned * (c.swap ? 2 : 1);
    if (p.has_c || p.has_bias || p.activation != Activation::kNone) epilogue *= kFinished;
  }
  double busy = waves * (unit + epilogue);
  if (t.schedule == Schedule::kPingPong && waves > 1) {
    busy = waves * std::max(unit, (unit + epilogue) / 2) + epilogue;
  }

  // Rows of the wider operand, B, are read in pieces as wide as the tile.
  const double b_rows = c.swap ? t.tile_m : t.tile_n;
  const double operands =
      2.0 * s.batch * s.k *
      (double(p.m) + double(p.n) * (1 + (p.b.transposed ? 0.0 : kNarrowRows * 64 / b_rows)));
  const double result = result_bytes * s.batch * s.m * s.n * c.split_k;
  const double pulling = std::min(1.0, blocks / (0.9 * sms));
  const double even = units / (waves * blocks);
  const double dram =
      (operands + result * (c.split_k > 1 ? 0.3 : 1.0)) / (kDram * pulling * (1 - kUneven + kUneven * even));

  // The two overlap, but not when they are equal.
  double time = kLaunch + std::pow(std::pow(busy, 4) + std::pow(dram, 4), 0.25);
  if (c.cluster_m * c.cluster_n > 1) time += kCluster;
  if (c.split_k > 1) time += kSplit + result / kPartials;
  return time;
}

int64_t fixed(const GemmProblem& p, Option option) {
  return option < static_cast<int>(p.config.size()) ? p.config[option] : 0;
}

// The ways to run one tile shape in one orientation.
void consider(const GemmProblem& p, const Shape& s, Config c, int sms, std::vector<RankedConfig>* ranked) {
  const TileConfig& t = kTiles[c.tile];
  const int64_t tiles = ceil_div(s.m, t.tile_m) * ceil_div(s.n, t.tile_n) * s.batch;
  const int64_t k_blocks = std::max<int64_t>(1, ceil_div(s.k, kTileK));
  // As many splits as fill the machine once, twice, ..., each with at least two steps.
  for (const int64_t fill : {0, 1, 2, 3, 5}) {
    int64_t split = std::min<int64_t>(fill * sms / tiles, 256);
    if (fill == 0)
      split = 1;
    else if (split < 2 || k_blocks / split < 2)
      continue;
    if (fixed(p, kSplitK)) split = std::min(fixed(p, kSplitK), k_blocks);
    // The second kernel counts groups of 4 results in 31 bits.
    if (split > 1 && s.m * s.batch > INT32_MAX / ceil_div(s.n, 4)) continue;
    c.split_k = static_cast<int>(split);
    ranked->push_back({c, cost(p, s, t, c, sms)});
    if (fixed(p, kSplitK)) return;
  }
}

}  // namespace

std::vector<RankedConfig> rank_configs(const GemmProblem& p, int sms) {
  std::vector<RankedConfig> ranked;
  for (const bool swap : {false, true}) {
    if (fixed(p, kSwap) && fixed(p, kSwap) != (swap ? 2 : 1)) continue;
    const Shape s{swap ? p.n : p.m, swap ? p.m : p.n, p.k, p.batch_count(),
                  swap ? p.a.transposed : !p.b.transposed};
    for (int tile = 0; tile < kTileCount; ++tile) {
      const TileConfig& t = kTiles[tile];
      if (fixed(p, kTileM) && fixed(p, kTileM) != t.tile_m) continue;
      if (fixed(p, kTileN) && fixed(p, kTileN) != t.tile_n) continue;
      if (fixed(p, kSchedule) && fixed(p, kSchedule) != static_cast<int>(t.schedule)) continue;
      for (int m = 1; m <= 2; ++m) {
        for (int n = 1; n <= 2; ++n) {
          // Two blocks share loads along one side; four only if asked for, and none that have no tile.
          const bool asked = fixed(p, kClusterM) && fixed(p, kClusterN);
          if (!asked && m * n == 4) continue;
          if (fixed(p, kClusterM) ? fixed(p, kClusterM) != m : ceil_div(s.m, t.tile_m) < m) continue;
          if (fixed(p, kClusterN) ? fixed(p, kClusterN) != n : ceil_div(s.n, t.tile_n) < n) continue;
          Config c;
          c.tile = tile;
          c.cluster_m = m;
          c.cluster_n = n;
          c.swap = swap;
          if (fixed(p, kGroup)) c.group = static_cast<int>(fixed(p, kGroup));
          consider(p, s, c, sms, &ranked);
        }
      }
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const RankedConfig& x, const RankedConfig& y) {
    return x.microseconds < y.microseconds;
  });
  return ranked;
}

}  // namespace jaxgemm::cuda::sm90
