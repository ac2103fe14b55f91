// The typed FFI handlers: decode, check, launch. Only this file and wire.h see XLA's headers.
#include "handler.h"

#include <algorithm>
#include <array>
#include <utility>

#include "check.h"
#include "cpu/parallel.h"
#include "recall.h"
#include "wire.h"

#ifdef JAXGEMM_CUDA
  #include "cuda/device_info.h"
#endif

namespace jaxgemm {
namespace {

namespace ffi = xla::ffi;

ffi::Error invalid(std::string message) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "jaxgemm: " + std::move(message));
}

bool to_dtype(ffi::DataType type, DType& out) {
  switch (type) {
    case ffi::DataType::F64:
      out = DType::kF64;
      return true;
    case ffi::DataType::F32:
      out = DType::kF32;
      return true;
    case ffi::DataType::F16:
      out = DType::kF16;
      return true;
    case ffi::DataType::BF16:
      out = DType::kBF16;
      return true;
    case ffi::DataType::S8:
      out = DType::kS8;
      return true;
    case ffi::DataType::U8:
      out = DType::kU8;
      return true;
    case ffi::DataType::S32:
      out = DType::kS32;
      return true;
    default:
      return false;
  }
}

std::span<const int64_t> span_of(ffi::Span<const int64_t> s) { return {s.begin(), s.size()}; }

struct Attributes {
  std::string_view kernel;
  ffi::Span<const int64_t> dims, a, b;
  double alpha, beta;
  std::string_view activation;
  ffi::Span<const int64_t> config;
  bool has_bias;
};

// Returns what is wrong.
std::string read_attributes(const ffi::Dictionary& from, Attributes& attrs) {
  std::string wrong;
  size_t count = 0;
  const auto read = [&]<typename T>(std::string_view name, T& value) {
    const ffi::ErrorOr<T> found = from.get<T>(name);
    ++count;
    if (found.has_value()) {
      value = *found;
    } else if (wrong.empty()) {
      wrong = join("attribute '", name, "': ", found.error().message());
    }
  };
  read("kernel", attrs.kernel);
  read("dims", attrs.dims);
  read("a", attrs.a);
  read("b", attrs.b);
  read("alpha", attrs.alpha);
  read("beta", attrs.beta);
  read("activation", attrs.activation);
  read("config", attrs.config);
  read("has_bias", attrs.has_bias);
  if (wrong.empty() && from.size() != count)
    wrong = join("expected ", count, " attributes, got ", from.size());
  return wrong;
}

// What follows from everything in a call but its addresses, on one kind of device.
struct Known {
  std::string wrong;  // with the call, or empty
  GemmProblem problem;
  std::array<int64_t, kMaxOptions> config{};  // behind problem.config
  const KernelEntry* entry = nullptr;
  size_t workspace = 0;      // bytes that the kernel needs
  uint64_t prepared_on = 0;  // devices, a bit each
};

struct Call {
  GemmProblem problem;
  std::array<int64_t, kMaxOptions> config{};
  GemmBuffers buffers;
  const KernelEntry* entry = nullptr;
  Known* known = nullptr;  // until the next call
};

// Where a call runs.
struct Place {
  Platform platform;
  int arch = 0;
  bool gated = false;
};

// An argument or a result.
struct Buffer {
  int type = kNone;  // of XLA's types
  int64_t elements = 0;
  size_t bytes = 0;
  void* data = nullptr;

  static constexpr int kNone = -1;  // no buffer
  bool dtype(DType& out) const { return to_dtype(static_cast<ffi::DataType>(type), out); }
};
constexpr size_t kMaxOperands = 5, kMaxResults = 2;

struct Buffers {
  size_t operand_count = 0, result_count = 0;
  std::array<Buffer, kMaxOperands> operands;  // a, b, and whatever of b_up, c and bias there is
  std::array<Buffer, kMaxResults> results;    // d, workspace

  Buffers(ffi::RemainingArgs args, ffi::RemainingRets rets)
      : operand_count(args.size()), result_count(rets.size()) {
    for (size_t i = 0; i < std::min(operand_count, kMaxOperands); ++i) {
      if (auto buffer = args.get<ffi::AnyBuffer>(i)) operands[i] = of(*buffer);
    }
    for (size_t i = 0; i < std::min(result_count, kMaxResults); ++i) {
      if (auto buffer = rets.get<ffi::AnyBuffer>(i)) results[i] = of(**buffer);
    }
  }

 private:
  static Buffer of(const ffi::AnyBuffer& from) {
    return {static_cast<int>(from.element_type()), static_cast<int64_t>(from.element_count()),
            from.size_bytes(), from.untyped_data()};
  }
};

