// The cost model: arithmetic on the problem and the tile, with neither a list of shapes nor a measurement at
// run time.
//
// A multiprocessor issues at most four instructions a clock, and the kernel is as fast as it fills these
// slots with FMAs. So a block's cost is its instruction count: FMAs, fragment loads, copies, and a fixed part
// for each stage. What share of the slots is used depends on how many warps there are to hide latency, and on
// how busy shared memory is. A block is also no faster than the L2 delivers its copies, and the product no
// faster than memory moves D and the operands, or than the bytes in flight allow. The busiest multiprocessor
// decides. Cuts along K share the work out evenly and cost a pass over the partial sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../../arithmetic.h"
#include "plan.cuh"

namespace jaxgemm::cuda::simt {

// Rates of the chip the kernel was tuned on, in bytes per clock (1.98 GHz). Their ratios to the issue rate
// are what counts, and those are alike on the other chips it runs on.
constexpr double kMemoryRate = 2200;     // all multiprocessors together
constexpr double kL2Rate = 42;           // per multiprocessor
constexpr double kMemoryLatency = 1600;  // clocks under load
constexpr double kSharedRate = 0.85;     // passes per clock that a multiprocessor's shared memory sustains
constexpr double kLaunch = 3500;         // clocks
constexpr double kBlockOverhead = 700;   // clocks: start, the first copies' latency, last stores
constexpr double kWait = 2000;           // clocks, of a two-stage pipeline: for copies that start too late
constexpr double kFirstCopies = 12;      // clocks per instruction of a warp's copies before its first FMA
constexpr double kMixedParts = 1.3;      // factor on parts of tiles that run beside whole tiles, measured
constexpr double kStore = 12;            // issue slots for 32 results that are stored as vectors
constexpr double kStoreOne = 110;  // issue slots for 32 results stored one at a time, as to unaligned rows
constexpr double kApart = 0.03;    // added for each further block: blocks at different k share nothing in L1
constexpr double kReduceOverhead = 4500;  // clocks: a second kernel

// Warp instructions to copy one stage of an operand of extent x.
inline double copy_slots(Load load, const TileInfo& t, int x) {
  const double elements = static_cast<double>(x) * t.bk / 32;
  switch (load) {
    case Load::kTranspose:
      return elements * 2;  // the copy itself, and half of a 64-bit address
    case Load::kRows:
      return elements * 4;
    case Load::kRows16:
      return elements / t.vec * 3;
    case Load::kConvert:
      return elements * 5;
  }
  return 0;
}

// Passes through shared memory to write one stage of an operand of extent x.
inline double copy_passes(Load load, const TileInfo& t, int x) {
  const double elements = static_cast<double>(x) * t.bk / 32 * (4.0 / t.vec);
  return load == Load::kTranspose ? elements * 4 : elements;
}

// The part of a scheduler's issue slots that `warps` warps fill.
inline double utilisation(double warps) { return warps < 1 ? warps * 0.8 : warps / (warps + 0.25); }

// Two demands on the same clocks: the larger where the other is small, a fifth more where they are alike.
inline double contended(double x, double y) { return std::sqrt(std::sqrt(x * x * x * x + y * y * y * y)); }

// What a tile's blocks need of a multiprocessor, per stage of K if not said otherwise.
struct BlockCost {
  double warps;
  double slots;         // issue slots
  double passes;        // through shared memory
  double stage_bytes;   // of both operands
  double epilogue;      // issue slots, once a block
  double overhead;      // clocks, once a block
  double first_stages;  // that a block asks for before its first FMA

  // Clocks of `count` blocks of `stages` stages each, side by side on one multiprocessor.
  double together(double count, double stages) const {
    const double issue = (slots * stages + epilogue) / (4 * utilisation(count * warps / 4));
    const double shared = passes * stages / kSharedRate;
    const double l2 = stage_bytes * stages / kL2Rate;
    return count * std::max(contended(issue, shared), l2) + overhead;
  }
};

// How a plan divides the tiles: into whole ones, and ranges of stages, which consist of parts of tiles.
struct Division {
  double whole, ranges;
  double range_stages;  // stages of a range; of a tile where there are no ranges
  double parts, cut;    // parts of tiles, and those of them that a cut made

  Division(const Plan& plan, int64_t tiles, double stages)
      : whole(static_cast<double>(plan.whole)), ranges(static_cast<double>(plan.ranges)) {
    const double rest = static_cast<double>(tiles - plan.whole);
    range_stages = ranges > 0 ? rest * stages / ranges : stages;
    const auto common = static_cast<double>(std::gcd(plan.ranges, tiles - plan.whole));
    parts = plan.ranges % std::max<int64_t>(tiles - plan.whole, 1) == 0 ? ranges : ranges + rest - common;
    cut = std::min(parts, 2 * (ranges - common));
  }
};

struct Cost {
  const GemmProblem& p;
  double multiprocessors;
  double resident;
  Load load_a, load_b;
  double fma_clocks;  // issue slots per FMA: 2 for f64, at half rate

