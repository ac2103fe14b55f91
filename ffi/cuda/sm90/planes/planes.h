// Products of fp32 operands on tensor cores of 16 bits.
//
// Each operand becomes a sum of planes, matrices of 16 bits, and the product becomes a sum of products of two
// planes, which the engine multiplies as it does any matrices. Products of planes with the same factor are a
// band. Bands of small values come first, so that small values are added up among small values. The sum of
// every step is added to sums in registers of their own (multiply_planes.cuh), as the tensor core truncates
// each addition.
//
// Planes of bf16. The first plane p0 is the bf16 nearest to x/2. The second plane p1 is the bf16 nearest to
// the rest x/2 - p0, times 2^8; and so on:
//
//   x = 2 (p0 + 2^-8 p1 + 2^-16 p2)
//
// Three planes hold all 24 bits of an x from 2^-124 on, two planes hold 16 bits. Halving x keeps products and
// their sums from overflowing before the result does.
//
// A single plane is x rounded to bf16; a finite x beyond the largest bf16 becomes the largest bf16. The
// product is then an ordinary product of 16 bits (slab_problem() says so), whose sums stay in the tensor
// core.
//
// Planes of fp16, for single products. Each row of A and column of B is scaled by a power of two, so that its
// largest finite magnitude is in [2^14, 2^15) (scales.cuh). The first plane is the fp16 nearest to the scaled
// x, and the second plane the fp16 nearest to the rest, times 2^11. Together they hold 22 bits of numbers
// that are not smaller than 2^-29 of the row's largest, and 13 bits of numbers down to 2^-38. Smaller numbers
// would lose more, so the splitting pass raises a guard if there is a smaller number. The guard is a number
// in device memory: if the guard is up, planes of bf16 are made and multiplied instead (kBf16X6); else the
// kernels for planes of bf16 end at once.
//
// A plane's rows are K-major and padded with zeros to whole steps. The planes of a row follow each other:
// plane i begins i * pitch elements further on. So a product of two planes is an offset along k for either
// operand. In sums over the rows of groups, planes have the layouts of their operands, k x m and k x n, and
// each plane follows the plane before it, which again is an offset along k.
#pragma once

#include <cstdint>

#include "../../../arithmetic.h"
#include "../../../problem.h"
#include "../configs.h"

namespace jaxgemm::cuda::sm90 {

constexpr int kMostPlanes = 3, kMostPlaneProducts = 9;

// How an arithmetic splits operands, and how many of the pairs in kPlanePairs it multiplies.
struct PlaneScheme {
  int planes = 0;    // 0: operands are multiplied as they are
  int products = 0;  // of two planes
  DType type = DType::kBF16;
  int bits = 8;         // a plane is 2^-bits of the plane before it
  int halvings = 1;     // of an operand's values before the split
  bool scaled = false;  // by rows and columns, with a guard
};

// The arithmetic that takes the place of scaled planes if the guard is up, and for batches and groups.
constexpr Arithmetic kUnscaled = Arithmetic::kBf16X6;

constexpr PlaneScheme plane_scheme(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kBf16:
      return {.planes = 1, .products = 1, .halvings = 0};
    case Arithmetic::kBf16X3:
      return {2, 3};
    case Arithmetic::kBf16X6:
      return {3, 6};
    case Arithmetic::kBf16X9:
      return {3, 9};
    case Arithmetic::kF16X3:
      return {.planes = 2, .products = 3, .type = DType::kF16, .bits = 11, .halvings = 0, .scaled = true};
    default:
      return {};
  }
}
constexpr bool of_planes(const GemmProblem& p) { return plane_scheme(p.arithmetic).planes > 0; }

// Whether tiles of planes multiply the operands without splitting them, as these tiles keep sums in registers
// of their own.
constexpr bool promoted(const GemmProblem& p) { return p.arithmetic == Arithmetic::kPromoted; }

constexpr bool of_sums(const GemmProblem& p) { return p.groups.form == Form::kSums; }
// How far a plane begins behind the plane before it, and the extent of all planes: both in elements along k.
constexpr int64_t plane_pitch(const GemmProblem& p) { return of_sums(p) ? p.k : round_up(p.k, kStepK16); }
constexpr int64_t k_of_planes(const GemmProblem& p) {
  return plane_scheme(p.arithmetic).planes * plane_pitch(p);
}

// Pairs of planes, the largest band first. An arithmetic takes the first PlaneScheme::products pairs, and
// adds their products from the last pair to the first.
struct PlanePair {
  int x, y;
};
constexpr PlanePair kPlanePairs[kMostPlaneProducts] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2},
                                                       {2, 0}, {1, 2}, {2, 1}, {2, 2}};

}  // namespace jaxgemm::cuda::sm90
