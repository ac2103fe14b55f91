#include "slabs.h"

#include <algorithm>

#include "../../../arithmetic.h"
#include "../options.h"

namespace jaxgemm::cuda::sm90 {
namespace {

// Bytes of the planes of a slab: with the partial results of a split K a call stays below 1 GiB.
constexpr int64_t kMostBytes = int64_t(960) << 20;

// Matrices of an operand: those that a batch broadcasts are split once.
int64_t matrices(const GemmProblem& p, const Matrix& x) {
  int64_t count = 1;
  for (int i = 0; i < 2; ++i) count *= p.batch[i] > 1 && x.batch_stride[i] ? p.batch[i] : 1;
  return count;
}

// An operand's planes of `k` values, as the matrix that the engine sees.
Matrix planes_matrix(const GemmProblem& p, const Matrix& x, int64_t rows, int64_t k, bool transposed,
                     const PlaneScheme& scheme) {
  Matrix out{.dtype = scheme.type, .transposed = transposed};
  out.ld = scheme.planes * round_up(k, kTileK);
  const bool inner = p.batch[1] > 1 && x.batch_stride[1], outer = p.batch[0] > 1 && x.batch_stride[0];
  out.batch_stride[1] = inner ? rows * out.ld : 0;
  out.batch_stride[0] = outer ? rows * out.ld * (inner ? p.batch[1] : 1) : 0;
  return out;
}

size_t whole(int64_t bytes) { return static_cast<size_t>(round_up(bytes, 256)); }

}  // namespace

Arithmetic plane_arithmetic(const GemmProblem& p) {
  return plane_scheme(p.arithmetic).scaled && p.batch_count() > 1 ? kUnscaled : p.arithmetic;
}

Slabs slabs_of(const GemmProblem& p) {
  const PlaneScheme scheme = plane_scheme(plane_arithmetic(p));
  // Where the guard is up, planes of another kind take the place of scaled ones.
  const int64_t of_value = 2 * (scheme.scaled ? plane_scheme(kUnscaled) : scheme).planes;  // bytes
  const int64_t a = matrices(p, p.a) * p.m * of_value, both = a + matrices(p, p.b) * p.n * of_value;
  const int64_t steps = std::max<int64_t>(1, ceil_div(p.k, kTileK));
  int64_t wanted = std::min(fixed(p, "slabs"), steps);
  if (wanted == 0) {
    const int64_t most = kMostBytes / std::max<int64_t>(1, both) / kTileK;  // steps of a slab
    if (most == 0) return {};
    wanted = ceil_div(steps, most);
  }
  Slabs s;
  const int64_t each = ceil_div(steps, wanted);  // slabs of about the same length
  s.count = ceil_div(steps, each);
  s.k = each * kTileK;
  s.last_k = p.k - (s.count - 1) * s.k;
  s.b_offset = whole(a * s.k);
  s.scales_offset = s.b_offset + whole((both - a) * s.k);
  s.bytes = s.scales_offset + (scheme.scaled ? kGuardBytes + whole(4 * (p.m + p.n)) : 0);
  return s;
}

GemmProblem slab_problem(const GemmProblem& p, const Slabs& slabs, int64_t index, Arithmetic arithmetic) {
  const PlaneScheme scheme = plane_scheme(arithmetic);
  const bool first = index == 0, last = index == slabs.count - 1;
  GemmProblem slab = p;
  slab.arithmetic = arithmetic;
  slab.k = last ? slabs.last_k : slabs.k;
  slab.a = planes_matrix(p, p.a, p.m, slab.k, false, scheme);
  slab.b = planes_matrix(p, p.b, p.n, slab.k, true, scheme);
  if (!first) {
    slab.has_c = true;
    slab.beta = 1;
  }
  if (!last) {
    slab.has_bias = false;
    slab.activation = Activation::kNone;
  }
  return slab;
}

}  // namespace jaxgemm::cuda::sm90
