// The table of kernels: adding a kernel is one row here and one file beside the others.
//
// Every row is present in every build, so that documentation and error messages know each name; a build
// without CUDA leaves the functions of CUDA rows null.
#include "check.h"
#include "cpu/host.h"
#include "kernel.h"
#include "recall.h"

#ifdef JAXGEMM_CUDA
  #include "cuda/kernels.h"
  #define JAXGEMM_CUDA_FN(function) cuda::function
#else
  #define JAXGEMM_CUDA_FN(function) nullptr
#endif
#ifdef JAXGEMM_SM90
  #define JAXGEMM_SM90_FN(function) cuda::function
#else
  #define JAXGEMM_SM90_FN(function) nullptr
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

// What the rungs take whose budget is counted in floats: fp32, and 16-bit floats that widen to it.
constexpr TypeRule kSingleTypes[] = {
    {kF32, kF32, kF32, kF32},    {kF16, kF16, kF16, kF32},   {kF16, kF16, kF32, kF32},
    {kBF16, kBF16, kBF16, kF32}, {kBF16, kBF16, kF32, kF32},
};

// A rung of the ladder: deterministic, and one order of k for every element.
constexpr KernelEntry rung(const char* name, std::span<const TypeRule> types,
                           Status (*launch)(const GemmProblem&, const GemmBuffers&, const Executor&),
                           const char* summary) {
  return {.name = name,
          .family = "ladder",
          .summary = summary,
          .platform = Platform::kCuda,
          .min_arch = 80,
          .types = types,
          .deterministic = true,
          .batch_invariant = true,
          .launch = launch};
}

constexpr TypeRule kTf32Types[] = {{kF32, kF32, kF32, kF32}};
constexpr TypeRule kHalfTypes[] = {{kF16, kF16, kF32, kF32}, {kF16, kF16, kF16, kF32}};
constexpr TypeRule kWmmaTypes[] = {
    {kF16, kF16, kF32, kF32}, {kF16, kF16, kF16, kF32}, {kBF16, kBF16, kF32, kF32}, {kU8, kU8, kS32, kS32},
    {kS8, kS8, kS32, kS32},   {kF32, kF32, kF32, kF32}, {kF64, kF64, kF64, kF64},
};

// WMMA's tile shapes: 0 is the type's default.
constexpr int64_t kWmmaM[] = {0, 8, 16, 32}, kWmmaK[] = {0, 4, 8, 16};
constexpr Option kWmmaOptions[] = {{"tile_m", kWmmaM}, {"tile_n", kWmmaM}, {"tile_k", kWmmaK}};

constexpr TypeRule k16BitTypes[] = {{kF16, kF16, kF16, kF32},
                                    {kF16, kF16, kF32, kF32},
                                    {kBF16, kBF16, kBF16, kF32},
                                    {kBF16, kBF16, kF32, kF32}};

// 0 leaves an option to the kernel's cost model.
constexpr int64_t kUpTo2[] = {0, 1, 2}, kUpTo4[] = {0, 1, 2, 4}, kSm80Tiles[] = {0, 1, 2, 3, 4, 5};
constexpr int64_t kSm90TileM[] = {0, 64, 128, 192};
constexpr int64_t kUpTo8[] = {0, 1, 2, 4, 8};
constexpr int64_t kDirectTiles[] = {0, 1, 2};
constexpr Option kDirectOptions[] = {{"tile", kDirectTiles}, {"warps", kUpTo8}};
constexpr Pin kDirectPins[] = {{"warps", 8}};  // they share K
constexpr Option kGemvOptions[] = {{"warps_k", kUpTo8}, {"splits", kUpTo8}};
constexpr Option kSimtOptions[] = {{"tile", {}}};
constexpr Option kSm80Options[] = {{"tile", kSm80Tiles}, {"split_k", {}}};
// What must not follow m for the order of a row's sums to be the same for every m: a split of K does. So does
// where its steps begin. The walk over the tiles may, and what becomes of unaligned rows.
constexpr Pin kSm80Pins[] = {{"tile", 2}, {"split_k", 1}};
constexpr Pin kSm90Pins[] = {{"split_k", 1}, {"group", 0}, {"unaligned", 0}, {"rows", 1}};
constexpr int64_t kSm90TileN[] = {0, 16, 32, 64, 96, 112, 128, 144, 160, 192, 224, 256};
constexpr Option kSm90Options[] = {{"tile_m", kSm90TileM}, {"tile_n", kSm90TileN}, {"schedule", kUpTo2},
                                   {"cluster_m", kUpTo4},  {"cluster_n", kUpTo4},  {"split_k", {}},
                                   {"swap", kUpTo2},       {"group", {}},          {"grid", kUpTo2},
                                   {"reduction", kUpTo2},  {"blocks", kUpTo2},     {"unaligned", kUpTo2},
                                   {"rows", kUpTo2}};