// Operands are a, b, for a gated product b_up, then c when beta is not 0, then bias; results are d, then a
// workspace if there is one. Returns what is wrong.
std::string decode(const ffi::Dictionary& attributes, const Buffers& buffers, const Place& place,
                   Known& known) {
  Attributes attrs{};
  if (std::string wrong = read_attributes(attributes, attrs); !wrong.empty()) return wrong;
  const bool has_c = !is_zero(attrs.beta);
  const size_t arity = 2u + place.gated + has_c + attrs.has_bias;
  if (buffers.operand_count != arity) {
    return join("expected ", arity, " operands (a, b", place.gated ? ", b_up" : "", has_c ? ", c" : "",
                attrs.has_bias ? ", bias" : "", "), got ", buffers.operand_count);
  }
  if (buffers.result_count != 1 && buffers.result_count != 2) {
    return join("expected 1 or 2 results (d, workspace), got ", buffers.result_count);
  }
  const char* names[kMaxOperands] = {"a", "b"};
  size_t named = 2;
  if (place.gated) names[named++] = "b_up";
  if (has_c) names[named++] = "c";
  if (attrs.has_bias) names[named++] = "bias";
  const auto& operand = buffers.operands;
  DType types[kMaxOperands] = {};
  for (size_t i = 0; i < arity; ++i) {
    if (operand[i].type == Buffer::kNone) return join("argument '", names[i], "' is not a buffer");
    if (!operand[i].dtype(types[i])) {
      return join("argument '", names[i], "' has an element type that no kernel takes (XLA type ",
                  operand[i].type, ")");
    }
  }
  const Buffer& d = buffers.results[0];
  if (d.type == Buffer::kNone) return "result 'd' is not a buffer";
  CallSpec spec{.kernel = attrs.kernel,
                .dims = span_of(attrs.dims),
                .a = span_of(attrs.a),
                .b = span_of(attrs.b),
                .alpha = attrs.alpha,
                .beta = attrs.beta,
                .activation = attrs.activation,
                .config = span_of(attrs.config),
                .a_type = types[0],
                .b_type = types[1],
                .has_c = has_c,
                .has_bias = attrs.has_bias,
                .gated = place.gated};
  if (!d.dtype(spec.d_type)) {
    return join("result 'd' has an element type that no kernel writes (XLA type ", d.type, ")");
  }
  GemmProblem& p = known.problem;
  if (Status s = decode_call(spec, p, known.entry); !s.ok()) return s.message;
  if (known.entry->platform != place.platform) {
    return join("kernel '", known.entry->name, "' runs on ",
                known.entry->platform == Platform::kCuda ? "CUDA" : "the CPU",
                ", the call was placed elsewhere");
  }
  Status fits = check_elements("a", operand[0].elements, required_elements(p.a, p.m, p.k, p.batch));
  if (fits.ok()) fits = check_elements("b", operand[1].elements, required_elements(p.b, p.k, p.n, p.batch));
  if (!fits.ok()) return fits.message;
  const int64_t outputs = p.m * p.n * p.batch_count();
  if (d.elements != outputs) {
    return join("result 'd' has ", d.elements, " elements, the attributes need ", outputs);
  }
  if (place.gated && (types[2] != types[1] || operand[2].elements != operand[1].elements)) {
    return join("argument 'b_up' has ", operand[2].elements, " elements of ", dtype_name(types[2]),
                ", b has ", operand[1].elements, " of ", dtype_name(types[1]));
  }
  for (size_t i = 2u + place.gated; i < arity; ++i) {
    const int64_t expected = std::string_view(names[i]) == "c" ? outputs : p.n;
    if (types[i] != p.d) {
      return join("argument '", names[i], "' has type ", dtype_name(types[i]), ", the result has ",
                  dtype_name(p.d));
    }
    if (operand[i].elements != expected) {
      return join("argument '", names[i], "' has ", operand[i].elements, " elements, expected ", expected);
    }
  }
  if (buffers.result_count == 2 && buffers.results[1].type == Buffer::kNone) {
    return "result 'workspace' is not a buffer";
  }
  if (std::string refusal = unsupported_reason(*known.entry, p, place.arch); !refusal.empty()) return refusal;
  if (known.entry->workspace) known.workspace = known.entry->workspace(p);
  if (buffers.results[1].bytes < known.workspace) {
    return join("result 'workspace' has ", buffers.results[1].bytes, " bytes, kernel '", known.entry->name,
                "' needs ", known.workspace);
  }
  return {};
}

Known know(const WireAttributes& attributes, const Buffers& buffers, const Place& place) {
  Known known;
  known.wrong = decode(ffi::Dictionary(attributes.attrs), buffers, place, known);
  // The attributes go with the call. Of one that is wrong there may be any number of values.
  if (known.wrong.empty()) std::ranges::copy(known.problem.config, known.config.begin());
  return known;
}

