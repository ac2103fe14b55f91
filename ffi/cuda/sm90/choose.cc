// The cost model: what a configuration should take on a problem, in microseconds, from counts alone.
//
// A block's time for one step along K is the larger of two: what its tensor cores need, and what its share of
// L2 bandwidth needs, less where the machine is not full. Units go over the blocks in waves, and each unit
// ends with an epilogue, which ping-pong hides under the other group's steps. Device memory bounds the whole.
// Splitting K buys parallelism for the price of partial results, written and read, and of a second kernel;
// or, among the blocks of a cluster, for the time in which the first of them takes the others' sums. Operands
// with unaligned rows are copied first. A gated product loads and multiplies whole tiles, and writes half of
// each.
//
// Long products heat the chip, and it lowers its clock, but not that of its memories: tiles that load more
// for what they multiply lose less then.
//
// The constants were fitted to timings of products on an H200 by the time that the model's choice loses
// against the best configuration timed. They absorb what the model leaves out, so they are not the machine's
// rates.
#include <algorithm>
#include <cmath>
#include <set>

#include "../../arithmetic.h"
#include "../planning.h"
#include "configs.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// Rates are per microsecond, times in microseconds.
constexpr double kDram = 4.37e6;           // bytes
constexpr double kL2 = 18.44e6;            // bytes, to all multiprocessors
constexpr double kMma = 3.612e6;           // multiply-adds of a multiprocessor
constexpr double kHeat = 0.4;              // more time of a multiprocessor where power lowers its clock, and
constexpr double kHeatWork = 2e10;         // multiply-adds of a product from which on it has half of that
constexpr double kLaunch = 2.608;          // launch, and the way of the first bytes
constexpr double kCluster = 0.0954;        // start of a cluster
constexpr double kPairStep = 0.03988;      // more of a step where blocks share columns,
constexpr double kPairColsStep = 0.06502;  // and where they share rows
constexpr double kSplit = 0.7207;          // second kernel
constexpr double kGather = 0.196;          // sums of a cluster, to meet,
constexpr double kGathered = 100.9e3;      // and their bytes
constexpr double kPartials = 4.175e6;      // bytes, written and read again
constexpr double kTile = 0.6397;           // epilogue of a ping-pong warpgroup's 64 x 256 results of 2 bytes,
constexpr double kCooperativeTile = 1.893;  // and how much more of one that others wait for
constexpr double kTurn = 0.2172;            // of a ping-pong group, to take over from the other
constexpr double kNarrowStrip = 0.4304;     // more of it for each halving of a strip's columns, about
constexpr double kSwapped = 1.227;          // epilogue of a transposed tile,
constexpr double kSwappedPartials = 3.081;  // and of one of partial sums, which are scattered
constexpr double kUnaligned64 = 1.755;  // of rows that the copy engine cannot write, in strips of 64 columns,
constexpr double kUnaligned32 = 2.793;  // of 32
constexpr double kUnaligned16 = 2.916;  // and of 16;
constexpr double kUnalignedInTurn64 = 1.706;  // the same in a tile that others wait for, in strips of 64
constexpr double kUnalignedInTurn = 2.472;    // and in narrower ones,
constexpr double kUnalignedSwapped = 2.25;    // and in columns
constexpr double kStoresUnaligned = 2.733;    // traffic of unaligned results, parts of sectors,
constexpr double kStoresSwapped = 7.432;      // and that of those that are columns, in small pieces
constexpr double kFinished[] = {1, 1.68, 2.16, 3.385};       // by Work, where it is hidden,
constexpr double kFinishedInTurn[] = {1, 1.32, 1.73, 2.53};  // and where it is not
constexpr double kNarrowBlock = 1.431;                       // loads in 64-byte lines
constexpr double kLines = 2.608;       // loads of pieces of 128 bytes that straddle lines and sectors,
constexpr double kSectors = 1.597;     // and of those that straddle lines, in whole sectors
constexpr double kIdleL2 = 0.1769;     // time of an L2-bound step on an idle machine, over that on a full one
constexpr double kPulling = 0.0109;    // part of the multiprocessors that saturates memory
constexpr double kContention = 3.355;  // how well multiplying and loading overlap, and
constexpr double kStep = 0.0364;       // at least, of every step: a warpgroup's loop, and
constexpr double kFloor = 2.999;       // how well it overlaps with what a step does
constexpr double kOverlap = 2.366;     // memory and multiprocessors: 1 not at all
constexpr double kPaired = 0.95;       // of memory's time, where two blocks fill each other's gaps
constexpr double kRepack = 5.16e6;     // bytes of a copied operand, read
constexpr double kPadded = 1.739;      // and, times this, written in whole lines
constexpr double kRepackFixed = 2.34;

