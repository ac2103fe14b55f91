// A product of planes whose tiles make several waves, the last of which would leave multiprocessors idle: its
// tiles are cut along k, into as many pieces as option `tail` says, in a launch of their own. For example 704
// tiles on 132 multiprocessors are five waves and 44 tiles, which take a third of a wave in three pieces
// each. The tiles of whole waves have the first rows of A, as many as fill them, so each part is a product of
// some rows. Host code only.
#pragma once

#include <array>

#include "../cost.h"
#include "planes.h"

namespace jaxgemm::cuda::sm90 {

// Some rows of a product, and how they run.
struct RowPart {
  int64_t begin = 0, rows = 0;  // no rows: there is no such part
  Config config;

  GemmProblem of(const GemmProblem& slab) const {
    GemmProblem part = slab;
    part.m = rows;
    return part;
  }
};
using RowParts = std::array<RowPart, 2>;

// All rows, and nothing; or, if there is a tail, those of whole waves and the others. A pure function of the
// slab.
RowParts row_parts(const GemmProblem& slab, const Config& config);

// Whether tiles remain beyond whole waves of a single product, so that these may be a tail.
bool has_tail(const GemmProblem& slab, const Config& config);
// How many units these are, each with all of k. The configuration has a tail.
double tail_units(const GemmProblem& slab, const Config& config);

// What both parts should take, together with the pass that makes the planes.
Cost cost_of_parts(const GemmProblem& slab, const Config& config, const Machine& machine);

}  // namespace jaxgemm::cuda::sm90
