// The cost model: what a configuration should take on a problem, in microseconds, from counts alone.
//
// A block's time for one step along K is the largest of what its tensor cores need, what they and the copy
// engine need of shared memory, and what its share of L2's bandwidth needs, less where the machine is not
// full: of that into multiprocessors, and of that out of L2, which sends a line once where blocks of a GPC
// ask for it at about the same time; and no less than a stage's way from L2, divided by the ring's stages.
// Units go over the blocks in waves, and each unit ends with an epilogue, which ping-pong hides under the
// other group's steps. Device memory bounds the whole, and what L2 does not hold until it is needed again is
// read from there again: how often depends on the walk over the units. Splitting K buys parallelism for the
// price of partial results, written and read, and of a second kernel; or, among the blocks of a cluster, for
// the time in which they exchange their sums. Operands with unaligned rows are copied first, or tiles
// have every eighth of them, or threads realign them on their way, a stage in a time of its own. A gated
// product loads and multiplies whole tiles, and writes half of each.
//
// Long products heat the chip, and it lowers its clock, but not that of its memories: tiles that load more
// for what they multiply lose less then.
//
// The constants were fitted by benchmarks/fit.py to timings of products drawn at random and of some that
// models have, many configurations of each: by the time that the model's choice loses against the best of
// them, and by how far its times are off. The timings are fit.json of benchmarks/results/nvidia-h200 and, of
// nvidia-h100-80gb-hbm3, walks_fit.json, eighths_fit.json, copied_fit.json and realigned_fit.json. Epilogues
// have changed since: what they add for more than storing (kFinished) was fitted to the H200's present_fit.json
// when each such finish had a kernel of its own, and one kernel now finishes in every way; what clusters,
// copies, unaligned results and tiles of every eighth row take was fitted to its odd_fit.json too. The
// rates are an H200's, and memory's is scaled to the machine's. Constants absorb what the model leaves out,
// so they are not the machine's rates.
#include "cost.h"

#include <algorithm>
#include <cmath>

