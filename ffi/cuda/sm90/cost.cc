// The cost model: what a configuration should take on a problem, in microseconds, from counts alone.
//
// A step of k. A block's time for a step (step_time) is the larger of what its multiprocessor needs, for
// tensor cores, shared memory or shifting y, and what its loads need of L2. L2 has two rates: bytes that go
// into multiprocessors, and lines that it sends. One sent line serves all blocks of a GPC that ask for it at
// about the same time. A step is no shorter than the latency of a load divided by the ring's stages. If the
// machine is not full, a block has more of L2 to itself.
//
// The whole. Units run in waves, and each unit ends with an epilogue, which ping-pong hides under the other
// warpgroup's main loop. Device memory works at the same time, and its time bounds the whole. Bytes that L2
// drops too early are read from memory again; how many depends on the walk over the units. Splitting K
// makes more units at the price of partial results and a second kernel, or, within a cluster, of exchanging
// sums. Unaligned operands are copied first, or cost more to load. A gated product loads and multiplies
// whole tiles and stores half of each. Long products heat the chip until it lowers the multiprocessors'
// clock, but not the memories' clock.
//
// benchmarks/fit.py fitted the constants to timings of products: random ones, and some that neural networks
// have. Each product was timed in many configurations. The fit makes two things small: the time that the
// model's choice loses against the fastest configuration, and the errors of expected times. The timings are
// sources of benchmarks/results/sm90_configurations.json: nvidia-h200/fit and, of nvidia-h100-80gb-hbm3,
// walks_fit, eighths_fit, copied_fit and realigned_fit. The times of finishing (kFinish) were fitted later,
// to nvidia-h200's fit, present_fit, odd_fit and finished_fit; finished_fit has unaligned results with a
// bias. The times of clusters, copies, unaligned results and tiles of every eighth row were fitted to odd_fit
// as well, the times of planes (kPlane, kSplit) to planes_fit, and those of operands of 8 bits (kTurn,
// kWideResults, kByteDrift) to bytes_fit. The rates are an H200's; memory's rate is scaled to the machine's.
// Constants absorb what the model leaves out, so they are not the hardware's rates.
#include "cost.h"

#include <algorithm>
#include <cmath>

#include "cost_constants.h"
#include "output.h"
#include "planes/planes.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// kRingFill counts in full for units of at least so many steps: rings have about as many stages.
constexpr double kRingFillSteps = 8;

// Bytes of both operands that all blocks together keep in flight, so that memory is busy; and stages that a
// block fills in any case. With more bytes in flight, products of few rows and long sums are slower
// (docs/experiments/loads.md), we believe because blocks drift apart.
constexpr double kBytesInFlight = 9e6;
constexpr int kMinStages = 4;

// Bytes of shared memory that a step of k reads and writes. Each wgmma reads 64 rows of x and all columns of
// y.
double shared_bytes(const TileConfig& t, int tile_n) {
  const double instructions = t.tile_m / 64 * (kLineBytes / 32);
  return instructions * (64 + tile_n) * 32 + (t.tile_m + tile_n) * kLineBytes;
}

// Bytes of a stage of the ring.
int stage_bytes(const TileConfig& t, bool y_mn_major) {
  const int block = mn_block_rows(t.result_n());
  return (t.tile_m + (y_mn_major ? ceil_div(t.tile_n, block) * block : t.tile_n)) * kLineBytes;
}

// How one operand lies in memory: lines of `length` elements, `pitch` apart.
class Operand {
 public:
  // op(x) is rows x cols. `is_y`: whether x is the engine's y.
  Operand(const Matrix& x, int64_t rows, int64_t cols, const TileConfig& t, bool is_y)
      : lines_(x.transposed ? cols : rows),
        length_(x.transposed ? rows : cols),
        every_eighth_(!is_y && t.every_eighth),
        pitch_(every_eighth_ ? 8 * x.ld : x.ld),
        copied_(lines_ > 1 && x.ld % 8 != 0 && !(is_y ? t.realigns : t.every_eighth)) {}

  // Bytes that copying an unaligned operand moves: bytes read plus weighted bytes written.
  double repacked() const {
    return copied_
               ? 2 * double(lines_) * (double(length_) + kRepackWrite * double(round_up(length_, kL2Line)))
               : 0;
  }
  // How many times longer a load takes than one of whole lines of L2.
  double straddling() const {
    if (copied_) return kCopiedLoads;
    return lines_ <= 1 || whole_lines(pitch_) ? 1
                                              : (every_eighth_ ? kStraddleEveryEighth : 1) *
                                                    (pitch_ % 16 == 0 ? kStraddleSectors : kStraddleLines);
  }
  // About how many rows a line of L2 holds; 1 if a row fills a line.
  double rows_in_line() const { return std::max(1.0, kL2Line / double(std::max<int64_t>(1, length_))); }

