#include "check.h"

#include <algorithm>
#include <iterator>

namespace jaxgemm {
namespace {

// The activation of this name; null when there is none.
const Activation* find_activation(std::string_view name) {
  for (const auto& row : kActivations) {
    if (name == row.name) return &row.activation;
  }
  return nullptr;
}

std::string activation_names() {
  std::string names;
  for (const auto& row : kActivations) names += join(names.empty() ? "" : ", ", row.name);
  return names;
}

Status wrong(std::string message) { return {std::move(message)}; }

// Whether the product of the factors fits the index arithmetic of every kernel with room to spare.
bool extent_fits(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t f : factors) {
    if (__builtin_mul_overflow(product, std::max<int64_t>(f, 1), &product)) return false;
  }
  return product < (int64_t{1} << 60);
}

Status decode_matrix(const char* argument, std::span<const int64_t> wire, int64_t rows, int64_t cols,
                     Matrix& out) {
  if (wire.size() != 4) {
    return wrong(join("attribute '", argument, "': expected 4 integers (transposed, ld, outer batch stride, ",
                      "inner batch stride), got ", wire.size()));
  }
  if (wire[0] != 0 && wire[0] != 1) {
    return wrong(join("attribute '", argument, "': transposed must be 0 or 1, got ", wire[0]));
  }
  out.transposed = wire[0] == 1;
  out.ld = wire[1];
  out.batch_stride[0] = wire[2];
  out.batch_stride[1] = wire[3];
  const int64_t line = std::max<int64_t>(out.transposed ? rows : cols, 1);
  if (out.ld < line) {
    return wrong(join("attribute '", argument, "': leading dimension ", out.ld, " is less than ", line,
                      ", the length of a stored line"));
  }
  if (out.batch_stride[0] < 0 || out.batch_stride[1] < 0) {
    return wrong(join("attribute '", argument, "': batch strides must not be negative, got ", wire[2],
                      " and ", wire[3]));
  }
  return {};
}

Status decode_operands(const Attributes& attributes, GemmProblem& p) {
  if (Status s = decode_matrix("a", attributes.a, p.m, p.k, p.a); !s.ok()) return s;
  if (Status s = decode_matrix("b", attributes.b, p.k, p.n, p.b); !s.ok()) return s;
  for (const Matrix* x : {&p.a, &p.b}) {
    if (!extent_fits({p.batch[0], x->batch_stride[0]}) || !extent_fits({p.batch[1], x->batch_stride[1]}) ||
        !extent_fits({std::max(p.k, x->transposed ? p.n : p.m), x->ld})) {
      return wrong("attributes 'a' and 'b': the strides reach past 2^60 elements");
    }
  }
  return {};
}

Status decode_groups(std::span<const int64_t> groups, GemmProblem& p) {
  if (groups.size() != 3) {
    return wrong(
        join("attribute 'groups': expected 3 integers (form, sizes, sizes batched), got ", groups.size()));
  }
  if (groups[0] < 1 || groups[0] > 2 || groups[1] < 0 || groups[2] < 0 || groups[2] > 1) {
    return wrong(join("attribute 'groups': got form ", groups[0], ", ", groups[1], " sizes, batched ",
                      groups[2], "; expected a form of 1 or 2, sizes of at least 0 and batched 0 or 1"));
  }
  p.groups = {.form = static_cast<Form>(groups[0]), .count = groups[1], .sizes_batched = groups[2] == 1};
  if (p.has_c || p.alpha != 1.0) return wrong("a grouped product takes no alpha or c");
  const bool sums = p.groups.form == Form::kSums;
  if (p.a.transposed != sums || p.a.batch_stride[1] != 0 || (sums && p.b.batch_stride[1] != 0)) {
    return wrong(
        "a grouped product's rows lie along k, and only the operand of weights has a matrix for each group");
  }
  if (sums ? p.b.transposed : p.batch[1] > 1 && p.b.batch_stride[1] == 0) {
    return wrong("a grouped product's sums are of rows, and each of its groups has weights of its own");
  }
  if (sums && (p.gated || p.has_bias || p.activation != Activation::kNone)) {
    return wrong("a grouped product of the form 'sums' has no epilogue");
  }
  return {};
}

Status decode_scales(std::span<const int64_t> scales, GemmProblem& p) {
  const auto known = [](int64_t x) { return x >= 0 && x <= static_cast<int64_t>(Scale::kLines); };
  if (scales.size() != 2 || !known(scales[0]) || !known(scales[1]) || scales[0] + scales[1] == 0)
    return wrong("attribute 'scales': expected 2 integers of 0 (none), 1 (one) or 2 (lines), and not only 0");
  p.a_scale = static_cast<Scale>(scales[0]);
  p.b_scale = static_cast<Scale>(scales[1]);
  return {};
}

Status decode_epilogue(const Attributes& attributes, GemmProblem& p) {
  p.alpha = attributes.alpha;
  p.beta = attributes.beta;
  p.has_c = !is_zero(p.beta);
  p.has_bias = attributes.has_bias;
  if (p.gated && (p.has_c || p.has_bias || p.alpha != 1.0)) {
    return wrong("a gated product takes no alpha, c or bias");
  }
  const Activation* activation = find_activation(attributes.activation);
  if (!activation) {
    return wrong(join("attribute 'activation': got '", attributes.activation, "', expected one of ",
                      activation_names()));
  }
  p.activation = *activation;
  return {};
}

}  // namespace

