// If the tiles of a product of planes make several waves, the last wave may leave multiprocessors idle. The
// tiles of the last wave are then cut along k, into as many pieces as option `tail` says, in a launch of
// their own. For example 704 tiles on 132 multiprocessors are five waves and 44 tiles, which take a third of
// a wave in three pieces each. The tiles of whole waves have as many of the first rows of A as fill whole
// waves, so each part is a product of some rows of A. Host code only.
#pragma once

#include <array>

#include "../cost.h"
#include "planes.h"

namespace jaxgemm::cuda::sm90 {

// Some rows of a product, and how they run.
struct RowPart {
  int64_t begin = 0, rows = 0;  // 0 rows: the part does not exist
  Config config;

  GemmProblem of(const GemmProblem& slab) const {
    GemmProblem part = slab;
    part.m = rows;
    return part;
  }
};
using RowParts = std::array<RowPart, 2>;

// The parts of a slab: all rows and an empty part; or, if there is a tail, the rows of whole waves and the
// other rows. A pure function of the slab.
RowParts row_parts(const GemmProblem& slab, const Config& config);

// Whether tiles remain beyond whole waves of a single product, so that the remaining tiles may be a tail.
bool has_tail(const GemmProblem& slab, const Config& config);
// How many units the tail is, each with all of k. `config` must have a tail.
double tail_units(const GemmProblem& slab, const Config& config);

// The time that both parts should take, together with the pass that makes the planes.
Cost cost_of_parts(const GemmProblem& slab, const Config& config, const Machine& machine);

}  // namespace jaxgemm::cuda::sm90
