#include "slabs.h"

#include <algorithm>

#include "../../../arithmetic.h"
#include "../options.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// The most bytes for the planes of a slab: with the partial results of a split K a call stays below 1 GiB.
constexpr int64_t kMostBytes = int64_t(960) << 20;
// The columns of a slab are a multiple of kColumns, so that no tile is cut in vain.
constexpr int64_t kColumns = 128;

// Whether an operand has a matrix for each product of a level of the batch, rather than one matrix for all
// products.
bool batched(const GemmProblem& p, const Matrix& x, int level) {
  return p.batch[level] > 1 && x.batch_stride[level] != 0;
}

// Elements of one plane of a matrix of `rows` rows and `k` values of k.
int64_t plane_elements(const GemmProblem& p, int64_t rows, int64_t k) {
  return of_sums(p) ? k * round_up(rows, kStepK16) : rows * round_up(k, kStepK16);
}

// Elements of one plane of all of an operand's matrices. A matrix that a batch broadcasts is split once.
int64_t all_elements(const GemmProblem& p, const Matrix& x, int64_t rows, int64_t k) {
  return (batched(p, x, 0) ? p.batch[0] : 1) * (batched(p, x, 1) ? p.batch[1] : 1) *
         plane_elements(p, rows, k);
}

// An operand's planes as the matrix that the engine sees.
Matrix planes_matrix(const GemmProblem& slab, const Matrix& x, int64_t rows, bool is_b) {
  const PlaneScheme scheme = plane_scheme(slab.arithmetic);
  Matrix out{.dtype = scheme.type, .transposed = is_b != of_sums(slab)};
  out.ld = of_sums(slab) ? round_up(rows, kStepK16) : k_of_planes(slab);
  const int64_t matrix = scheme.planes * plane_elements(slab, rows, slab.k);
  if (batched(slab, x, 1)) out.batch_stride[1] = matrix;
  if (batched(slab, x, 0)) out.batch_stride[0] = matrix * (batched(slab, x, 1) ? slab.batch[1] : 1);
  return out;
}

size_t whole(int64_t bytes) { return static_cast<size_t>(round_up(bytes, 256)); }

}  // namespace

Arithmetic plane_arithmetic(const GemmProblem& p) {
  const bool single = p.batch_count() <= 1 && !p.grouped();
  return plane_scheme(p.arithmetic).scaled && !single ? kUnscaled : p.arithmetic;
}

Slabs slabs_of(const GemmProblem& p) {
  const PlaneScheme scheme = plane_scheme(plane_arithmetic(p));
  // If the guard is up, unscaled planes take the place of scaled planes in the workspace.
  const int64_t of_value = 2 * (scheme.scaled ? plane_scheme(kUnscaled) : scheme).planes;  // bytes
  const int64_t step = p.grouped() ? kColumns : kStepK16;
  const auto a = [&](int64_t extent) {
    return of_value * all_elements(p, p.a, p.m, p.grouped() ? p.k : extent);
  };
  const auto b = [&](int64_t extent) {
    return of_value * (p.grouped() ? all_elements(p, p.b, extent, p.k) : all_elements(p, p.b, p.n, extent));
  };
  const int64_t all = p.grouped() ? p.n : p.k, steps = std::max<int64_t>(1, ceil_div(all, step));
  int64_t wanted = std::min(fixed(p, "slabs"), steps);
  if (wanted == 0) {
    const int64_t kept = p.grouped() ? a(0) : 0, each = b(step) + a(step) - kept;
    const int64_t most = (kMostBytes - kept) / std::max<int64_t>(1, each);  // steps of a slab
    if (most <= 0) return {};
    wanted = ceil_div(steps, most);
  }
  Slabs s;
  const int64_t each = ceil_div(steps, wanted);  // slabs of about the same length
  s.count = ceil_div(steps, each);
  s.each = each * step;
  s.last = all - (s.count - 1) * s.each;
  const int64_t extent = std::min(all, s.each);
  s.b_offset = whole(a(extent));
  s.scales_offset = s.b_offset + whole(b(extent));
  s.bytes = s.scales_offset + (scheme.scaled ? kGuardBytes + whole(4 * (p.m + p.n)) : 0);
  return s;
}

GemmProblem slab_problem(const GemmProblem& p, const Slabs& slabs, int64_t index, Arithmetic arithmetic) {
  GemmProblem slab = p;
  slab.arithmetic = arithmetic;
  if (p.grouped()) {
    slab.n = slabs.extent(index);
    slab.d_pitch = p.n;
  } else {
    slab.k = slabs.extent(index);
    if (index > 0) {
      slab.has_c = true;
      slab.beta = 1;
    }
    if (index < slabs.count - 1) {
      slab.has_bias = false;
      slab.activation = Activation::kNone;
    }
  }
  slab.a = planes_matrix(slab, p.a, slab.m, false);
  slab.b = planes_matrix(slab, p.b, slab.n, true);
  if (!p.grouped() && plane_scheme(arithmetic).planes == 1) slab.arithmetic = Arithmetic::kPlain;
  return slab;
}

}  // namespace jaxgemm::cuda::sm90
