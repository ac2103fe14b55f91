// How a configuration cuts a problem into units, and how many of them run at a time. Host code only.
//
// A unit is what one cluster does between taking up work and taking up the next: cluster_m x cluster_n tiles
// of one product of the batch, over one piece of K. Without clusters it is one tile.
#pragma once

#include <algorithm>

#include "../planning.h"
#include "configs.h"
#include "unaligned/ways.h"

namespace jaxgemm::cuda::sm90 {

// A problem in the engine's orientation: where operands are swapped, of the transposed product.
struct Shape {
  int64_t m, n, k, batch;
  bool x_mn_major, y_mn_major;

  Shape(const GemmProblem& p, bool swap)
      : m(swap ? p.n : p.m),
        n(swap ? p.m : p.n),
        k(p.k),
        batch(p.batch_count()),
        x_mn_major(swap ? !p.b.transposed : p.a.transposed),
        y_mn_major(swap ? p.a.transposed : !p.b.transposed) {}
};

// Clusters of `blocks` blocks that run at a time. The blocks of a cluster run on one GPC, and GPCs differ in
// size: pairs fill all of them, of four and of eight blocks an H200 runs 30 and 15, as its driver says
// (cudaOccupancyMaxActiveClusters).
constexpr int resident_clusters(int multiprocessors, int blocks) {
  const int clusters = blocks <= 2 ? multiprocessors / blocks : multiprocessors * 10 / 11 / blocks;
  return clusters > 0 ? clusters : 1;
}

// Blocks of a GPC, about. What they load at about the same time, L2 sends once.
constexpr int kGpcBlocks = 16;

// The units of a configuration.
struct UnitCounts {
  double rows, columns, products;  // products: of the batch, times the partial results of each
  double resident;                 // clusters that the machine runs at a time

  UnitCounts(const Shape& s, const TileConfig& t, const Config& c, int sms)
      : rows(double(unit_rows(t, s.m, c.cluster_m))),
        columns(double(ceil_div(ceil_div(s.n, t.result_n()), c.cluster_n))),
        products(double(s.batch) * c.partials()),
        resident(t.blocks * std::max(1, resident_clusters(sms, c.cluster()))) {}

  double all() const { return rows * columns * products; }
  double running() const { return std::min(all(), resident); }
  // Units that run on one GPC at a time.
  double of_gpc(int cluster) const {
    return std::max(1.0, double(kGpcBlocks) / cluster * running() / resident);
  }
};

// Whether every block has one tile and no cluster. The grid's coordinates then say which.
constexpr bool one_wave(double units, double resident, int cluster) {
  return cluster == 1 && units <= resident;
}

// A narrow last column of tiles is cheap to multiply. It is walked after all other tiles, to fill the gaps of
// the last wave, where there are at most this many waves: x's rows are then loaded once more
// (read off docs/experiments/model-choices.md).
constexpr int kNarrowLastWaves = 8;
// How many of the `resident` clusters walk the narrow column at the end: those that have no unit in the last
// wave of whole tiles, if two narrow tiles each are enough, and else all. 0: it is walked among the others.
constexpr int64_t narrow_stride(const Config& c, int64_t rows, int64_t columns, int64_t products,
                                int64_t resident) {
  const bool last = columns > 1 && products == 1 && c.cluster_n == 1 && c.slices() == 1 &&
                    rows * columns <= kNarrowLastWaves * resident;
  if (!last) return 0;
  const int64_t idle = resident - rows * (columns - 1) % resident;
  return rows <= 2 * idle ? idle : resident;
}

}  // namespace jaxgemm::cuda::sm90