namespace jaxgemm::cuda::sm90 {
namespace {

// What all blocks have on their way at a time, in bytes of both operands, and the stages that they keep in
// any case. Memory needs as much to be busy; of more, timings say that it does few rows of long sums no good
// (benchmarks/results/nvidia-h100-80gb-hbm3/stages.json), we believe because blocks that wait longer drift
// apart.
constexpr double kOnTheWay = 9e6;
constexpr int kLeastStages = 4;

// Rates are per microsecond, times in microseconds.
constexpr double kDram = 5.439e6;           // bytes
constexpr double kCache = 12.69e6;          // bytes that are still there when they are read again
constexpr double kL2 = 28.32e6;             // bytes, to all multiprocessors
constexpr double kMma = 3.674e6;            // multiply-adds of a multiprocessor,
constexpr double kThree = 0.9533;           // times this where three warpgroups take turns,
constexpr double kShared = 306.2e3;         // and bytes of its shared memory
constexpr double kHeat = 0.2025;            // more time of a multiprocessor where power lowers its clock, and
constexpr double kHeatWork = 27.05e10;      // multiply-adds of a product from which on it has half of that
constexpr double kLaunch = 1.971;           // launch, and the way of the first bytes,
constexpr double kRamp = 0.1336;            // and more until all stages are on their way;
constexpr double kLight = 0.3293;           // less of it where two blocks share a multiprocessor
constexpr double kCluster = 0.5103;         // start of a cluster
constexpr double kMeeting = 0.0009225;      // more of a step where blocks share what they load,
constexpr double kMeetingShort = 0.007841;  // and of one of 64 rows
constexpr double kSplit = 2.377;            // second kernel
constexpr double kGather = 0.04741;         // sums of a cluster, to meet,
constexpr double kGathered = 10.53e3;       // and their bytes
constexpr double kPartials = 2.623e6;       // bytes, written and read again
constexpr double kTile = 0.8675;           // epilogue of a ping-pong warpgroup's 64 x 256 results of 2 bytes,
constexpr double kCooperativeTile = 1.55;  // and how much more of one that others wait for
constexpr double kTurn = 0.2661;           // of a ping-pong group, to take over from the other
constexpr double kNarrowStrip = 0.4646;    // more of it for each halving of a strip's columns, about
constexpr double kSwapped = 0.5849;        // epilogue of a transposed tile,
constexpr double kSwappedPartials = 1.887;  // and of one of partial sums, which are scattered
constexpr double kUnaligned64 = 1.441;  // of rows that the copy engine cannot write, in strips of 64 columns,
constexpr double kUnaligned32 = 6.768;  // of 32
constexpr double kUnaligned16 = 13;     // and of 16;
constexpr double kUnalignedInTurn64 = 2.982;  // the same in a tile that others wait for, in strips of 64
constexpr double kUnalignedInTurn = 4.161;    // and in narrower ones,
constexpr double kUnalignedSwapped = 6.603;   // and in columns
constexpr double kStoresUnaligned = 2.376;    // traffic of unaligned results, parts of sectors,
constexpr double kStoresSwapped = 6.831;      // and that of those that are columns, in small pieces;
constexpr double kStoresLines = 1.077;        // of rows that straddle lines,
constexpr double kStoresSectors = 1.517;      // of those that straddle sectors too,
constexpr double kStoresColumns = 2.36;       // and, times this, of all where tiles are transposed
constexpr double kFinished[] = {1, 1.98, 4.377, 3.448};         // by Work, where it is hidden,
constexpr double kFinishedInTurn[] = {1, 2.309, 4.395, 2.542};  // and where it is not
constexpr double kRealign = 48.21e3;       // bytes that a multiprocessor loads and realigns,
constexpr double kRealignLine = 0.001489;  // and each line of them
constexpr double kNarrowBlock = 3.348;     // loads in 64-byte lines
constexpr double kLines = 3.881;           // loads of pieces of 128 bytes that straddle lines and sectors,
constexpr double kSectors = 2.294;         // and of those that straddle lines, in whole sectors
constexpr double kEighths = 1.32;          // more of either where tiles have every eighth row
constexpr double kCopied = 1.401;          // loads of what has been copied right before
constexpr double kLine = 0.0008791;        // the next load of the same line
constexpr double kSent = 9.574e6;          // bytes out of L2, and
constexpr double kMerging = 5.345;         // how suddenly they are what bounds a load;
constexpr double kDrift = 0.04613;         // part that is sent again of what blocks of a GPC ask for alike
constexpr double kLatency = 0.8221;  // from a load to its bytes, of which every stage of the ring hides some
constexpr double kIdleL2 = 0.03679;  // time of an L2-bound step on an idle machine, over that on a full one
constexpr double kContention = 4.066;  // how well multiplying and loading overlap, and
constexpr double kStep = 0.07315;      // at least, of every step: a warpgroup's loop, and
constexpr double kFloor = 3.286;       // how well it overlaps with what a step does
constexpr double kOverlap = 1.8;       // memory and multiprocessors: 1 not at all
constexpr double kPaired = 1.974;      // the same where two blocks fill each other's gaps
constexpr double kRepack = 7.139e6;    // bytes of a copied operand, read
constexpr double kPadded = 2.211;      // and, times this, written in whole lines
constexpr double kRepackFixed = 1.497;

// Bytes of shared memory that a step of k reads and writes: an instruction takes 64 rows and all columns of
// the tile, for every 64 rows anew.
double shared_bytes(const TileConfig& t, int tile_n) {
  const double instructions = t.tile_m / 64 * (kTileK / 16);
  return instructions * (64 + tile_n) * 32 + (t.tile_m + tile_n) * kTileK * 2;
}

// Bytes of a stage of the ring, where y comes in whole blocks of columns or not.
int stage_bytes(const TileConfig& t, bool y_blocks) {
  const int block = rows_block(t.result_n());
  return (t.tile_m + (y_blocks ? ceil_div(t.tile_n, block) * block : t.tile_n)) * kTileK * 2;
}

// What the model has to know of how an operand, rows x cols as op() sees it, lies in memory.
class Operand {
 public:
  // `columns`: it is the engine's columns.
  Operand(const Matrix& x, int64_t rows, int64_t cols, const TileConfig& t, bool columns)
      : lines_(x.transposed ? cols : rows),
        length_(x.transposed ? rows : cols),
        eighths_(!columns && t.eighths()),
        pitch_(eighths_ ? 8 * x.ld : x.ld),
        copied_(lines_ > 1 && x.ld % 8 != 0 && !(columns ? t.realigns() : t.eighths())) {}

