// The kernel table's rows. Each row is defined next to its kernel; registry.cc collects them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "problem.h"

struct CUstream_st;  // the driver's stream, so that this header needs no CUDA

namespace jaxgemm {

// An empty message means success.
struct Status {
  std::string message;
  bool ok() const { return message.empty(); }
};

enum class Platform : uint8_t { kCpu, kCuda };

// Where a launch runs. A CUDA kernel gets a stream and must neither allocate, synchronise nor use another
// stream, since XLA may be capturing it; a CPU kernel gets XLA's intra-op pool as a blocking parallel loop.
struct Executor {
  CUstream_st* stream = nullptr;
  int device = 0;
  std::function<void(int64_t count, const std::function<void(int64_t)>& body)> parallel_for;
};

// What cost models know of a device.
struct Machine {
  int multiprocessors;
  double bandwidth;  // of device memory, in bytes per second; 0: not known
};

// Element types that a kernel takes and writes, and how it multiplies. Sums are in the accumulator of a's
// type.
struct TypeRule {
  DType a, b, d;
  Arithmetic arithmetic = Arithmetic::kPlain;
  DType c = d, bias = d;
};

struct Option {
  const char* name;
  std::span<const int64_t> values;  // allowed, the default first; empty: all from 0, the default, on
};

// A kernel's options, in the order of GemmProblem::config.
struct Options : std::span<const Option> {
  constexpr Options() = default;
  template <size_t kCount>
  constexpr Options(const Option (&options)[kCount]) : span(options) {
    static_assert(kCount <= kMaxOptions, "more options than the places that calls keep their values in");
  }
};

// A part of a time that a cost model expects.
struct TimePart {
  const char* name;
  double microseconds;
};

// A configuration: a value for each of a kernel's options, the device time that the kernel's cost model
// expects, and the parts that this time is the sum of; no parts if the model names none.
struct Candidate {
  std::vector<int64_t> config;
  double microseconds;
  std::vector<TimePart> parts = {};
};

// An option with a fixed value.
struct Pin {
  const char* option;
  int64_t value;
};

struct KernelEntry {
  const char* name = nullptr;
  const char* family = nullptr;  // "cpu", "ladder", "simt", ...
  const char* summary = nullptr;
  Platform platform = Platform::kCpu;
  int min_arch = 0;  // compute capability times ten; 0 on CPU
  int max_arch = 0;  // 0: no limit. Kernels that use architecture-specific instructions have one
  std::span<const TypeRule> types = {};
  Options options = {};
  std::span<const TypeRule> scaled_types = {};  // of problems with scales; empty: it runs none
  bool gated = false;                           // runs gated problems too
  bool grouped = false;                         // runs grouped problems too
  bool many = false;                            // runs many products of different shapes in one call
  bool deterministic = false;                   // same bits on every run
  bool batch_invariant = false;                 // the bits of a row do not depend on m or on the other rows
  // With these options fixed, and all others at any fixed values, the kernel is batch-invariant as well.
  // Empty: no options make it so.
  std::span<const Pin> pins = {};

  // A reason the problem cannot be run beyond types, device and options, or an empty string. May be null.
  std::string (*unsupported)(const GemmProblem&) = nullptr;
  // Configurations for the problem, best first, with the options that problem.config fixes kept; a pure
  // function, so that the choice can be made while tracing. Null for a kernel without a cost model.
  std::vector<Candidate> (*candidates)(const GemmProblem&, const Machine&) = nullptr;
  // Bytes of workspace. Null means none.
  size_t (*workspace)(const GemmProblem&) = nullptr;
  // Per-device set-up, run outside of graph capture before the first launch on a device. May be null.
  Status (*prepare)(const GemmProblem&, int device) = nullptr;
  // Null in a build without CUDA.
  Status (*launch)(const GemmProblem&, const GemmBuffers&, const Executor&) = nullptr;

  // The same functions for many products, in a kernel that runs many. There is at least one product. All
  // have the types, transpositions and config of the first, and neither batch nor epilogue. They share one
  // workspace.
  std::string (*unsupported_many)(std::span<const GemmProblem>) = nullptr;
  size_t (*workspace_many)(std::span<const GemmProblem>) = nullptr;
  Status (*prepare_many)(std::span<const GemmProblem>, int device) = nullptr;
  Status (*launch_many)(std::span<const GemmProblem>, std::span<const GemmBuffers>,
                        const Executor&) = nullptr;
};

// Every row, in the order in which users see them.
std::span<const KernelEntry> kernel_table();

// Null if no row has this name.
const KernelEntry* find_kernel(std::string_view name);

// Why the entry cannot run the problem on a device of this architecture (0 on CPU), or an empty string.
std::string unsupported_reason(const KernelEntry&, const GemmProblem&, int arch);
// The same for many products at once.
std::string unsupported_many_reason(const KernelEntry&, std::span<const GemmProblem>, int arch);

}  // namespace jaxgemm
