// The typed FFI handlers: decode, check, launch. XLA's headers are seen here, in buffers.h and in wire.h
// only.
#include "handler.h"

#include <algorithm>
#include <array>
#include <utility>

#include "buffers.h"
#include "cpu/parallel.h"
#include "recall.h"

#ifdef JAXGEMM_CUDA
  #include "cuda/device_info.h"
  #include "handler_many.h"
  #include "handler_quantize.h"
#endif

namespace jaxgemm {
namespace {

namespace ffi = xla::ffi;

ffi::Error invalid(std::string message) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "jaxgemm: " + std::move(message));
}

// The outcome of decoding a call, which depends on everything of the call but its buffers' addresses.
struct Known {
  std::string wrong;  // what is wrong with the call, or empty
  Request request;
  std::array<int64_t, kMaxOptions> config{};  // what request.problem.config points to
  uint64_t prepared_on = 0;                   // devices on which the kernel is prepared, a bit each
};

struct Call {
  GemmProblem problem;
  std::array<int64_t, kMaxOptions> config{};  // what problem.config points to
  GemmBuffers buffers;
  const KernelEntry* entry = nullptr;
  Known* known = nullptr;  // valid until this thread resolves another call
};

Known know(const WireAttributes& attributes, const Buffers& buffers, const Place& place) {
  Known known;
  known.wrong = decode(attributes, buffers, place, known.request);
  // XLA frees the attributes when the call returns, so the config is copied. A wrong one may be too long.
  if (known.wrong.empty()) std::ranges::copy(known.request.problem.config, known.config.begin());
  return known;
}

// Fills `call`. XLA passes the same call at every execution of a program, with other addresses, so the
// outcome of decoding it is remembered.
ffi::Error resolve(const WireAttributes& attributes, const Buffers& buffers, const Place& place, Call& call) {
  WireKey key;
  key.add(place.arch * 16 + static_cast<int64_t>(place.platform) * 8 + place.scaled * 4 + place.grouped * 2 +
          place.gated);
  key.add(static_cast<int64_t>(buffers.operand_count << 32 | buffers.result_count));
  const auto add = [&](std::span<const Buffer> room, size_t count) {
    for (const Buffer& buffer : room.first(std::min(count, room.size())))
      key.add(buffer.elements * 256 + buffer.type + 1);
  };
  add(buffers.operands, buffers.operand_count);
  add(buffers.results, buffers.result_count);
  if (!key.add(attributes)) {
    const std::string wrong = know(attributes, buffers, place).wrong;
    return invalid(wrong.empty() ? "the attributes are longer than those of any call" : wrong);
  }
  static thread_local Recall<Known, WireKey> recall;
  call.known = &recall(key, [&] { return know(attributes, buffers, place); });
  if (!call.known->wrong.empty()) return invalid(call.known->wrong);
  const Request& request = call.known->request;
  call.entry = request.entry;
  call.problem = request.problem;
  call.config = call.known->config;
  call.problem.config = {call.config.data(), request.problem.config.size()};
  call.buffers = addresses(call.problem, buffers);
  return ffi::Error::Success();
}

ffi::Error launch(const Call& call, const Executor& executor) {
  if (call.problem.output_empty()) return ffi::Error::Success();
  if (Status s = call.entry->launch(call.problem, call.buffers, executor); !s.ok()) {
    return ffi::Error::Internal("jaxgemm: " + s.message);
  }
  return ffi::Error::Success();
}

ffi::Error execute_cpu(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                       WireAttributes attributes) {
  Call call;
  if (ffi::Error e = resolve(attributes, Buffers(args, rets), {Platform::kCpu}, call); e.failure()) return e;
  Executor executor;
  std::string failure;
  executor.parallel_for = [&](int64_t count, const std::function<void(int64_t)>& body) {
    const auto schedule = [&](std::function<void()> task) { pool.Schedule(std::move(task)); };
    std::string error = cpu::parallel_for(count, pool.num_threads(), schedule, body);
    if (!error.empty()) failure = std::move(error);
  };
  ffi::Error status = launch(call, executor);
  if (status.success() && !failure.empty()) return ffi::Error::Internal("jaxgemm: " + failure);
  return status;
}

XLA_FFI_DEFINE_HANDLER(
    kExecuteCpu, execute_cpu,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs<WireAttributes>());

#ifdef JAXGEMM_CUDA

// The targets of CUDA calls: what operands and attributes a call has follows from its target and its
// attributes.
enum class Target : uint8_t { kGemm, kGated, kGrouped, kGroupedGated, kScaled };
constexpr bool is_gated(Target x) { return x == Target::kGated || x == Target::kGroupedGated; }
constexpr bool is_grouped(Target x) { return x == Target::kGrouped || x == Target::kGroupedGated; }