 private:
  int64_t lines_, length_;
  bool every_eighth_;
  int64_t pitch_;  // of lines that are loaded together
  bool copied_;
};

// The kinds of epilogue by what they do besides storing. The indices of kFinish.
enum class Finish {
  kStore,    // nothing
  kTrivial,  // a bias, or an activation of as few instructions
  kShort,    // an activation of short code, or C
  kGeneral,  // anything, element by element
};

Finish finish_of(const GemmProblem& p, StorePath path) {
  if (path == StorePath::kElements) return Finish::kGeneral;
  const bool finishes = p.gated ? p.activation != Activation::kNone
                                : path == StorePath::kTmaFinished || path == StorePath::kByWarpFinished;
  if (!finishes) return Finish::kStore;
  if (!has_short_code(p.activation)) return Finish::kGeneral;
  return is_trivial(p.activation) && !p.has_c ? Finish::kTrivial : Finish::kShort;
}

// How many times longer an epilogue takes by the path that stores its results.
double storing(const GemmProblem& p, const TileConfig& t, bool swap, StorePath path) {
  const int bytes = static_cast<int>(dtype_bytes(p.a.dtype)), columns = t.strip_columns(bytes);
  const double overlap =
      double(t.strips(bytes) * columns) / t.result_n();  // columns stored twice count twice
  const bool by_warp = path == StorePath::kByWarp || path == StorePath::kByWarpFinished;
  if (p.n % 8 == 0 && !by_warp) {
    return overlap * (swap ? kSwappedEpilogue : 1) * (1 + kNarrowStrip * (64.0 / columns - 1));
  }
  if (swap) return kSwappedEpilogue * kUnalignedSwapped;
  const bool wide = columns == 64 && t.strips(bytes) == t.whole_strips(bytes);
  if (t.schedule != Schedule::kPingPong)
    return wide ? kCooperativeUnalignedRows64 : kCooperativeUnalignedRows;
  return wide ? kUnalignedRows64 : columns >= 32 ? kUnalignedRows32 : kUnalignedRows16;
}

// How many times more memory traffic results make than their bytes, by how D's rows lie in lines of L2.
double result_traffic(const GemmProblem& p, bool swap) {
  if (p.n % 8 != 0) return swap ? kTrafficUnalignedSwapped : kTrafficUnaligned;
  return (whole_lines(p.n) ? 1
          : p.n % 16 == 0  ? kTrafficLines
                           : kTrafficSectors) *
         (swap ? kTrafficSwapped : 1);
}

// A smooth maximum of two times that overlap: their sum for an exponent of 1, their maximum for a large one.
double soft_max(double a, double b, double exponent) {
  return std::pow(std::pow(a, exponent) + std::pow(b, exponent), 1 / exponent);
}

// For `count` units that follow each other in the walk: which part of their rows, and which part of their
// columns, is distinct. The units may begin anywhere in a walk down `height` rows at a time.
struct Distinct {
  double rows, columns;

  Distinct(const UnitCounts& u, double count, double height) {
    const double more = count - 1, down = std::min(height, u.rows);
    const double products = std::min(u.products, 1 + more / (u.rows * u.columns));
    rows = std::min(1.0, products * std::min(u.rows, down * (1 + more / (down * u.columns))) / count);
    columns = std::min(1.0, products * std::min(u.columns, 1 + more / down) / count);
  }
};

// A configuration on a problem, with values that several functions below need.
struct Case {
  const GemmProblem& p;
  const Shape& s;
  const TileConfig& t;
  const Config& c;
  int sms;
  Operand a, b;
  UnitCounts u;
  double bytes;             // of an element of the operands
  double planes, products;  // planes of an operand, and products of planes; 1 without planes
  double throttle;          // how many times longer multiprocessors take, as power lowers their clock

  Case(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c, int sms,
       const UnitCounts& u)
      : p(p), s(s), t(t), c(c), sms(sms), a(p.a, p.m, p.k, t, c.swap), b(p.b, p.k, p.n, t, !c.swap), u(u) {
    const PlaneScheme scheme = plane_scheme(p.arithmetic);
    bytes = double(dtype_bytes(p.a.dtype));
    planes = std::max(1, scheme.planes);
    products = std::max(1, scheme.products);
    const double work = double(s.m) * double(s.n) * double(s.k) * double(s.batch) * products;
    throttle = 1 + kThrottle * work / (work + kThrottleWork);
  }
  bool ping_pong() const { return t.schedule == Schedule::kPingPong; }
};

