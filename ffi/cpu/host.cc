// host: the CPU kernel. Blocks of D are independent tasks on XLA's pool; inside a block, packed panels feed
// a register tile (engine.inc).
//
// The products of an element are always added in the same order: one multiply-add after the other within
// kDepth steps of k, and the sums of these slices in order. So a result's bits depend on the element's row of
// A and column of B alone: not on the number of threads, the other rows, or how the block was cut and packed.
#include "host.h"

#if defined(__x86_64__)
  #include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "convert.h"
#include "plan.h"

namespace jaxgemm::cpu {
namespace {

// Both operands have one type.
constexpr TypeRule kTypes[] = {
    {DType::kF32, DType::kF32, DType::kF32},    {DType::kF64, DType::kF64, DType::kF64},
    {DType::kF16, DType::kF16, DType::kF16},    {DType::kF16, DType::kF16, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kBF16, DType::kF32},
    {DType::kS8, DType::kS8, DType::kS32},      {DType::kU8, DType::kU8, DType::kS32},
};

template <DType In_, DType D_>
struct Types {
  static constexpr DType kIn = In_, kD = D_;
  using In = typename TypeOf<In_>::type;
  using D = typename TypeOf<D_>::type;
  using Acc = typename TypeOf<accumulator_of(In_)>::type;
};

template <typename... Ts>
struct TypeList {};

template <size_t... kIndex>
TypeList<Types<kTypes[kIndex].a, kTypes[kIndex].d>...> types_of(std::index_sequence<kIndex...>);
using HostTypes = decltype(types_of(std::make_index_sequence<std::size(kTypes)>{}));

// What finish_run needs to know; D = activation(alpha * acc + beta * C + bias).
template <typename T>
struct Finish {
  using Acc = typename T::Acc;
  using D = typename T::D;
  D* d;
  const D* c;     // null: beta is 0 and C is not read
  const D* bias;  // null: none
  int64_t n;
  Acc alpha, beta;
  Activation activation;
  bool plain;  // only the conversion to D's type is left to do

  Finish(const GemmProblem& p, const GemmBuffers& b)
      : d(static_cast<D*>(b.d)),
        c(p.has_c ? static_cast<const D*>(b.c) : nullptr),
        bias(p.has_bias ? static_cast<const D*>(b.bias) : nullptr),
        n(p.n),
        alpha(static_cast<Acc>(p.alpha)),
        beta(static_cast<Acc>(p.beta)),
        activation(p.activation),
        plain(alpha == Acc(1) && !c && !bias && activation == Activation::kNone) {}
};

// The parts of a task's memory. Sizes are rounded up to cache lines.
template <typename Packed, typename Acc>
struct Workspace {
  Packed* x;  // packed block of x
  Packed* y;  // kPanels packed panels of y
  Acc* sums;  // partial sums of the block, where k exceeds kDepth steps
  size_t bytes;