constexpr KernelEntry kTable[] = {
    {.name = "host",
     .family = "cpu",
     .summary = "CPU: cache-blocked, vectorised, threaded",
     .platform = Platform::kCpu,
     .types = kHostTypes,
     .deterministic = true,
     .batch_invariant = true,
     .launch = cpu::launch_host},
    rung("naive", kFloatTypes, JAXGEMM_CUDA_FN(launch_naive), "one thread per element, global memory only"),
    rung("coalesced", kFloatTypes, JAXGEMM_CUDA_FN(launch_coalesced),
         "a warp along n, so that accesses coalesce"),
    rung("tiled", kFloatTypes, JAXGEMM_CUDA_FN(launch_tiled), "32 x 32 tiles in padded shared memory"),
    rung("coarse_1d", kFloatTypes, JAXGEMM_CUDA_FN(launch_coarse_1d), "8 elements of a column a thread"),
    rung("register_blocked", kFloatTypes, JAXGEMM_CUDA_FN(launch_register_blocked),
         "64 x 64 x 16 tiles, 4 x 4 a thread"),
    rung("coarse_2d", kSingleTypes, JAXGEMM_CUDA_FN(launch_coarse_2d),
         "128 x 128 x 16 tiles, 8 x 8 a thread"),
    rung("coarse_2d_vec", kSingleTypes, JAXGEMM_CUDA_FN(launch_coarse_2d_vec),
         "coarse_2d in 128-bit accesses"),
    rung("vec4_global", kFloatTypes, JAXGEMM_CUDA_FN(launch_vec4_global),
         "4 x 4 a thread from float4 rows, no shared memory"),
    rung("vec4_shared", kSingleTypes, JAXGEMM_CUDA_FN(launch_vec4_shared),
         "8 x 8 a thread, row-major A in shared memory"),
    rung("vec4_shared_at", kSingleTypes, JAXGEMM_CUDA_FN(launch_vec4_shared_at),
         "A transposed on its way into shared memory"),
    rung("fragment_pipeline", kSingleTypes, JAXGEMM_CUDA_FN(launch_fragment_pipeline),
         "fragments loaded one step ahead"),
    rung("shared_pipeline", kSingleTypes, JAXGEMM_CUDA_FN(launch_shared_pipeline),
         "tiles loaded one step ahead too"),
    rung("warp_tiled", kSingleTypes, JAXGEMM_CUDA_FN(launch_warp_tiled),
         "warp tiles, double-buffered 128 x 128 x 8"),
    rung("outer_product", kSingleTypes, JAXGEMM_CUDA_FN(launch_outer_product),
         "C in shared memory, rank-1 updates from registers"),
    {.name = "wmma_tf32",
     .family = "ladder",
     .summary = "WMMA 16 x 16 x 8 in TF32, 64 x 64 x 8 tiles",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = kTf32Types,
     .tf32 = true,
     .deterministic = true,
     .batch_invariant = true,
     .launch = JAXGEMM_CUDA_FN(launch_wmma_tf32)},
    {.name = "wmma_f16",
     .family = "ladder",
     .summary = "WMMA 16 x 16 x 16, 64 x 64 x 16 tiles in padded shared memory",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = kHalfTypes,
     .deterministic = true,
     .batch_invariant = true,
     .launch = JAXGEMM_CUDA_FN(launch_wmma_f16)},
    {.name = "wmma",
     .family = "ladder",
     .summary = "one warp per WMMA tile, fragments from global memory, every WMMA type and shape",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = kWmmaTypes,
     .options = kWmmaOptions,
     .tf32 = true,
     .deterministic = true,
     .batch_invariant = true,
     .unsupported = JAXGEMM_CUDA_FN(unsupported_wmma),
     .launch = JAXGEMM_CUDA_FN(launch_wmma)},
    rung("mma_sync", k16BitTypes, JAXGEMM_CUDA_FN(launch_mma_sync),
         "mma.sync 16 x 8 x 16 from ldmatrix, 128 x 128 x 32 tiles in three swizzled cp.async stages"),
    {.name = "wgmma_tma",
     .family = "ladder",
     .summary =
         "wgmma 64 x 256 x 16 by two warpgroups, TMA copies by a warp, 128 x 256 x 64 tiles in four stages",
     .platform = Platform::kCuda,
     .min_arch = 90,
     .max_arch = 90,
     .types = k16BitTypes,
     .deterministic = true,
     .batch_invariant = true,
     .unsupported = JAXGEMM_SM90_FN(unsupported_wgmma_tma),
     .prepare = JAXGEMM_SM90_FN(prepare_wgmma_tma),
     .launch = JAXGEMM_SM90_FN(launch_wgmma_tma)},
    {.name = "gemv",
     .family = "gemv",
     .summary = "few rows or columns: the larger operand read once",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = kSingleTypes,
     .options = kGemvOptions,
     .deterministic = true,
     .unsupported = JAXGEMM_CUDA_FN(unsupported_gemv),
     .candidates = JAXGEMM_CUDA_FN(candidates_gemv),
     .launch = JAXGEMM_CUDA_FN(launch_gemv)},
    {.name = "direct",
     .family = "direct",
     .summary = "small 16-bit products: from memory into tensor cores' registers, rows of any alignment",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = k16BitTypes,
     .options = kDirectOptions,
     .deterministic = true,
     .pins = kDirectPins,
     .unsupported = JAXGEMM_CUDA_FN(unsupported_direct),
     .candidates = JAXGEMM_CUDA_FN(candidates_direct),
     .prepare = JAXGEMM_CUDA_FN(prepare_direct),
     .launch = JAXGEMM_CUDA_FN(launch_direct)},
    {.name = "simt",
     .family = "simt",
     .summary = "production FMA: cp.async stages, warp tiles, split-K, tiles by a cost model",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = kFloatTypes,
     .options = kSimtOptions,
     .deterministic = true,
     .unsupported = JAXGEMM_CUDA_FN(unsupported_simt),
     .candidates = JAXGEMM_CUDA_FN(candidates_simt),
     .workspace = JAXGEMM_CUDA_FN(workspace_simt),
     .prepare = JAXGEMM_CUDA_FN(prepare_simt),
     .launch = JAXGEMM_CUDA_FN(launch_simt)},
    {.name = "sm80",
     .family = "sm80",
     .summary = "16-bit tensor cores by mma.sync, for every chip since Ampere",
     .platform = Platform::kCuda,
     .min_arch = 80,
     .types = k16BitTypes,
     .options = kSm80Options,
     .deterministic = true,
     .pins = kSm80Pins,
     .workspace = JAXGEMM_CUDA_FN(workspace_sm80),
     .prepare = JAXGEMM_CUDA_FN(prepare_sm80),
     .launch = JAXGEMM_CUDA_FN(launch_sm80)},
    {.name = "sm90",
     .family = "sm90",
     .summary = "16-bit tensor cores by wgmma and TMA, warp-specialised and persistent, for Hopper",
     .platform = Platform::kCuda,
     .min_arch = 90,
     .max_arch = 90,
     .types = k16BitTypes,
     .options = kSm90Options,
     .gated = true,
     .deterministic = true,
     .pins = kSm90Pins,
     .unsupported = JAXGEMM_SM90_FN(unsupported_sm90),
     .candidates = JAXGEMM_SM90_FN(candidates_sm90),
     .workspace = JAXGEMM_SM90_FN(workspace_sm90),
     .prepare = JAXGEMM_SM90_FN(prepare_sm90),
     .launch = JAXGEMM_SM90_FN(launch_sm90)},
};

static_assert(std::all_of(std::begin(kTable), std::end(kTable),
                          [](const KernelEntry& e) { return e.options.size() <= kMaxOptions; }));

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
  if (p.gated && !entry.gated) return join("kernel '", entry.name, "' has no gated form");
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