// Lines of kLineBytes that a block loads in a step, of the engine's rows and columns: its share of what
// the blocks of a cluster load together. `more`: what rows that straddle lines of L2 add, counted in lines.
struct LoadedLines {
  double rows, columns, more;

  LoadedLines(const Case& x, int tile_n) {
    const TileConfig& t = x.t;
    const double a = x.a.straddling(), b = x.b.straddling();
    const int block = mn_block_rows(t.result_n());
    const int64_t n = tile_n < t.tile_n ? x.s.n % t.tile_n : x.s.n;  // the narrow tiles' columns, or all
    const double y = x.s.y_mn_major ? double(round_up(tile_n, block))
                     : t.realigns   ? tile_n
                                    : loaded_rows(n, tile_n, x.c.cluster_m);
    const double narrow = x.s.y_mn_major && block == 32 ? kNarrowBlock - 1 : 0;
    rows = double(x.s.x_mn_major ? t.tile_m : loaded_rows(x.s.m, t.tile_m, x.c.cluster_n)) / x.c.cluster_n;
    columns = y / x.c.cluster_m;
    more = rows * ((x.c.swap ? b : a) - 1) + columns * (narrow + (x.c.swap ? a : b) - 1);
  }
};

// A step of `tile_n` columns in a multiprocessor: the longest of multiplying, of shared memory, and of
// shifting y. Tensor cores multiply as many bytes of k a second for every type of operands.
double multiply_time(const Case& x, int tile_n) {
  const TileConfig& t = x.t;
  const double sharing = std::max(1.0, std::ceil(x.u.running() * x.c.cluster() / x.sms));  // blocks
  const double part = 1 / x.throttle / sharing;  // of the multiprocessor's rates
  const RawStage raw(t, x.s.y_mn_major);
  const double multiply = double(t.tile_m) * tile_n * kStepK16 /
                          (kMmaRate * (t.consumers == 3 && !t.planes ? kThreeConsumers : 1) * part);
  const double feed = shared_bytes(t, tile_n) / (kSharedRate * part);
  const double realign = t.realigns ? (raw.lines * kRealignLine + raw.bytes / kRealignRate) / part : 0;
  const double longest = std::max({multiply, feed, realign});
  return t.turned ? soft_max(longest, kTurn * t.warpgroup_rows() / 64 / part, kTurnOverlap) : longest;
}

// The time of a step's loads in L2.
double load_time(const Case& x, int tile_n) {
  const UnitCounts& u = x.u;
  const LoadedLines lines(x, tile_n);
  const Distinct distinct(u, u.of_gpc(x.c.cluster()), x.c.walk_height);
  // Tiles of every eighth row load y from where their rows begin. `starts` is the number of different
  // places at which neighbours begin.
  const double starts =
      x.t.every_eighth ? std::max(1.0, std::min(double(x.c.walk_height), u.rows) / std::ceil(u.rows / 8)) : 1;
  // Blocks of a GPC load a common line together but for `drift`; blocks of a cluster always do.
  const double drift = x.bytes == 1 ? kByteDrift : kDrift;
  const auto sent_of = [=](double part, bool shared) { return shared ? 1 : part + drift * (1 - part); };
  const double sent = sent_of(distinct.rows, x.c.cluster_n > 1) * lines.rows +
                      sent_of(std::min(1.0, distinct.columns * starts), x.c.cluster_m > 1) * lines.columns;
  const double bytes_of_line =
      kLineBytes * x.sms * (kIdleL2 + (x.t.blocks - kIdleL2) * u.running() / u.resident);
  return bytes_of_line *
         soft_max((lines.rows + lines.columns + lines.more) / kL2Rate, sent / kL2SendRate, kL2Bound);
}

int idle_stages(const Shape& s, const TileConfig& t, const Config& c, const UnitCounts& u) {
  if (t.realigns || t.planes) return 0;
  const int64_t all = s.m * (t.tile_m / t.result_m()) + s.n * (t.tile_n / t.result_n());  // of both weights
  const double lines = double(all) * double(s.batch) * c.split_k * u.running() / u.all();
  const int stages = t.stages(stage_bytes(t, s.y_mn_major));
  const double needed = std::ceil(kBytesInFlight / (lines * kLineBytes));
  return stages - static_cast<int>(std::clamp<double>(needed, std::min(kMinStages, stages), stages));
}

