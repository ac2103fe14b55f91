// The table of kernels: adding a kernel is one row here and one file beside the others.
//
// Every row is present in every build, so that documentation and error messages know each name; a build
// without CUDA leaves the functions of CUDA rows null.
#include "check.h"
#include "cpu/host.h"
#include "kernel.h"

#ifdef JAXGEMM_CUDA
  #include "cuda/kernels.h"
  #define JAXGEMM_CUDA_FN(function) cuda::function
#else
  #define JAXGEMM_CUDA_FN(function) nullptr
#endif

namespace jaxgemm {
namespace {

using enum DType;

constexpr TypeRule kFloatTypes[] = {
    {kF32, kF32, kF32, kF32}, {kF64, kF64, kF64, kF64},    {kF16, kF16, kF16, kF32},
    {kF16, kF16, kF32, kF32}, {kBF16, kBF16, kBF16, kF32}, {kBF16, kBF16, kF32, kF32},
};
constexpr TypeRule kHostTypes[] = {
    {kF32, kF32, kF32, kF32}, {kF64, kF64, kF64, kF64},    {kF16, kF16, kF16, kF32},
    {kF16, kF16, kF32, kF32}, {kBF16, kBF16, kBF16, kF32}, {kBF16, kBF16, kF32, kF32},
    {kS8, kS8, kS32, kS32},   {kU8, kU8, kS32, kS32},
};

constexpr KernelEntry kTable[] = {
    {.name = "host",
     .family = "cpu",
     .summary = "CPU: cache-blocked, vectorised, threaded",
     .platform = Platform::kCpu,
     .types = kHostTypes,
     .deterministic = true,
     .batch_invariant = true,
     .launch = cpu::launch_host},
    {.name = "naive",
     .family = "ladder",
     .summary = "one thread per element, global memory only",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = kFloatTypes,
     .deterministic = true,
     .batch_invariant = true,
     .launch = JAXGEMM_CUDA_FN(launch_naive)},
    {.name = "tiled",
     .family = "ladder",
     .summary = "32 x 32 tiles in padded shared memory",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = kFloatTypes,
     .deterministic = true,
     .batch_invariant = true,
     .launch = JAXGEMM_CUDA_FN(launch_tiled)},
};

std::string types_text(const KernelEntry& entry) {
  std::string text;
  for (const TypeRule& t : entry.types) {
    text += join(text.empty() ? "" : ", ", dtype_name(t.a), " x ", dtype_name(t.b), " -> ", dtype_name(t.d));
  }
  return text;
}

bool is_integer(DType t) { return t == kS32; }

}  // namespace

std::span<const KernelEntry> kernel_table() { return kTable; }

const KernelEntry* find_kernel(std::string_view name) {
  for (const KernelEntry& entry : kTable) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

std::string unsupported_reason(const KernelEntry& entry, const GemmProblem& p, int arch) {
  if (!entry.launch) return join("kernel '", entry.name, "' is a CUDA kernel and this build has none");
  if (arch < entry.min_arch || (entry.max_arch != 0 && arch > entry.max_arch)) {
    return join("kernel '", entry.name, "' needs compute capability ", entry.min_arch / 10, ".",
                entry.min_arch % 10, entry.max_arch == entry.min_arch ? "" : " or newer", ", the device has ",
                arch / 10, ".", arch % 10);
  }
  bool typed = false;
  for (const TypeRule& t : entry.types) typed = typed || (t.a == p.a.dtype && t.b == p.b.dtype && t.d == p.d);
  if (!typed) {
    return join("kernel '", entry.name, "' got ", dtype_name(p.a.dtype), " x ", dtype_name(p.b.dtype), " -> ",
                dtype_name(p.d), "; it supports ", types_text(entry));
  }
  if (is_integer(p.d)) {
    const auto integral = [](double x) { return x == static_cast<double>(static_cast<int32_t>(x)); };
    const auto in_range = [](double x) { return x >= -2147483648.0 && x <= 2147483647.0; };
    if (!in_range(p.alpha) || !in_range(p.beta) || !integral(p.alpha) || !integral(p.beta)) {
      return join("kernel '", entry.name, "' computes in int32 and needs integer alpha and beta, got ",
                  p.alpha, " and ", p.beta);
    }
    if (p.activation != Activation::kNone && p.activation != Activation::kRelu) {
      return join("kernel '", entry.name, "' computes in int32, where the only activation is relu");
    }
  }
  return entry.unsupported ? entry.unsupported(p) : std::string();
}

}  // namespace jaxgemm