// Of kMma, by row of kTiles.
constexpr double kRates[kTileCount] = {1.00, 0.89, 0.97, 1.00, 1.00, 1.00, 1.00, 0.88, 1.00, 0.91, 0.60, 0.89,
                                       1.00, 1.04, 1.10, 0.72, 1.12, 1.60, 1.12, 1.60,
                                       // gated ones as those that they are like
                                       1.00, 1.00, 1.03, 1.00, 0.83, 0.83, 0.83};

struct Shape {
  int64_t m, n, k, batch;  // in the engine's orientation
  bool y_blocks;           // y comes in whole blocks of columns
};

// Fraction of the tensor cores' rate that shared memory can feed: narrow tiles read the same rows for fewer
// columns.
double fed(const TileConfig& t, int tile_n) {
  const double blocks = t.group_rows() / 64;
  const double cycles = blocks * tile_n / 2, reads = blocks * (64 + tile_n) * 32 / 128;
  return std::min(1.0, cycles / reads);
}

// Bytes of this operand, rows x cols as op() sees it, that are copied first: rows that the copy engine cannot
// address.
double copied(const Matrix& x, int64_t rows, int64_t cols) {
  const int64_t lines = x.transposed ? cols : rows, length = x.transposed ? rows : cols;
  if (lines <= 1 || x.ld % 8 == 0) return 0;
  return 2 * double(lines) * (double(length) + kPadded * double(round_up(length, 64)));
}

// How much more a load of this operand takes where its rows begin in the middle of lines of L2. Rows that are
// copied first do not.
double straddling(const Matrix& x) {
  if (x.ld % 64 == 0 || x.ld % 8 != 0) return 1;
  return x.ld % 16 == 0 ? kSectors : kLines;
}

// What an epilogue does besides storing: an addition, a function of few instructions or C as vectors, or
// anything else, for which there is one piece of code that has everything.
enum class Work { kNone, kLittle, kFunction, kFull };

Work work_of(const GemmProblem& p) {
  const bool none = p.activation == Activation::kNone;
  if (none && !p.has_c && !p.has_bias) return Work::kNone;
  if (p.d == DType::kF32 || p.n % 8 != 0) return Work::kFull;
  if (p.has_c) return usual(p.activation) ? Work::kFunction : Work::kFull;
  if (none || p.activation == Activation::kRelu) return Work::kLittle;
  return usual(p.activation) ? Work::kFunction : Work::kFull;
}

// How much longer an epilogue takes by the way that its results are stored.
double storing(const GemmProblem& p, const TileConfig& t, bool swap) {
  const int columns = t.strip_columns();
  if (p.n % 8 == 0) return (swap ? kSwapped : 1) * (1 + kNarrowStrip * (64.0 / columns - 1));
  if (swap) return kSwapped * kUnalignedSwapped;
  if (t.schedule != Schedule::kPingPong) return columns == 64 ? kUnalignedInTurn64 : kUnalignedInTurn;
  return columns == 64 ? kUnaligned64 : columns == 32 ? kUnaligned32 : kUnaligned16;
}

// The larger of two times that overlap, and somewhat more the closer they are: by an exponent of 1, their
// sum.
double either(double a, double b, double exponent) {
  return std::pow(std::pow(a, exponent) + std::pow(b, exponent), 1 / exponent);
}