// Microseconds of a step of k on `tile_n` columns.
double step_time(const Case& x, int tile_n) {
  const TileConfig& t = x.t;
  const int bytes = stage_bytes(t, x.s.y_mn_major);
  const int stages = t.realigns ? realign_raw_stages(t, bytes, x.s.y_mn_major)
                                : t.stages(bytes) - idle_stages(x.s, t, x.c, x.u);
  const double together = x.c.cluster_m * x.c.cluster_n == 1 ? 0
                          : t.tile_m == 64                   ? kClusterStep64
                                                             : kClusterStep;
  const double work = soft_max(multiply_time(x, tile_n), load_time(x, tile_n), kStepOverlap);
  if (t.planes) return soft_max(work, x.throttle * kPlaneStep, kPlaneOverlap);
  return soft_max(work, std::max(kMinStep, kStageLatency / stages), kMinStepOverlap) + together;
}

// Waves of units, counted in whole tiles: narrow tiles fill gaps of the last wave of whole ones, or make
// cheaper waves.
double wave_count(const Case& x, double step) {
  const UnitCounts& u = x.u;
  const double units = u.all(), waves = std::ceil(units / u.resident);
  if (!has_narrow_edge(x.t, x.s.n) || x.c.cluster_n > 1) return waves;
  const double column_units = u.rows * u.products;  // of the narrow column
  const double whole = std::ceil((units - column_units) / u.resident);
  const double narrow = step_time(x, kNarrowColumns) / step;
  const double walk = double(
      narrow_stride(x.c, int64_t(u.rows), int64_t(u.columns), int64_t(u.products), int64_t(u.resident)));
  return walk > 0 && walk < u.resident ? whole + std::max(0.0, std::ceil(column_units / walk) * narrow - 1)
                                       : whole + narrow * (waves - whole);
}

// Bytes of an element that a tile stores: of a partial sum, or of a result.
double result_bytes(const Case& x) { return x.c.partials() > 1 ? 4 : double(dtype_bytes(x.p.d)); }

// Microseconds of one tile's epilogue.
double epilogue_time(const Case& x) {
  const TileConfig& t = x.t;
  const double results = double(t.result_m()) * t.result_n();
  double time = x.throttle * kEpilogue * results / 16384 * result_bytes(x) / 2;
  // Planes make fp32 results, partial or not, which lanes store by themselves.
  if (t.planes) return time * (x.c.swap ? kPlaneStoresSwapped : kPlaneStores) / t.consumers;
  if (!x.ping_pong()) time *= kCooperativeEpilogue / t.consumers;
  if (x.c.partials() > 1) {
    if (x.c.swap) time *= kSwappedPartials;
  } else {
    const StorePath path = store_path(x.p, x.c.swap, false);
    time *= storing(x.p, t, x.c.swap, path) * (x.bytes == 1 && result_bytes(x) > 2 ? kWideResults : 1) *
            (x.ping_pong() ? kFinish : kCooperativeFinish)[static_cast<int>(finish_of(x.p, path))];
  }
  const int slices = x.c.slices();
  const double received = (slices - 1) * results * t.finished_warps(slices) / t.sharing_warps();
  if (slices > 1) time += kGatherStart + received / kGatherRate;
  return time;
}

// Bytes that are read from memory again because L2 does not hold them long enough. Every swath of rows
// reads the columns, and every wave of units along a swath reads the swath's rows.
double read_again(const Case& x) {
  const UnitCounts& u = x.u;
  const double row_bytes = x.bytes * double(x.s.k) * x.planes / x.c.split_k,
               height = std::min(double(x.c.walk_height), u.rows);
  const double row = row_bytes * x.t.tile_m * x.c.cluster_m,
               column = row_bytes * x.t.tile_n * x.c.cluster_n;  // of units
  const double abreast = std::max(1.0, u.running() / height);    // columns of a swath that run at a time
  const auto lost = [](double bytes) { return std::max(0.0, 1 - kL2Capacity / bytes); };
  const double rows =
      std::max(0.0, u.columns / abreast - 1) * u.rows * row * lost(height * row + abreast * column);
  const double columns =
      (std::ceil(u.rows / height) - 1) * u.columns * column * lost(u.columns * column + height * row);
  return u.products * (rows + columns);
}

// Bytes of all results; of partial results if K is split.
double all_result_bytes(const Case& x) {
  return result_bytes(x) * double(x.s.batch) * double(x.s.m) * double(x.s.n) * x.c.partials();
}