// All of a call. XLA hands over the same one at every execution, with other addresses.
ffi::Error resolve(const WireAttributes& attributes, const Buffers& buffers, const Place& place, Call& call) {
  WireKey key;
  key.add(place.arch * 4 + static_cast<int64_t>(place.platform) * 2 + place.gated);
  key.add(static_cast<int64_t>(buffers.operand_count << 32 | buffers.result_count));
  for (const Buffer& buffer : buffers.operands) key.add(buffer.elements * 256 + buffer.type + 1);
  for (const Buffer& buffer : buffers.results) key.add(buffer.elements * 256 + buffer.type + 1);
  if (!key.add(attributes)) {
    const std::string wrong = know(attributes, buffers, place).wrong;
    return invalid(wrong.empty() ? "the attributes are longer than those of any call" : wrong);
  }
  static thread_local Recall<Known, WireKey> recall;
  call.known = &recall(key, [&] { return know(attributes, buffers, place); });
  if (!call.known->wrong.empty()) return invalid(call.known->wrong);
  call.entry = call.known->entry;
  call.problem = call.known->problem;
  call.config = call.known->config;
  call.problem.config = {call.config.data(), call.known->problem.config.size()};
  const auto& operand = buffers.operands;
  const GemmProblem& p = call.problem;
  call.buffers = {.a = operand[0].data,
                  .b = operand[1].data,
                  .b_up = p.gated ? operand[2].data : nullptr,
                  .c = p.has_c ? operand[2u + p.gated].data : nullptr,
                  .bias = p.has_bias ? operand[buffers.operand_count - 1].data : nullptr,
                  .d = buffers.results[0].data,
                  .workspace = buffers.results[1].data};
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

// Checks and decodes, and where that has not been done on a device sets function attributes and loads
// modules.
template <bool kGated>
ffi::Error resolve_cuda(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                        WireAttributes attributes, Call& call) {
  Place place{.platform = Platform::kCuda, .gated = kGated};
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

// Whether this thread has initialized a call on a device. A call is known by where XLA keeps its attributes,
// as this is asked for every call at every execution of a program. Where XLA has since put another call's in
// the same place, that one is prepared when it is executed.
bool initialized_before(const WireAttributes& attributes, int32_t device) {
  using Seen = std::pair<const void*, int32_t>;
  static thread_local std::array<Seen, 1024> table;
  const Seen call{attributes.attrs->names[0]->ptr, device + 1};
  Seen& seen = table[(reinterpret_cast<uintptr_t>(call.first) >> 4) % table.size()];
  return std::exchange(seen, call) == call;
}

// Not captured, so per-device set-up belongs here. It reads its attributes only when it needs them.
template <bool kGated>
ffi::Error initialize_cuda(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                           WireAttributes attributes) {
  if (attributes.attrs->size == 0 || initialized_before(attributes, device)) return ffi::Error::Success();
  Call call;
  return resolve_cuda<kGated>(device, args, rets, attributes, call);
}

template <bool kGated>
ffi::Error execute_cuda(CUstream_st* stream, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                        WireAttributes attributes) {
  Call call;
  if (ffi::Error e = resolve_cuda<kGated>(device, args, rets, attributes, call); e.failure()) return e;
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
XLA_FFI_DEFINE_HANDLER(kInitializeCuda, initialize_cuda<false>, bind_initialize());
XLA_FFI_DEFINE_HANDLER(kExecuteCuda, execute_cuda<false>, bind_execute(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kInitializeGatedCuda, initialize_cuda<true>, bind_initialize());
XLA_FFI_DEFINE_HANDLER(kExecuteGatedCuda, execute_cuda<true>, bind_execute(),
                       {ffi::Traits::kCmdBufferCompatible});

#endif

}  // namespace

std::vector<Registration> registrations() {
  std::vector<Registration> out = {{"jaxgemm_gemm", "cpu", "execute", reinterpret_cast<void*>(kExecuteCpu)}};
#ifdef JAXGEMM_CUDA
  out.push_back({"jaxgemm_gemm", "CUDA", "initialize", reinterpret_cast<void*>(kInitializeCuda)});
  out.push_back({"jaxgemm_gemm", "CUDA", "execute", reinterpret_cast<void*>(kExecuteCuda)});
  out.push_back({"jaxgemm_gated_gemm", "CUDA", "initialize", reinterpret_cast<void*>(kInitializeGatedCuda)});
  out.push_back({"jaxgemm_gated_gemm", "CUDA", "execute", reinterpret_cast<void*>(kExecuteGatedCuda)});
#endif
  return out;
}

std::pair<int, int> ffi_api_version() { return {XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR}; }

}  // namespace jaxgemm