double cost(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c, int sms) {
  const int cluster = c.cluster();
  const double clusters = t.blocks * std::max(1, resident_clusters(sms, cluster));
  const int64_t columns = ceil_div(ceil_div(s.n, t.result_n()), c.cluster_n);
  const double column_units =
      double(ceil_div(ceil_div(s.m, t.result_m()), c.cluster_m)) * double(s.batch) * c.partials();
  const double units = column_units * double(columns), running = std::min(units, clusters);
  const double split_steps = std::ceil(double(std::max<int64_t>(1, ceil_div(s.k, kTileK))) / c.split_k);

  const int block = rows_block(t.result_n());
  const bool ping_pong = t.schedule == Schedule::kPingPong;
  const double a = straddling(p.a), b = straddling(p.b);
  const double meeting = std::max(kPairStep * (c.cluster_m > 1), kPairColsStep * (c.cluster_n > 1));
  const double work = double(s.m) * double(s.n) * double(s.k) * double(s.batch);
  const double heat = 1 + kHeat * work / (work + kHeatWork);
  const double sharing = std::max(1.0, std::ceil(running * cluster / sms));  // blocks of a multiprocessor
  const double rate = kMma * kRates[c.tile] / heat / sharing;
  // Of a tile of which so many columns are multiplied.
  const auto step_of = [&](int tile_n) {
    const double mma = double(t.tile_m) * tile_n * kTileK / (rate * fed(t, tile_n));
    const double y_lines =
        s.y_blocks ? double(ceil_div(tile_n, block) * block) * (block == 32 ? kNarrowBlock : 1.0) : tile_n;
    const double lines =
        double(t.tile_m) / c.cluster_n * (c.swap ? b : a) + y_lines / c.cluster_m * (c.swap ? a : b);
    const double load =
        lines * kTileK * 2 * sms / kL2 * (kIdleL2 + (t.blocks - kIdleL2) * running / clusters);
    return either(either(mma, load, kContention), kStep, kFloor) + meeting;
  };
  const double step = step_of(t.tile_n);
  // Waves of whole tiles. Narrow ones fill the last wave's gaps, and make cheaper waves.
  const double all_waves = std::ceil(units / clusters);
  double waves = all_waves;
  if (narrow_edge(t, s.n) && c.cluster_n == 1) {
    const double whole = std::ceil((units - column_units) / clusters), narrow = step_of(kNarrow) / step;
    waves = whole + narrow * (all_waves - whole);
  }
  const double steps = waves * split_steps;
  const bool resident = c.grid == Grid::kResident;
  const double main_loop = steps * step;

  const double result_bytes = p.d == DType::kF32 || c.partials() > 1 ? 4 : 2;
  const double results = double(t.result_m()) * t.result_n();
  double epilogue = heat * kTile * results / 16384 * result_bytes / 2;
  if (!ping_pong) epilogue *= kCooperativeTile / t.consumers;
  if (c.partials() > 1) {
    if (c.swap) epilogue *= kSwappedPartials;
  } else {
    epilogue *=
        storing(p, t, c.swap) * (ping_pong ? kFinished : kFinishedInTurn)[static_cast<int>(work_of(p))];
  }
  if (c.slices() > 1) epilogue += kGather + (c.slices() - 1) * results * 4 / kGathered;
  double busy = main_loop + waves * epilogue;
  if (ping_pong && resident && waves > 1) busy = std::max(main_loop, busy / 2 + all_waves * kTurn) + epilogue;

  const double batch = double(s.batch), depth = double(s.k);
  const double operands = 2 * batch * depth * double(p.m + (p.gated ? 2 : 1) * p.n);
  const double result = result_bytes * batch * double(s.m) * double(s.n) * c.partials();
  const double added = p.has_c && c.partials() == 1 ? result : 0;  // C, read
  const double stores = p.n % 8 == 0 ? 1 : c.swap ? kStoresSwapped : kStoresUnaligned;
  const double traffic = c.partials() > 1 ? 0.3 : stores;
  const double pulling = std::min(1.0, running * cluster / (kPulling * sms));
  const double dram =
      (operands + added + result * traffic) / (kDram * pulling) * (t.blocks > 1 ? kPaired : 1);

  double time = kLaunch + kCluster * (cluster > 1) + either(busy, dram, kOverlap);
  if (c.partials() > 1) time += kSplit + result / kPartials;
  const double repacked = batch * (copied(p.a, p.m, p.k) + (p.gated ? 2 : 1) * copied(p.b, p.k, p.n));
  if (repacked > 0) time += kRepackFixed + repacked / kRepack;
  return time;
}

constexpr int64_t kMaxSplit = 256;

// The second kernel counts groups of 4 results in 31 bits.
bool splittable(const GemmProblem& p, const Shape& s) {
  return !p.gated && s.m * s.batch <= INT32_MAX / ceil_div(s.n, 4);
}