// Microseconds of device memory.
double memory_time(const Case& x, const Machine& machine) {
  const GemmProblem& p = x.p;
  const double read =
      x.bytes * double(x.s.batch) * double(x.s.k) * x.planes * double(p.m + (p.gated ? 2 : 1) * p.n);
  const double result = all_result_bytes(x);
  const double added = p.has_c && x.c.partials() == 1 ? result : 0;  // C, read
  const double traffic = x.c.partials() > 1 ? kPartialTraffic : result_traffic(p, x.c.swap);
  const double rate = kDramRate * (machine.bandwidth > 0 ? machine.bandwidth / kModelMachine.bandwidth : 1);
  return (read + read_again(x) + added + result * traffic) / rate;
}

// How often lines of L2 are loaded again, one load after the other: the part of L2 that holds a line gives it
// to one block or cluster at a time. A line that holds several rows is loaded as often again for each.
double line_reloads(const Case& x) {
  return x.a.straddling() * x.a.rows_in_line() * (x.c.swap ? x.u.rows : x.u.columns) +
         x.b.straddling() * x.b.rows_in_line() * (x.c.swap ? x.u.columns : x.u.rows);
}

// Microseconds of the launch, of filling the ring before the first step of k, and of starting clusters.
double launch_time(const Case& x, double steps) {
  const double fill = kRingFill * std::min(1.0, steps / kRingFillSteps);
  return kLaunch - kTwoBlocksLaunch * (x.t.blocks > 1) + fill + kClusterLaunch * (x.c.cluster() > 1);
}

}  // namespace

double copy_time(double bytes) { return bytes > 0 ? kSplitLaunch + bytes / kSplitRate : 0; }

double split_time(const GemmProblem& p) {
  const PlaneScheme scheme = plane_scheme(p.arithmetic);
  const double elements = double(p.batch_count()) * double(p.k) * double(p.m + p.n);
  const double time = copy_time(elements * ((scheme.scaled ? 8 : 4) + 2 * scheme.planes));
  return time + (scheme.scaled ? 3 * kSplitLaunch : 0);  // a further pass, and two that end at once
}

int idle_stages(const Shape& s, const TileConfig& t, const Config& c, int sms) {
  return idle_stages(s, t, c, UnitCounts(s, t, c, sms));
}

Cost cost(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c,
          const Machine& machine) {
  return cost(p, s, t, c, machine, UnitCounts(s, t, c, machine.multiprocessors));
}

Cost cost(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c, const Machine& machine,
          const UnitCounts& units) {
  const Case x(p, s, t, c, machine.multiprocessors, units);
  const int64_t k_steps = t.every_eighth ? every_eighth_steps(s.k, p.a.ld) : ceil_div(s.k, step_k(p));
  const double steps =
      std::ceil(double(std::max<int64_t>(1, k_steps)) / c.split_k) * x.products;  // of a unit
  const double step = step_time(x, t.tile_n), waves = wave_count(x, step);
  const double epilogue = epilogue_time(x);

  Cost cost{};
  cost.launch = launch_time(x, steps);
  cost.main_loop = waves * steps * step;
  double busy = cost.main_loop + waves * epilogue;
  if (x.ping_pong() && c.grid == Grid::kResident && waves > 1) {
    // One warpgroup's epilogue runs under the other's main loop, and the last one's under nothing.
    const double handovers = std::ceil(x.u.all() / x.u.resident) * kHandover;
    busy = std::max(cost.main_loop, busy / 2 + handovers) + epilogue;
  }
  cost.epilogue = busy - cost.main_loop;
  const double bounded =
      soft_max(busy, memory_time(x, machine), t.blocks > 1 ? kMemoryOverlapTwoBlocks : kMemoryOverlap);
  const double reloads = kLineReload * line_reloads(x);
  cost.memory = bounded - busy + reloads;
  cost.total = cost.launch + bounded + reloads;
  if (c.partials() > 1) {
    cost.split = kReduceLaunch + all_result_bytes(x) / kPartialsRate;
    cost.total += cost.split;
  }
  const double repacked = double(s.batch) * (x.a.repacked() + (p.gated ? 2 : 1) * x.b.repacked());
  if (repacked > 0) cost.copies = kRepackLaunch + repacked / kRepackRate;
  if (t.planes) cost.copies = split_time(p);
  cost.total += cost.copies;
  return cost;
}

}  // namespace jaxgemm::cuda::sm90
