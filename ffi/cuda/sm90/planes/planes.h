// Products of fp32 operands on tensor cores of 16 bits.
//
// Each operand becomes a sum of planes, matrices of 16 bits, and the product a sum of products of two planes,
// which the engine multiplies as it does any. Products with the same factor are a band. Small bands come
// first, so that each is added up among its like, and the sum of every step is added to sums in registers of
// their own (multiply_planes.cuh), as the tensor core cuts each addition off.
//
// Planes of bf16. Of x/2 the first plane p0 is the nearest bf16; of what is left, times 2^8, the second, p1;
// and so on:
//
//   x = 2 (p0 + 2^-8 p1 + 2^-16 p2)
//
// Three planes hold all 24 bits of x from 2^-124 on, two hold 16. Halves keep products and their sums from
// overflowing before the result does.
//
// A single plane is x rounded to bf16, to the largest one where that is nearest, and the product an ordinary
// one of 16 bits (slab_problem() says so), whose sums stay in the tensor core.
//
// Planes of fp16, of single products. Each row of A and column of B is scaled by a power of two, so that its
// largest finite magnitude is in [2^14, 2^15) (scales.cuh). Of what that makes of x the first plane is the
// nearest fp16, and the second that of what is left, times 2^11: together 22 bits of what is not smaller than
// 2^-29 of the row's largest, and 13 down to 2^-38. Smaller numbers would lose more, so the splitting pass
// raises a guard where there is one. The guard is a number in device memory: with it up, planes of bf16 are
// made and multiplied instead (kBf16X6), and else these kernels end at once.
//
// A plane's rows are K-major, padded with zeros to whole steps, and the planes of a row follow each other:
// plane i begins i * pitch elements further on. So a product of planes is an offset along k for either
// operand. In sums over the rows of groups planes lie as their operands do, k x m and k x n, and each follows
// the one before it, which is an offset along k again.
#pragma once

#include <cstdint>

#include "../../../arithmetic.h"
#include "../../../problem.h"
#include "../configs.h"

namespace jaxgemm::cuda::sm90 {

constexpr int kMostPlanes = 3, kMostPlaneProducts = 9;

// How an arithmetic splits operands, and how many of the pairs below it multiplies.
struct PlaneScheme {
  int planes = 0;    // 0: operands are multiplied as they are
  int products = 0;  // of two planes
  DType type = DType::kBF16;
  int bits = 8;         // a plane is 2^-bits of the one before
  int halvings = 1;     // of operands before they are split
  bool scaled = false;  // by rows and columns, with a guard
};

// What takes the place of scaled planes where the guard is up, and for batches.
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
      return {2, 3, DType::kF16, 11, 0, true};
    default:
      return {};
  }
}
constexpr bool of_planes(const GemmProblem& p) { return plane_scheme(p.arithmetic).planes > 0; }

// Whether tiles of planes multiply the operands as they are, for the sake of their sums in registers.
constexpr bool promoted(const GemmProblem& p) { return p.arithmetic == Arithmetic::kPromoted; }

constexpr bool of_sums(const GemmProblem& p) { return p.groups.form == Form::kSums; }
// How far a plane begins behind the one before it, along k; and the extent of all.
constexpr int64_t plane_pitch(const GemmProblem& p) { return of_sums(p) ? p.k : round_up(p.k, kStepK16); }
constexpr int64_t k_of_planes(const GemmProblem& p) {
  return plane_scheme(p.arithmetic).planes * plane_pitch(p);
}

// Pairs of planes, the largest band first. An arithmetic takes the first so many, and adds them from the last
// to the first.
struct PlanePair {
  int x, y;
};
constexpr PlanePair kPlanePairs[kMostPlaneProducts] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2},
                                                       {2, 0}, {1, 2}, {2, 1}, {2, 2}};

}  // namespace jaxgemm::cuda::sm90
