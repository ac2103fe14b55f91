// The kernel table: the rows of all families, each defined next to its kernel.
//
// Every row is present in every build, so that documentation and error messages know each name; a build
// without CUDA leaves the functions of CUDA rows null.
#include "check.h"
#include "cpu/host.h"
#include "cuda/rows.h"
#include "kernel.h"

namespace jaxgemm {
namespace {

std::vector<KernelEntry> all_rows() {
  std::vector<KernelEntry> rows;
  for (const std::span<const KernelEntry> family :
       {cpu::host_rows(), cuda::ladder_rows(), cuda::gemv_rows(), cuda::direct_rows(), cuda::simt_rows(),
        cuda::sm80_rows(), cuda::sm90_rows()}) {
    rows.insert(rows.end(), family.begin(), family.end());
  }
  return rows;
}

std::string types_text(std::span<const TypeRule> types) {
  std::string text;
  for (const TypeRule& t : types) {
    text += join(text.empty() ? "" : ", ", dtype_name(t.a), " x ", dtype_name(t.b), " -> ", dtype_name(t.d));
  }
  return text;
}

// Why a kernel that computes in int32 cannot apply the problem's epilogue, or an empty string.
std::string not_integral(const KernelEntry& entry, const GemmProblem& p) {
  const auto integral = [](double x) { return x == static_cast<double>(static_cast<int32_t>(x)); };
  const auto in_range = [](double x) { return x >= -2147483648.0 && x <= 2147483647.0; };
  if (!in_range(p.alpha) || !in_range(p.beta) || !integral(p.alpha) || !integral(p.beta)) {
    return join("kernel '", entry.name, "' computes in int32 and needs integer alpha and beta, got ", p.alpha,
                " and ", p.beta);
  }
  if (p.activation != Activation::kNone && p.activation != Activation::kRelu) {
    return join("kernel '", entry.name, "' computes in int32, where the only activation is relu");
  }
  return {};
}

// Why no rule of the entry has the problem's types and its arithmetic, or an empty string.
std::string untyped_reason(const KernelEntry& entry, const GemmProblem& p) {
  const std::span<const TypeRule> rules = p.scaled() ? entry.scaled_types : entry.types;
  if (rules.empty()) return join("kernel '", entry.name, "' takes no scales");
  const TypeRule* near = nullptr;  // the rule that has most of them
  for (const TypeRule& t : rules) {
    if (t.a != p.a.dtype || t.b != p.b.dtype || t.d != p.d) continue;
    if (t.arithmetic == p.arithmetic && t.c == p.c && t.bias == p.bias) return {};
    if (!near || t.arithmetic == p.arithmetic) near = &t;
  }
  const std::string types =
      join(dtype_name(p.a.dtype), " x ", dtype_name(p.b.dtype), " -> ", dtype_name(p.d));
  if (!near) return join("kernel '", entry.name, "' got ", types, "; it supports ", types_text(rules));
  if (near->arithmetic != p.arithmetic) {
    return join("kernel '", entry.name, "' multiplies ", types, " in the arithmetic '",
                arithmetic_name(near->arithmetic), "', got '", arithmetic_name(p.arithmetic), "'");
  }
  const bool c = near->c != p.c;
  return join("argument '", c ? "c" : "bias", "' has type ", dtype_name(c ? p.c : p.bias), ", kernel '",
              entry.name, "' takes ", dtype_name(c ? near->c : near->bias), " for ", types);
}

// Why the entry runs no problem of these types, or none on such a device.
std::string unfit_reason(const KernelEntry& entry, const GemmProblem& p, int arch) {
  if (!entry.launch) return join("kernel '", entry.name, "' is a CUDA kernel and this build has none");
  if (arch < entry.min_arch || (entry.max_arch != 0 && arch > entry.max_arch)) {
    return join("kernel '", entry.name, "' needs compute capability ", entry.min_arch / 10, ".",
                entry.min_arch % 10, entry.max_arch == entry.min_arch ? "" : " or newer", ", the device has ",
                arch / 10, ".", arch % 10);
  }
  return untyped_reason(entry, p);
}

}  // namespace

std::span<const KernelEntry> kernel_table() {
  // Never destroyed: a program may still be running when the process exits.
  static const auto& rows = *new std::vector<KernelEntry>(all_rows());
  return rows;
}

const KernelEntry* find_kernel(std::string_view name) {
  for (const KernelEntry& entry : kernel_table()) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

std::string unsupported_reason(const KernelEntry& entry, const GemmProblem& p, int arch) {
  if (std::string why = unfit_reason(entry, p, arch); !why.empty()) return why;
  if (p.gated && !entry.gated) return join("kernel '", entry.name, "' has no gated form");
  if (p.grouped() && !entry.grouped) return join("kernel '", entry.name, "' has no grouped form");
  if (accumulator_of(p.a.dtype) == DType::kS32 && !p.scaled()) {
    if (std::string why = not_integral(entry, p); !why.empty()) return why;
  }
  return entry.unsupported ? entry.unsupported(p) : std::string();
}

std::string unsupported_many_reason(const KernelEntry& entry, std::span<const GemmProblem> problems,
                                    int arch) {
  if (!entry.many) return join("kernel '", entry.name, "' has no form for many products");
  if (std::string why = unfit_reason(entry, problems[0], arch); !why.empty()) return why;
  return entry.unsupported_many(problems);
}

}  // namespace jaxgemm