// Decodes the call and, on a device where that has not been done, prepares its kernel: sets function
// attributes and loads modules.
template <Target kTarget>
ffi::Error resolve_cuda(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                        WireAttributes attributes, Call& call) {
  Place place{.platform = Platform::kCuda,
              .gated = is_gated(kTarget),
              .grouped = is_grouped(kTarget),
              .scaled = kTarget == Target::kScaled};
  if (Status s = cuda::device_arch(device, place.arch); !s.ok())
    return ffi::Error::Internal("jaxgemm: " + s.message);
  if (ffi::Error e = resolve(attributes, Buffers(args, rets), place, call); e.failure()) return e;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (call.known->prepared_on & bit) return ffi::Error::Success();
  if (Status s = cuda::prepare_on_device(*call.entry, call.problem, device); !s.ok()) {
    return ffi::Error::Internal("jaxgemm: " + s.message);
  }
  call.known->prepared_on |= bit;
  return ffi::Error::Success();
}

// XLA does not capture the initialize stage, so per-device set-up belongs here. Attributes are decoded only
// if this thread has not initialized the call.
template <Target kTarget>
ffi::Error initialize_cuda(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                           WireAttributes attributes) {
  if (initialized_before(attributes, device)) return ffi::Error::Success();
  Call call;
  return resolve_cuda<kTarget>(device, args, rets, attributes, call);
}

template <Target kTarget>
ffi::Error execute_cuda(CUstream_st* stream, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                        WireAttributes attributes) {
  Call call;
  if (ffi::Error e = resolve_cuda<kTarget>(device, args, rets, attributes, call); e.failure()) return e;
  Executor executor;
  executor.stream = stream;
  executor.device = device;
  return launch(call, executor);
}

auto bind_initialize() {
  return ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets()
      .Attrs<WireAttributes>();
}
auto bind_execute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<CUstream_st*>>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets()
      .Attrs<WireAttributes>();
}

  // The execute stage only launches kernels on the given stream, so XLA may capture it in a command buffer.
  #define JAXGEMM_HANDLERS(target)                                                                      \
    XLA_FFI_DEFINE_HANDLER(kInitialize##target, initialize_cuda<Target::k##target>, bind_initialize()); \
    XLA_FFI_DEFINE_HANDLER(kExecute##target, execute_cuda<Target::k##target>, bind_execute(),           \
                           {ffi::Traits::kCmdBufferCompatible});
JAXGEMM_HANDLERS(Gemm)
JAXGEMM_HANDLERS(Gated)
JAXGEMM_HANDLERS(Grouped)
JAXGEMM_HANDLERS(GroupedGated)
JAXGEMM_HANDLERS(Scaled)
  #undef JAXGEMM_HANDLERS

#endif

}  // namespace

#ifdef JAXGEMM_CUDA
bool initialized_before(const WireAttributes& attributes, int32_t device) {
  if (attributes.attrs->size == 0) return true;  // a call that is wrong, as executing it says
  using Seen = std::pair<const void*, int32_t>;
  static thread_local std::array<Seen, 1024> table;
  const Seen call{attributes.attrs->names[0]->ptr, device + 1};
  Seen& seen = table[(reinterpret_cast<uintptr_t>(call.first) >> 4) % table.size()];
  return std::exchange(seen, call) == call;
}
#endif

std::vector<Registration> registrations() {
  std::vector<Registration> out = {{"jaxgemm_gemm", "cpu", "execute", reinterpret_cast<void*>(kExecuteCpu)}};
#ifdef JAXGEMM_CUDA
  const auto add = [&](const char* target, auto* initialize, auto* execute) {
    out.push_back({target, "CUDA", "initialize", reinterpret_cast<void*>(initialize)});
    out.push_back({target, "CUDA", "execute", reinterpret_cast<void*>(execute)});
  };
  add("jaxgemm_gemm", kInitializeGemm, kExecuteGemm);
  add("jaxgemm_gated_gemm", kInitializeGated, kExecuteGated);
  add("jaxgemm_grouped_gemm", kInitializeGrouped, kExecuteGrouped);
  add("jaxgemm_grouped_gated_gemm", kInitializeGroupedGated, kExecuteGroupedGated);
  add("jaxgemm_scaled_gemm", kInitializeScaled, kExecuteScaled);
  add_many_registrations(out);
  add_quantize_registrations(out);
#endif
  return out;
}

std::pair<int, int> ffi_api_version() { return {XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR}; }

}  // namespace jaxgemm
