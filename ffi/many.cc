#include "many.h"

#include <algorithm>

namespace jaxgemm {
namespace {

// An operand that lies without gaps, row by row.
Matrix dense(DType dtype, bool transposed, int64_t rows, int64_t cols) {
  return {.dtype = dtype, .transposed = transposed, .ld = std::max<int64_t>(transposed ? rows : cols, 1)};
}

}  // namespace

Status decode_many(const ManySpec& spec, std::vector<GemmProblem>& problems, const KernelEntry*& entry) {
  const auto [kernel, dims, transposed, config, arithmetic_name] = spec.attributes;
  if (Status s = named_kernel(kernel, entry); !s.ok()) return s;
  if (Status s = check_config(*entry, config); !s.ok()) return s;
  Arithmetic arithmetic;
  if (Status s = decode_arithmetic(arithmetic_name, arithmetic); !s.ok()) return s;
  if (dims.empty() || dims.size() % 3 != 0)
    return {join("attribute 'dims': expected 3 integers (m, n, k) for each product, got ", dims.size())};
  if (transposed.size() != 2 || std::ranges::any_of(transposed, [](int64_t x) { return x != 0 && x != 1; }))
    return {"attribute 'transposed': expected 2 integers (of a, of b), each 0 or 1"};
  problems.assign(dims.size() / 3, {});
  for (size_t i = 0; i < problems.size(); ++i) {
    GemmProblem& p = problems[i];
    const int64_t of_one[] = {dims[3 * i], dims[3 * i + 1], dims[3 * i + 2], 1, 1};
    if (Status s = decode_dims(of_one, p); !s.ok()) return s;
    p.a = dense(spec.a, transposed[0] == 1, p.m, p.k);
    p.b = dense(spec.b, transposed[1] == 1, p.k, p.n);
    p.d = p.c = p.bias = spec.d;
    p.arithmetic = arithmetic;
    p.config = config;
  }
  return {};
}

}  // namespace jaxgemm