  // Bytes that are moved to copy it first, if its rows are such as the copy engine cannot address.
  double repacked() const {
    return copied_ ? 2 * double(lines_) * (double(length_) + kPadded * double(round_up(length_, kL2Line)))
                   : 0;
  }
  // How much more a load takes where rows begin in the middle of lines of L2; or where they have been copied,
  // so that they do not.
  double straddling() const {
    if (copied_) return kCopied;
    return lines_ <= 1 || whole_lines(pitch_)
               ? 1
               : (eighths_ ? kEighths : 1) * (pitch_ % 16 == 0 ? kSectors : kLines);
  }
  // How many rows a line of L2 holds, about, if several.
  double crowded() const { return std::max(1.0, kL2Line / double(std::max<int64_t>(1, length_))); }

 private:
  int64_t lines_, length_;
  bool eighths_;
  int64_t pitch_;  // of those that are loaded together
  bool copied_;
};

// Both of a product.
struct Operands {
  Operand a, b;

  Operands(const GemmProblem& p, const TileConfig& t, const Config& c)
      : a(p.a, p.m, p.k, t, c.swap), b(p.b, p.k, p.n, t, !c.swap) {}
};

// What an epilogue does besides storing: an addition, a function of few instructions or C as vectors, or
// anything else, for which there is one piece of code that has everything.
enum class Work { kNone, kLittle, kFunction, kFull };

Work work_of(const GemmProblem& p) {
  if (p.activation == Activation::kNone && !p.has_c && !p.has_bias && p.alpha == 1) return Work::kNone;
  if (p.d == DType::kF32 || p.n % 8 != 0) return Work::kFull;
  if (p.has_c) return usual(p.activation) ? Work::kFunction : Work::kFull;
  if (little(p.activation)) return Work::kLittle;
  return usual(p.activation) ? Work::kFunction : Work::kFull;
}

// How much longer an epilogue takes by the way that its results are stored.
double storing(const GemmProblem& p, const TileConfig& t, bool swap) {
  const int columns = t.strip_columns();
  const double twice = double(t.strips() * columns) / t.result_n();
  if (p.n % 8 == 0) return twice * (swap ? kSwapped : 1) * (1 + kNarrowStrip * (64.0 / columns - 1));
  if (swap) return kSwapped * kUnalignedSwapped;
  const bool own = columns == 64 && t.strips() == t.whole_strips();  // code for rows
  if (t.schedule != Schedule::kPingPong) return own ? kUnalignedInTurn64 : kUnalignedInTurn;
  return own ? kUnaligned64 : columns >= 32 ? kUnaligned32 : kUnaligned16;
}

// How much more memory traffic the results make by the way that their rows lie in lines.
double stores(const GemmProblem& p, bool swap) {
  if (p.n % 8 != 0) return swap ? kStoresSwapped : kStoresUnaligned;
  return (whole_lines(p.n) ? 1 : p.n % 16 == 0 ? kStoresLines : kStoresSectors) * (swap ? kStoresColumns : 1);
}

// The larger of two times that overlap, and somewhat more the closer they are: by an exponent of 1, their
// sum.
double either(double a, double b, double exponent) {
  return std::pow(std::pow(a, exponent) + std::pow(b, exponent), 1 / exponent);
}

// Of the rows and the columns of so many units that follow each other, wherever they begin in a walk down
// `group` rows at a time, the part that is distinct.
struct Distinct {
  double rows, columns;

  Distinct(const Units& u, double units, double group) {
    const double more = units - 1, down = std::min(group, u.rows);
    const double products = std::min(u.products, 1 + more / (u.rows * u.columns));
    rows = std::min(1.0, products * std::min(u.rows, down * (1 + more / (down * u.columns))) / units);
    columns = std::min(1.0, products * std::min(u.columns, 1 + more / down) / units);
  }
};

// Lines that a step of K loads, of the engine's rows and columns, and what more it takes to load them where
// they straddle lines of L2, or are halves of such.
struct Lines {
  double rows, columns, more;