// The ways to run one tile shape in one orientation.
void consider(const GemmProblem& p, const Shape& s, Config c, int sms, std::vector<RankedConfig>* ranked) {
  const TileConfig& t = kTiles[c.tile];
  const int64_t tiles = ceil_div(s.m, t.result_m()) * ceil_div(s.n, t.result_n()) * s.batch;
  const int64_t k_blocks = std::max<int64_t>(1, ceil_div(s.k, kTileK));
  const auto rank = [&](const Config& config) { ranked->push_back({config, cost(p, s, t, config, sms)}); };
  // Where sums in a cluster are asked for, K is split there or not at all.
  const bool in_cluster = fixed(p, kReduction) == static_cast<int>(Reduction::kCluster);
  const auto slice = [&](int split) {
    if (fixed(p, kReduction) == static_cast<int>(Reduction::kWorkspace) || !t.can_slice(split)) return;
    if (c.cluster_m * c.cluster_n > 1 || fixed(p, kGrid) == static_cast<int>(Grid::kResident)) return;
    Config sliced = c;
    sliced.split_k = split;
    sliced.reduction = Reduction::kCluster;
    sliced.grid = Grid::kTiles;
    rank(sliced);
  };
  const auto partial = [&](int64_t split) {
    Config whole = c;
    whole.split_k = static_cast<int>(split);
    if (in_cluster) whole.reduction = Reduction::kCluster;
    if (split == 1 || (!in_cluster && splittable(p, s))) rank(whole);
  };
  if (fixed(p, kSplitK)) {
    const int64_t split = std::min(fixed(p, kSplitK), k_blocks);
    partial(split);
    if (split == 2 || split == 4 || split == 8) slice(static_cast<int>(split));
    return;
  }
  partial(1);
  for (const int split : {2, 4, 8}) {
    if (k_blocks / split >= 2) slice(split);
  }
  // As many splits as fill the machine once, twice, ..., each with at least two steps; or, where K is too
  // short for that, such as have a few steps each.
  std::set<int64_t> splits;
  for (const int64_t fill : {1, 2, 3, 5}) splits.insert(std::min<int64_t>(fill * sms / tiles, kMaxSplit));
  for (const int64_t steps : {2, 4, 8, 16}) {
    if (k_blocks / steps * tiles < sms) splits.insert(k_blocks / steps);
  }
  for (const int64_t split : splits) {
    if (split > 1 && split <= kMaxSplit && k_blocks / split >= 2) partial(split);
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
      if (t.gated != (!p.gated ? Gated::kNo : swap ? Gated::kRows : Gated::kColumns)) continue;
      if (fixed(p, kTileM) && fixed(p, kTileM) != t.tile_m) continue;
      if (fixed(p, kTileN) && fixed(p, kTileN) != t.tile_n) continue;
      if (fixed(p, kBlocks) && fixed(p, kBlocks) != t.blocks) continue;
      if (fixed(p, kSchedule) && fixed(p, kSchedule) != static_cast<int>(t.schedule)) continue;
      for (const int m : {1, 2, 4}) {
        // Of rows along k, each of m blocks loads whole periods of the swizzle.
        if (!s.y_blocks && t.result_n() % (8 * m) != 0) continue;
        for (const int n : {1, 2, 4}) {
          if (m * n > 8) continue;  // more than every device has room for
          // Large tiles load little for what they multiply: more than pairs of them are had for the asking.
          const bool asked = fixed(p, kClusterM) && fixed(p, kClusterN);
          if (!asked && m * n > 2 && t.tile_m * t.tile_n > 128 * 128) continue;
          if (fixed(p, kClusterM) ? fixed(p, kClusterM) != m : ceil_div(s.m, t.result_m()) < m) continue;
          if (fixed(p, kClusterN) ? fixed(p, kClusterN) != n : ceil_div(s.n, t.result_n()) < n) continue;
          Config c;
          c.tile = tile;
          c.cluster_m = m;
          c.cluster_n = n;
          c.swap = swap;
          if (fixed(p, kGroup)) c.group = static_cast<int>(fixed(p, kGroup));
          if (fixed(p, kGrid)) c.grid = static_cast<Grid>(fixed(p, kGrid));
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