Status named_kernel(std::string_view name, const KernelEntry*& entry) {
  entry = find_kernel(name);
  if (entry) return {};
  std::string names;
  for (const auto& row : kernel_table()) names += join(names.empty() ? "" : ", ", row.name);
  return wrong(join("attribute 'kernel': no kernel is named '", name, "'; there are ", names));
}

Status decode_arithmetic(std::string_view name, Arithmetic& arithmetic) {
  if (find_arithmetic(name, arithmetic)) return {};
  std::string names;
  for (const char* x : kArithmetics) names += join(names.empty() ? "" : ", ", x);
  return wrong(join("attribute 'arithmetic': got '", name, "', expected one of ", names));
}

Status decode_dims(std::span<const int64_t> dims, GemmProblem& p) {
  constexpr const char* kNames[] = {"m", "n", "k", "outer batch", "inner batch"};
  if (dims.size() != std::size(kNames)) {
    return wrong(
        join("attribute 'dims': expected 5 integers (m, n, k, outer batch, inner batch), got ", dims.size()));
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0)
      return wrong(join("attribute 'dims': ", kNames[i], " must not be negative, got ", dims[i]));
  }
  p.m = dims[0];
  p.n = dims[1];
  p.k = dims[2];
  p.batch[0] = dims[3];
  p.batch[1] = dims[4];
  if (!extent_fits({p.m, p.n, p.batch[0], p.batch[1]}) || !extent_fits({p.m, p.k}) ||
      !extent_fits({p.k, p.n})) {
    return wrong(join("attribute 'dims': an extent of m = ", p.m, ", n = ", p.n, ", k = ", p.k,
                      ", batch = ", p.batch[0], " x ", p.batch[1], " passes 2^60 elements"));
  }
  return {};
}

Status check_config(const KernelEntry& entry, std::span<const int64_t> config) {
  if (config.empty()) return {};
  if (config.size() != entry.options.size()) {
    return wrong(join("attribute 'config': kernel '", entry.name, "' has ", entry.options.size(),
                      " options, got ", config.size(), " values"));
  }
  for (size_t i = 0; i < config.size(); ++i) {
    const auto values = entry.options[i].values;
    if (values.empty() ? config[i] >= 0 : std::find(values.begin(), values.end(), config[i]) != values.end())
      continue;
    std::string allowed;
    for (int64_t v : values) allowed += join(allowed.empty() ? "one of " : ", ", v);
    return wrong(join("option '", entry.options[i].name, "' of kernel '", entry.name, "': got ", config[i],
                      ", expected ", values.empty() ? "0 or more" : allowed));
  }
  return {};
}

int64_t required_elements(const Matrix& x, int64_t rows, int64_t cols, const int64_t (&batch)[2]) {
  if (rows == 0 || cols == 0 || batch[0] == 0 || batch[1] == 0) return 0;
  const int64_t lines = x.transposed ? cols : rows;
  const int64_t line = x.transposed ? rows : cols;
  return (batch[0] - 1) * x.batch_stride[0] + (batch[1] - 1) * x.batch_stride[1] + (lines - 1) * x.ld + line;
}

Status check_elements(const char* argument, int64_t got, int64_t expected) {
  if (got >= expected) return {};
  return wrong(join("argument '", argument, "' has ", got, " elements, the attributes need ", expected));
}

Status decode_call(const CallSpec& spec, GemmProblem& p, const KernelEntry*& entry) {
  const Attributes& attributes = spec.attributes;
  if (Status s = named_kernel(attributes.kernel, entry); !s.ok()) return s;
  p.a.dtype = spec.a;
  p.b.dtype = spec.b;
  p.d = spec.d;
  p.c = spec.c;
  p.bias = spec.bias;
  p.gated = spec.gated;
  if (Status s = decode_arithmetic(attributes.arithmetic, p.arithmetic); !s.ok()) return s;
  if (Status s = decode_dims(attributes.dims, p); !s.ok()) return s;
  if (Status s = decode_operands(attributes, p); !s.ok()) return s;
  if (Status s = decode_epilogue(attributes, p); !s.ok()) return s;
  if (spec.grouped) {
    if (Status s = decode_groups(attributes.groups, p); !s.ok()) return s;
  }
  if (spec.scaled) {
    if (Status s = decode_scales(attributes.scales, p); !s.ok()) return s;
  }
  p.config = attributes.config;
  return check_config(*entry, p.config);
}

}  // namespace jaxgemm