  Workspace(const Plan& plan, int64_t k, int per_step, int64_t rows, int64_t width, std::byte* base) {
    const int64_t steps = std::min(kDepth, ceil_div(k, per_step));
    const int64_t padded_x = ceil_div(plan.block_x, rows) * rows;
    const int64_t padded_y = ceil_div(plan.block_y, width) * width;
    bytes = 64;  // not 0: an allocation of 0 bytes may be null, which means out of memory
    const auto take = [&](int64_t elements, size_t size) {
      std::byte* part = base ? base + bytes : nullptr;
      bytes += (static_cast<size_t>(elements) * size + 63) / 64 * 64;
      return part;
    };
    x = reinterpret_cast<Packed*>(take(plan.pack_x ? padded_x * steps : 0, sizeof(Packed)));
    y = reinterpret_cast<Packed*>(take(kPanels * width * steps, sizeof(Packed)));
    sums = reinterpret_cast<Acc*>(take(k > kDepth * per_step ? padded_x * padded_y : 0, sizeof(Acc)));
  }
};

// Memory that a thread keeps between tasks, since touching fresh pages costs more than the packing into them.
// Null when out of memory.
std::byte* thread_workspace(size_t bytes) {
  struct Buffer {
    void* data = nullptr;
    size_t size = 0;
    ~Buffer() { std::free(data); }
  };
  thread_local Buffer buffer;
  if (buffer.size < bytes) {
    std::free(buffer.data);
    buffer.data = std::aligned_alloc(64, bytes);
    buffer.size = buffer.data ? bytes : 0;
  }
  return static_cast<std::byte*>(buffer.data);
}

// Computes units [first, last) of a plan; false when out of memory.
using Task = bool (*)(const Plan&, const GemmProblem&, const GemmBuffers&, int64_t first, int64_t last);

// What an instruction set offers.
struct Engine {
  int vector_bytes;
  std::span<const Shape> shapes;
  Task (*task)(const GemmProblem&, int shape);  // null when the types are not supported
};

namespace baseline {
constexpr int kVectorBytes = 16, kRegisters = 16;
#include "engine.inc"
}  // namespace baseline

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  #define JAXGEMM_X86_ENGINES 1
  #pragma GCC push_options
  #pragma GCC target("avx2,fma,f16c")
namespace avx2 {
constexpr int kVectorBytes = 32, kRegisters = 16;
  #include "engine.inc"
}  // namespace avx2
  #pragma GCC pop_options

  #pragma GCC push_options
  #pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
namespace avx512 {
constexpr int kVectorBytes = 64, kRegisters = 32;
  #include "engine.inc"
}  // namespace avx512
  #pragma GCC pop_options
#endif

const Engine& best_engine() {
#ifdef JAXGEMM_X86_ENGINES
  static const Engine& engine = [&]() -> const Engine& {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c")) {
      return baseline::kEngine;
    }
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? avx512::kEngine : avx2::kEngine;
  }();
  return engine;
#else
  return baseline::kEngine;
#endif
}

Status launch_on(const Engine& engine, int64_t threads, const GemmProblem& problem,
                 const GemmBuffers& buffers, const Executor& executor) {
  if (problem.output_empty()) return {};
  const GemmProblem p = fold_batch(problem);
  const DType accumulator = accumulator_of(p.a.dtype);
  const int lanes = engine.vector_bytes / static_cast<int>(dtype_bytes(accumulator));
  const bool in_place = p.a.dtype == accumulator;
  const Plan plan = make_plan(p, buffers, engine.shapes, lanes, in_place, threads);
  const Task task = engine.task(p, plan.shape);
  if (!task) {
    return {std::string("kernel 'host' does not multiply ") + dtype_name(p.a.dtype) + " by " +
            dtype_name(p.b.dtype) + " into " + dtype_name(p.d)};
  }
  std::atomic<bool> out_of_memory{false};
  const auto body = [&](int64_t i) {
    const int64_t first = i * plan.units_per_task;
    if (!task(plan, p, buffers, first, std::min(first + plan.units_per_task, plan.units))) {
      out_of_memory.store(true, std::memory_order_relaxed);
    }
  };
  if (plan.tasks == 1 || !executor.parallel_for) {
    for (int64_t i = 0; i < plan.tasks; ++i) body(i);
  } else {
    executor.parallel_for(plan.tasks, std::cref(body));  // by reference: a copy may need memory
  }
  if (out_of_memory) return {"kernel 'host': out of memory for packing"};
  return {};
}

Status launch_host(const GemmProblem& problem, const GemmBuffers& buffers, const Executor& executor) {
  static const int64_t threads = std::max(1u, std::thread::hardware_concurrency());
  return launch_on(best_engine(), threads, problem, buffers, executor);
}

constexpr KernelEntry kRows[] = {
    {.name = "host",
     .family = "cpu",
     .summary = "CPU: cache-blocked, vectorised, threaded",
     .platform = Platform::kCpu,
     .types = kTypes,
     .deterministic = true,
     .batch_invariant = true,
     .launch = launch_host},
};

}  // namespace

std::span<const KernelEntry> host_rows() { return kRows; }

}  // namespace jaxgemm::cpu
