// The cost model: what a configuration should take on a problem, in microseconds, from counts alone.
//
// A block's time for one step along K is the largest of three: what its tensor cores need, what its share of
// L2 bandwidth needs (less where the machine is not full), and a floor for the hand-over of a stage. Units go
// over the blocks in waves, and each unit ends with an epilogue, which ping-pong hides under the other
// group's steps. Device memory bounds the whole. Splitting K buys parallelism for the price of partial
// results, written and read, and of a second kernel; operands with unaligned rows are copied first.
//
// The constants were fitted to timings of products on an H200, row-major operands, by the time that the
// model's choice loses against the best configuration timed. They absorb what the model leaves out, so they
// are not the machine's rates.
#include <algorithm>
#include <cmath>

#include "configs.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// Rates are per microsecond, times in microseconds.
constexpr double kDram = 5.2e6;  // bytes
constexpr double kL2 = 9.09e6;   // bytes, to all multiprocessors
constexpr double kMma = 3.42e6;  // multiply-adds of a multiprocessor whose consumers cooperate
constexpr double kPingPongMma = 3.39e6;
constexpr double kStep = 0.066;      // shortest step
constexpr double kLaunch = 1.03;     // launch, and the way of the first bytes
constexpr double kFirst = 0.29;      // the first steps, before the ring runs
constexpr double kPair = 0.53;       // blocks in pairs: starting and waiting for each other;
constexpr double kPairCols = 0.98;   // along the columns,
constexpr double kPairWave = 0.33;   // at every unit
constexpr double kPairStep = 0.032;  // and at every step
constexpr double kPairColsStep = 0.05;
constexpr double kSplit = 4.95;       // second kernel
constexpr double kPartials = 4.35e6;  // bytes, written and read again
constexpr double kTile = 2.29;        // epilogue of 128 x 256 results of 2 bytes
constexpr double kTileFixed = 0.156;
constexpr double kSwapped = 1.375;          // epilogue of a transposed tile
constexpr double kUnaligned = 4.75;         // of rows that the copy engine cannot write
constexpr double kUnalignedSwapped = 3.76;  // times kSwapped
constexpr double kFinished = 2.0;           // with C, bias or activation
constexpr double kNarrowBlock = 1.55;       // loads in 64-byte lines
constexpr double kUneven = 0.69;            // how much of a half-empty last wave's bandwidth is lost
constexpr double kPulling = 0.97;           // part of the multiprocessors that saturates memory
constexpr double kIdleL2 = 0.75;    // time of an L2-bound step on an idle machine, over that on a full one
constexpr double kOverlap = 2.9;    // how well memory and multiprocessors overlap
constexpr double kRepack = 3.94e6;  // bytes, read and written
constexpr double kRepackFixed = 2.66;

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

// Elements of this operand, rows x cols as op() sees it, that are copied first: rows that the copy engine
// cannot address.
double copied(const Matrix& x, int64_t rows, int64_t cols) {
  const bool several = (x.transposed ? cols : rows) > 1;
  return several && x.ld % 8 != 0 ? double(rows) * double(cols) : 0;
}

double cost(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c, int sms) {
  const int cluster = c.cluster_m * c.cluster_n;
  const double clusters = std::max(1, sms / cluster);
  const double tiles = double(ceil_div(ceil_div(s.m, t.tile_m), c.cluster_m)) *
                       double(ceil_div(ceil_div(s.n, t.tile_n), c.cluster_n)) * double(s.batch);
  const double units = tiles * c.split_k, running = std::min(units, clusters);
  const double waves = std::ceil(units / clusters);
  const double k_blocks = double(std::max<int64_t>(1, ceil_div(s.k, kTileK)));
  const double steps = waves * std::ceil(k_blocks / c.split_k);

  const double area = double(t.tile_m) * t.tile_n;
  const int block = rows_block(t.tile_n);
  const double y_lines =
      s.y_blocks ? double(ceil_div(t.tile_n, block) * block) * (block == 32 ? kNarrowBlock : 1.0) : t.tile_n;
  const bool ping_pong = t.schedule == Schedule::kPingPong;
  const double mma = area * kTileK / ((ping_pong ? kPingPongMma : kMma) * fed(t));
  const double load = (double(t.tile_m) / c.cluster_n + y_lines / c.cluster_m) * kTileK * 2 * sms / kL2 *
                      (kIdleL2 + (1 - kIdleL2) * running / clusters);
  const double meeting = cluster == 1 ? 0 : c.cluster_n > 1 ? kPairColsStep : kPairStep;
  const double main_loop =
      steps * (std::max({mma, load, kStep}) + meeting) + kFirst * std::min(1.0, steps / 4);

  const double result_bytes = p.d == DType::kF32 || c.split_k > 1 ? 4 : 2;
  double epilogue = kTile * area / 32768 * result_bytes / 2 + kTileFixed;
  if (c.split_k == 1) {
    if (c.swap) epilogue *= kSwapped;
    if (p.n % 8 != 0) epilogue *= c.swap ? kUnalignedSwapped : kUnaligned;
    if (p.has_c || p.has_bias || p.activation != Activation::kNone) epilogue *= kFinished;
  }
  double busy = main_loop + waves * epilogue;
  if (ping_pong && waves > 1) busy = std::max(main_loop, busy / 2) + epilogue;

  const double batch = double(s.batch), depth = double(s.k);
  const double operands = 2 * batch * depth * double(p.m + p.n);
  const double result = result_bytes * batch * double(s.m) * double(s.n) * c.split_k;
  const double pulling = std::min(1.0, running * cluster / (kPulling * sms));
  const double even = units / (waves * running);
  const double dram = (operands + result * (c.split_k > 1 ? 0.3 : 1.0)) /
                      (kDram * pulling * (1 - kUneven + kUneven * std::min(even, 1.0)));

  double time = kLaunch + std::pow(std::pow(busy, kOverlap) + std::pow(dram, kOverlap), 1 / kOverlap);
  if (cluster > 1) time += (c.cluster_n > 1 ? kPairCols : kPair) + kPairWave * waves;
  if (c.split_k > 1) time += kSplit + result / kPartials;
  const double repacked = 4 * batch * (copied(p.a, p.m, p.k) + copied(p.b, p.k, p.n));
  if (repacked > 0) time += kRepackFixed + repacked / kRepack;
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