  // Bytes of operands and results.
  double traffic() const {
    const double batch = static_cast<double>(p.batch_count());
    const double a = static_cast<double>(p.m) * static_cast<double>(p.k) * dtype_bytes(p.a.dtype);
    const double b = static_cast<double>(p.k) * static_cast<double>(p.n) * dtype_bytes(p.b.dtype);
    const double d = static_cast<double>(p.m) * static_cast<double>(p.n) * dtype_bytes(p.d);
    const auto times = [&](const Matrix& x) {
      return (x.batch_stride[0] ? static_cast<double>(p.batch[0]) : 1.0) *
             (x.batch_stride[1] ? static_cast<double>(p.batch[1]) : 1.0);
    };
    return a * times(p.a) + b * times(p.b) + d * batch * (p.has_c ? 2 : 1);
  }

  // Clocks that a plan should take.
  double operator()(const TileInfo& t, const Plan& plan, int64_t tiles) const {
    const double stages = static_cast<double>(ceil_div(p.k, t.bk));
    const Division d(plan, tiles, stages);
    const BlockCost block = block_cost(t, plan, d.range_stages);
    double clocks = d.whole + d.ranges <= multiprocessors * resident ? in_one_round(block, d)
                                                                     : in_rounds(block, d, stages);
    const double blocks = d.whole + d.ranges;
    const double active = std::min(blocks, multiprocessors);
    const double per_sm = std::min(std::ceil(blocks / multiprocessors), resident);
    const double in_flight = active * per_sm * block.stage_bytes * block.first_stages;
    const double memory = traffic() / std::min(kMemoryRate, in_flight / kMemoryLatency);
    // Arithmetic and memory traffic overlap, except what a block loads before its first FMA.
    const double first = std::min(1.0, (t.stages - 1) / std::max(1.0, d.range_stages));
    clocks = kLaunch + std::max(clocks, memory) + (0.2 + 0.6 * first) * std::min(clocks, memory);

    if (d.cut > 0) clocks += kReduceOverhead + 2 * d.cut * t.bm * t.bn * (16.0 / t.vec) / kMemoryRate;
    return clocks;
  }

 private:
  BlockCost block_cost(const TileInfo& t, const Plan& plan, double range_stages) const {
    BlockCost block;
    block.warps = t.threads / 32.0;
    const double fma = fma_clocks * t.bm * t.bn * t.bk / 32.0;
    const double fragments = block.warps * (t.bk / t.slices) * (t.tm + t.tn) / t.vec;
    const double copies = copy_slots(load_a, t, t.bm) + copy_slots(load_b, t, t.bn);
    block.slots = fma + fragments + copies + 40 * block.warps;
    if (plan.chunk != kNoChunks) block.slots += block.warps * (t.tm * t.tn) * 2.5 / plan.chunk;
    const bool wide = p.n % t.vec == 0 && p.activation == Activation::kNone;  // see can_be_wide
    block.epilogue = (wide ? kStore : kStoreOne) * t.bm * t.bn / 32.0 * (1 + (t.slices - 1) / 4.0);
    block.stage_bytes = static_cast<double>((t.bm + t.bn) * t.bk) * (16.0 / t.vec);
    // Two passes for a 128-bit load by a warp, and one for each row of the transposing copy.
    block.passes = fragments * 2 + copy_passes(load_a, t, t.bm) + copy_passes(load_b, t, t.bn);
    block.first_stages = std::min<double>(t.stages - 1, range_stages);
    block.overhead =
        kBlockOverhead + kWait / (t.stages - 1) + kFirstCopies * block.first_stages * copies / block.warps;
    return block;
  }

  // Clocks of the busiest multiprocessor where all blocks run at a time.
  double in_one_round(const BlockCost& block, const Division& d) const {
    const double count = std::ceil((d.whole + d.ranges) / multiprocessors);
    double clocks = block.together(count, d.range_stages);
    if (d.ranges > 0) clocks *= 1 + kApart * (count - 1);
    // While a block begins another part, the other blocks have the multiprocessor.
    if (d.ranges > 0)
      clocks += (d.parts / d.ranges - 1) * (block.overhead / count + count * block.epilogue / 4);
    return clocks;
  }

  // Clocks of the busiest multiprocessor where blocks run in several rounds. A multiprocessor gets its next
  // block when one of its blocks is done, and some get one more than their share.
  double in_rounds(const BlockCost& block, const Division& d, double stages) const {
    const auto rounds = [&](double per_sm, double block_stages) {
      const double full = std::floor(per_sm / resident), last = per_sm - full * resident;
      const double hidden = std::max(0.0, full - 1) * block.overhead * (1 - 1 / resident);
      return full * block.together(resident, block_stages) +
             (last > 0 ? block.together(last, block_stages) : 0) - hidden;
    };
    if (d.ranges > 0) {
      return d.whole / multiprocessors / resident * block.together(resident, stages) +
             kMixedParts * rounds(std::ceil(d.ranges / multiprocessors) + 1, d.range_stages);
    }
    const double even = d.whole / multiprocessors;
    const bool evenly = std::fmod(d.whole, multiprocessors * resident) == 0;
    return rounds(resident > 1 && !evenly ? std::max(std::ceil(even), even + 0.3) : std::ceil(even), stages);
  }
};

}  // namespace jaxgemm::cuda::simt
