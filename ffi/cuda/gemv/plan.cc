#include "plan.h"

#include <algorithm>
#include <cmath>

#include "../../arithmetic.h"
#include "../planning.h"

namespace jaxgemm::cuda::gemv {
namespace {

// The cost model, in microseconds, fitted to an H200. Every chip uses it: the plan fixes the order of sums,
// and results must not depend on the chip.
constexpr double kBytes = 4.35e6;  // bytes a microsecond from device memory
constexpr double kFewest = 160;    // blocks that it takes to read at that rate
constexpr double kStart = 2.4;     // the launch, and the latency of the first and last bytes
constexpr double kPairs = 1.0;     // blocks in clusters of two waiting for each other,
constexpr double kClusters = 2.0;  // and in larger clusters
constexpr double kRound = 2.5;     // a round of blocks that have hardly a byte to read
constexpr double kRoundStart = 0.15;

void cut(const GemmProblem& p, Plan& plan) {
  const int length = warp_length(plan.along_k, static_cast<int>(dtype_bytes(p.a.dtype)));
  plan.tile_length = kWarps / plan.warps_k * length;
  plan.tiles = ceil_div(plan.length, plan.tile_length);
}

// Full rounds of all resident blocks, and a last round, which counts as at least the blocks that keep memory
// busy.
double time_of(const GemmProblem& p, const Plan& plan) {
  const double resident = kModelSms * (plan.along_k ? 2 : 3);
  const int64_t panels = ceil_div(std::min(p.m, p.n), max_vectors(p.a.dtype));
  const double blocks = static_cast<double>(plan.tiles) * plan.splits * static_cast<double>(panels) *
                        static_cast<double>(p.batch_count());
  const double each = static_cast<double>(plan.tile_length) *
                      static_cast<double>(ceil_div(p.k, plan.splits)) *
                      static_cast<double>(dtype_bytes(p.a.dtype));
  const double full = std::floor(blocks / resident), rest = blocks - full * resident;
  const double reading = (full * resident + (rest > 0 ? std::max(rest, kFewest) : 0)) * each / kBytes;
  const double more_rounds = full + (rest > 0) - 1;
  const double meeting = plan.splits == 1 ? 0 : plan.splits == 2 ? kPairs : kClusters;
  return kStart + meeting + std::max(reading + more_rounds * kRoundStart, more_rounds * kRound);
}

}  // namespace

Plan make_plan(const GemmProblem& p, bool clusters, std::string* reason) {
  Plan best;
  bool found = false;
  for (int warps_k = kWarps; warps_k >= 1; warps_k /= 2) {
    for (int splits = 1; splits <= (clusters ? kMaxSplits : 1); splits *= 2) {
      if (fixed(p, kWarpsK) && fixed(p, kWarpsK) != warps_k) continue;
      if (clusters && fixed(p, kSplits) && fixed(p, kSplits) != splits) continue;
      Plan plan;
      plan.swapped = p.n < p.m;
      plan.length = std::max(p.m, p.n);
      plan.along_k = plan.swapped ? !p.a.transposed : p.b.transposed;
      plan.warps_k = warps_k;
      plan.splits = splits;
      cut(p, plan);
      plan.microseconds = time_of(p, plan);
      if (!found || plan.microseconds < best.microseconds) best = plan;
      found = true;
    }
  }
  if (best.tiles > INT32_MAX / kMaxSplits || std::min(p.m, p.n) > INT32_MAX) {
    *reason = "the product has more blocks than a grid counts";
  }
  return best;
}

}  // namespace jaxgemm::cuda::gemv
