// The cost model.
#pragma once

#include "unit_counts.h"

namespace jaxgemm::cuda::sm90 {

// Microseconds that a configuration should take: `total`, and the parts that add up to it. Work that runs
// at the same time as longer work is not counted twice: `epilogue` and `memory` are only what they add to
// the parts above them.
struct Cost {
  double launch;     // of the product's kernel, and until its first bytes arrive
  double main_loop;  // steps of k, in waves of tiles
  double epilogue;   // what is not hidden under other tiles' main loops
  double memory;     // what device memory takes longer than the parts above, and lines of L2 loaded again
  double split;      // the second kernel of a split K, and the partial results
  double copies;     // of unaligned operands, or to planes
  double total;
};

Cost cost(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c, const Machine& machine);
// The same with units other than those that follow from the shape.
Cost cost(const GemmProblem& p, const Shape& s, const TileConfig& t, const Config& c, const Machine& machine,
          const UnitCounts& units);

// Microseconds of a pass that copies operands, and reads and writes so many bytes.
double copy_time(double bytes);
// Microseconds of the pass that splits both operands into planes: it reads fp32 and writes 16 bits for each
// plane. Part of the cost of tiles of planes.
double split_time(const GemmProblem& p);

// Stages of the ring to leave empty: the other stages have enough bytes in flight to keep memory busy.
int idle_stages(const Shape& s, const TileConfig& t, const Config& c, int sms);

}  // namespace jaxgemm::cuda::sm90
