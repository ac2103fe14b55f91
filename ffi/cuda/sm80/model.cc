// The cost model: what a plan should take, in microseconds, from counts alone.
//
// Tiles run in rounds, as many at a time as registers and shared memory hold. A tile's step along k takes the
// larger of two times: that of the tensor cores for all tiles that share the multiprocessor, and the latency
// of copies over the stages that hide it. Each round adds what does not overlap: filling the pipeline, and
// storing. If memory needs longer for all operands and results, its time counts instead. Split tiles add the
// traffic of their partial results and a second launch.
#include <algorithm>
#include <cmath>

#include "plan.h"

namespace jaxgemm::cuda::sm80 {
namespace {

// Measured on one chip. Plans are compared with one another, so their ratios matter, not the values.
struct Speed {
  double step;     // microseconds that one step along k of one tile occupies a multiprocessor
  double latency;  // of a step with the multiprocessor to itself
  double round;    // microseconds of filling the pipeline and storing, once a round
  int resident;    // tiles that share a multiprocessor
};
constexpr Speed kSpeed[kTileCount] = {
    {0.53, 0.51, 2.8, 1},  {0.285, 0.31, 2.4, 2}, {0.16, 0.31, 2.5, 4},
    {0.205, 0.42, 2.2, 4}, {0.17, 0.42, 1.8, 4},
};
constexpr Speed kNarrowSpeed = {0.5, 1.2, 3.0, 2};

constexpr double kDram = 4.0e6;     // bytes a microsecond
constexpr double kLaunch = 1.6;     // microseconds of the smallest kernel
constexpr double kGeneral = 3.0;    // microseconds that the general epilogue adds to a round's stores
constexpr double kReduce = 2.0;     // microseconds of the second launch of a split
constexpr double kPartial = 3.0e6;  // bytes a microsecond of partial results, written and read

const Speed& speed_of(const Plan& plan) { return plan.wide ? kSpeed[plan.tile] : kNarrowSpeed; }

}  // namespace

int64_t modelled_slots(const Plan& plan) { return int64_t(kModelSms) * speed_of(plan).resident; }

double modelled_time(const GemmProblem& p, const Plan& plan) {
  const TileConfig& t = plan.tile_config();
  const Speed& speed = speed_of(plan);
  const double m = double(p.m), n = double(p.n), k = double(p.k), batch = double(p.batch_count());
  const double steps = std::max(1.0, std::ceil(k / t.k));
  const double slots = double(modelled_slots(plan));
  const bool plain = !p.has_c && !p.has_bias && p.activation == Activation::kNone;
  const double stores = speed.round + (plain && p.n % (p.d == DType::kF32 ? 4 : 8) == 0 ? 0 : kGeneral);

  // Units of equal length: full rounds, and a last round in which each multiprocessor has its share of what
  // is left.
  const auto busy = [&](double units, double unit_steps) {
    const auto round = [&](double share) {
      return unit_steps * std::max(speed.latency, share * speed.step) + stores;
    };
    const double rounds = std::floor(units / slots);
    const double last = std::ceil((units - rounds * slots) / kModelSms);
    return rounds * round(speed.resident) + (last > 0 ? round(last) : 0);
  };
  const double tiles = double(tile_count(p, t)), split_tiles = double(plan.split_tiles);
  const double split_units = split_tiles * plan.splits;
  const double compute = busy(tiles - split_tiles, steps) + busy(split_units, std::ceil(steps / plan.splits));

  const double out = m * n * batch * (p.d == DType::kF32 ? 4 : 2);
  const double memory = (2 * batch * (m * k + k * n) + out) / kDram;
  const double units = tiles - split_tiles + split_units;
  // Few units do not reach all of memory's bandwidth.
  const double reach = std::min(1.0, 0.3 + 0.7 * units / kModelSms);
  double time = kLaunch + std::max(compute, memory / reach + stores);
  if (plan.splits > 1) {
    const double written = split_units * std::min<double>(t.m, m) * std::min<double>(t.n, n) * 4;
    time += kReduce + 2 * written / kPartial;
  }
  return time;
}

}  // namespace jaxgemm::cuda::sm80