  Lines(const Operands& o, const Shape& s, const TileConfig& t, const Config& c, int tile_n) {
    const double a = o.a.straddling(), b = o.b.straddling();
    const int block = rows_block(t.result_n());
    const int64_t n = tile_n < t.tile_n ? s.n % t.tile_n : s.n;  // the narrow tiles' columns, or all
    const double y = s.y_blocks     ? double(round_up(tile_n, block))
                     : t.realigns() ? tile_n
                                    : loaded_rows(n, tile_n, c.cluster_m);
    const double narrow = s.y_blocks && block == 32 ? kNarrowBlock - 1 : 0;
    rows = double(s.x_blocks ? t.tile_m : loaded_rows(s.m, t.tile_m, c.cluster_n)) / c.cluster_n;
    columns = y / c.cluster_m;
    more = rows * ((c.swap ? b : a) - 1) + columns * (narrow + (c.swap ? a : b) - 1);
  }
};

// Bytes that are read from memory again, as L2 does not hold them for so long: the columns, by every group of
// rows, and a group's rows, by every wave of units along them.
double read_again(const Shape& s, const TileConfig& t, const Config& c, const Units& u) {
  const double line = 2 * double(s.k) / c.split_k, group = std::min(double(c.group), u.rows);
  const double row = line * t.tile_m * c.cluster_m, column = line * t.tile_n * c.cluster_n;  // of units
  const double abreast = std::max(1.0, u.running() / group);  // columns of a group's units that run at a time
  const auto lost = [](double bytes) { return std::max(0.0, 1 - kCache / bytes); };
  const double rows =
      std::max(0.0, u.columns / abreast - 1) * u.rows * row * lost(group * row + abreast * column);
  const double columns =
      (std::ceil(u.rows / group) - 1) * u.columns * column * lost(u.columns * column + group * row);
  return u.products * (rows + columns);
}

int idle_stages(const Shape& s, const TileConfig& t, const Config& c, const Units& u) {
  if (t.realigns()) return 0;
  const int64_t all = s.m * (t.tile_m / t.result_m()) + s.n * (t.tile_n / t.result_n());  // of both weights
  const double lines = double(all) * double(s.batch) * c.split_k * u.running() / u.all();
  const int stages = t.stages(stage_bytes(t, s.y_blocks));
  const double needed = std::ceil(kOnTheWay / (lines * kTileK * 2));
  return stages - static_cast<int>(std::clamp<double>(needed, std::min(kLeastStages, stages), stages));
}

}  // namespace

int idle_stages(const Shape& s, const TileConfig& t, const Config& c, int sms) {
  return idle_stages(s, t, c, Units(s, t, c, sms));
}

double cost(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c,
            const Machine& machine) {
  const int sms = machine.multiprocessors;
  const int cluster = c.cluster();
  const Units u(s, t, c, sms);
  const double column_units = u.rows * u.products, units = u.all(), running = u.running();
  const double clusters = u.clusters, rows = u.rows, columns = u.columns;
  const int64_t k_steps = t.eighths() ? eighths_steps(s.k, p.a.ld) : ceil_div(s.k, kTileK);
  const double split_steps = std::ceil(double(std::max<int64_t>(1, k_steps)) / c.split_k);

  const bool ping_pong = t.schedule == Schedule::kPingPong;
  const Operands operands(p, t, c);
  const double meeting = c.cluster_m * c.cluster_n > 1 ? (t.tile_m == 64 ? kMeetingShort : kMeeting) : 0;
  const double work = double(s.m) * double(s.n) * double(s.k) * double(s.batch);
  const double heat = 1 + kHeat * work / (work + kHeatWork);
  const double sharing = std::max(1.0, std::ceil(running * cluster / sms));  // blocks of a multiprocessor
  const double part = 1 / heat / sharing;  // that a block has of a multiprocessor's rates
  const Distinct near(u, u.neighbours(cluster), c.group);
  // Tiles of every eighth row load y from where their rows begin: of neighbours, so many such places.
  const double starts =
      t.eighths() ? std::max(1.0, std::min(double(c.group), rows) / std::ceil(rows / 8)) : 1;
  const RawStage raw(t, s.y_blocks);
  const int bytes = stage_bytes(t, s.y_blocks);
  const int stages =
      t.realigns() ? raw_stages(t, bytes, s.y_blocks) : t.stages(bytes) - idle_stages(s, t, c, u);
  // Of a tile of which so many columns are multiplied.
  const auto step_of = [&](int tile_n) {
    const double multiply =
        double(t.tile_m) * tile_n * kTileK / (kMma * (t.consumers == 3 ? kThree : 1) * part);
    const double feed = shared_bytes(t, tile_n) / (kShared * part);
    const double realign = t.realigns() ? (raw.lines * kRealignLine + raw.bytes / kRealign) / part : 0;
    const double mma = std::max({multiply, feed, realign});
    const Lines lines(operands, s, t, c, tile_n);
    // Blocks that ask for the same do so together, but for a small part of the time, and clusters do not.
    const auto sent_of = [](double distinct, bool shared) {
      return shared ? 1 : distinct + kDrift * (1 - distinct);
    };
    const double sent = sent_of(near.rows, c.cluster_n > 1) * lines.rows +
                        sent_of(std::min(1.0, near.columns * starts), c.cluster_m > 1) * lines.columns;
    const double bytes_of_line = kTileK * 2 * sms * (kIdleL2 + (t.blocks - kIdleL2) * running / clusters);
    const double load =
        bytes_of_line * either((lines.rows + lines.columns + lines.more) / kL2, sent / kSent, kMerging);
    return either(either(mma, load, kContention), std::max(kStep, kLatency / stages), kFloor) + meeting;
  };
  const double step = step_of(t.tile_n);
  // Waves of whole tiles. Narrow ones fill the last wave's gaps, or make cheaper waves.
  const double all_waves = std::ceil(units / clusters);
  double waves = all_waves;
  if (narrow_edge(t, s.n) && c.cluster_n == 1) {
    const double whole = std::ceil((units - column_units) / clusters), narrow = step_of(kNarrow) / step;
    const double walk =
        double(narrow_stride(c, int64_t(rows), int64_t(columns), int64_t(u.products), int64_t(clusters)));
    waves = walk > 0 && walk < clusters ? whole + std::max(0.0, std::ceil(column_units / walk) * narrow - 1)
                                        : whole + narrow * (all_waves - whole);
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
  // A block gets the sums of so many of its tile's warps, or of none.
  if (c.slices() > 1)
    epilogue += kGather + (c.slices() - 1) * results * t.finished_warps(c.slices()) / kGathered;
  double busy = main_loop + waves * epilogue;
  if (ping_pong && resident && waves > 1) busy = std::max(main_loop, busy / 2 + all_waves * kTurn) + epilogue;

  const double batch = double(s.batch), depth = double(s.k);
  const double read = 2 * batch * depth * double(p.m + (p.gated ? 2 : 1) * p.n);
  const double result = result_bytes * batch * double(s.m) * double(s.n) * c.partials();
  const double added = p.has_c && c.partials() == 1 ? result : 0;  // C, read
  const double traffic = c.partials() > 1 ? 0.3 : stores(p, c.swap);
  const double rate = kDram * (machine.bandwidth > 0 ? machine.bandwidth / kModelMachine.bandwidth : 1);
  const double dram = (read + read_again(s, t, c, u) + added + result * traffic) / rate;

  const double ramp = kRamp * std::min(1.0, split_steps / 8);
  // A line lies in one slice of L2, which gives it to one block or cluster after the other, and where it
  // holds several rows, as often to each.
  const double reloads = operands.a.straddling() * operands.a.crowded() * (c.swap ? rows : columns) +
                         operands.b.straddling() * operands.b.crowded() * (c.swap ? columns : rows);

  double time = kLaunch - kLight * (t.blocks > 1) + ramp + kCluster * (cluster > 1) +
                either(busy, dram, t.blocks > 1 ? kPaired : kOverlap) + kLine * reloads;
  if (c.partials() > 1) time += kSplit + result / kPartials;
  const double repacked = batch * (operands.a.repacked() + (p.gated ? 2 : 1) * operands.b.repacked());
  if (repacked > 0) time += kRepackFixed + repacked / kRepack;
  return time;
}

}  // namespace jaxgemm::cuda::sm90
