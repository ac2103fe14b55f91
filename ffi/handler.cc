// The typed FFI handlers, and the only file that sees XLA's headers: decode, check, launch.
#include "handler.h"

#include <array>
#include <utility>

#include "check.h"
#include "cpu/parallel.h"
#include "recall.h"
#include "xla/ffi/api/ffi.h"

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

ffi::Error read_attributes(const ffi::Dictionary& from, Attributes& attrs) {
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
  return wrong.empty() ? ffi::Error::Success() : invalid(wrong);
}

struct Call {
  GemmProblem problem;
  GemmBuffers buffers;
  size_t workspace_bytes = 0;
  const KernelEntry* entry = nullptr;
};

// What follows from a call's attributes and the kind of device.
struct Facts {
  std::string refusal;       // why the kernel cannot run the problem, or empty
  size_t workspace = 0;      // bytes that it needs
  uint64_t prepared_on = 0;  // devices, a bit each
};

Facts& facts_of(const Call& call, int arch) {
  static thread_local Recall<Facts> recall;
  return recall(key_of(call.problem, reinterpret_cast<intptr_t>(call.entry), arch), [&] {
    Facts facts{.refusal = unsupported_reason(*call.entry, call.problem, arch)};
    if (facts.refusal.empty() && call.entry->workspace) facts.workspace = call.entry->workspace(call.problem);
    return facts;
  });
}

int64_t elements(const ffi::AnyBuffer& buffer) { return static_cast<int64_t>(buffer.element_count()); }

// Operands are a, b, for a gated product b_up, then c when beta is not 0, then bias; results are d, then a
// workspace if there is one.
ffi::Error decode(const ffi::Dictionary& attributes, ffi::RemainingArgs args, ffi::RemainingRets rets,
                  Platform platform, bool gated, Call& call) {
  Attributes attrs{};
  if (ffi::Error e = read_attributes(attributes, attrs); e.failure()) return e;
  const bool has_c = !is_zero(attrs.beta);
  const size_t arity = 2u + gated + has_c + attrs.has_bias;
  if (args.size() != arity) {
    return invalid(join("expected ", arity, " operands (a, b", gated ? ", b_up" : "", has_c ? ", c" : "",
                        attrs.has_bias ? ", bias" : "", "), got ", args.size()));
  }
  if (rets.size() != 1 && rets.size() != 2) {
    return invalid(join("expected 1 or 2 results (d, workspace), got ", rets.size()));
  }
  const char* names[5] = {"a", "b"};
  size_t named = 2;
  if (gated) names[named++] = "b_up";
  if (has_c) names[named++] = "c";
  if (attrs.has_bias) names[named++] = "bias";
  std::vector<ffi::AnyBuffer> operand;
  DType types[5] = {};
  for (size_t i = 0; i < arity; ++i) {
    auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer) return invalid(join("argument '", names[i], "' is not a buffer"));
    operand.push_back(*buffer);
    if (!to_dtype(operand[i].element_type(), types[i])) {
      return invalid(join("argument '", names[i], "' has an element type that no kernel takes (XLA type ",
                          static_cast<int>(operand[i].element_type()), ")"));
    }
  }
  auto result = rets.get<ffi::AnyBuffer>(0);
  if (!result) return invalid("result 'd' is not a buffer");
  ffi::AnyBuffer d = **result;
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
                .gated = gated};
  if (!to_dtype(d.element_type(), spec.d_type)) {
    return invalid(join("result 'd' has an element type that no kernel writes (XLA type ",
                        static_cast<int>(d.element_type()), ")"));
  }
  GemmProblem& p = call.problem;
  if (Status s = decode_call(spec, p, call.entry); !s.ok()) return invalid(s.message);
  if (call.entry->platform != platform) {
    return invalid(join("kernel '", call.entry->name, "' runs on ",
                        call.entry->platform == Platform::kCuda ? "CUDA" : "the CPU",
                        ", the call was placed elsewhere"));
  }
  Status fits = check_elements("a", elements(operand[0]), required_elements(p.a, p.m, p.k, p.batch));
  if (fits.ok()) fits = check_elements("b", elements(operand[1]), required_elements(p.b, p.k, p.n, p.batch));
  if (!fits.ok()) return invalid(fits.message);
  const int64_t outputs = p.m * p.n * p.batch_count();
  if (elements(d) != outputs) {
    return invalid(join("result 'd' has ", elements(d), " elements, the attributes need ", outputs));
  }
  if (gated) {
    const int64_t expected = elements(operand[1]);
    if (types[2] != types[1] || elements(operand[2]) != expected) {
      return invalid(join("argument 'b_up' has ", elements(operand[2]), " elements of ", dtype_name(types[2]),
                          ", b has ", expected, " of ", dtype_name(types[1])));
    }
  }
  for (size_t i = 2u + gated; i < arity; ++i) {
    const int64_t expected = std::string_view(names[i]) == "c" ? outputs : p.n;
    if (types[i] != p.d) {
      return invalid(join("argument '", names[i], "' has type ", dtype_name(types[i]), ", the result has ",
                          dtype_name(p.d)));
    }
    if (elements(operand[i]) != expected) {
      return invalid(
          join("argument '", names[i], "' has ", elements(operand[i]), " elements, expected ", expected));
    }
  }
  call.buffers = {.a = operand[0].untyped_data(),
                  .b = operand[1].untyped_data(),
                  .b_up = gated ? operand[2].untyped_data() : nullptr,
                  .c = has_c ? operand[2u + gated].untyped_data() : nullptr,
                  .bias = attrs.has_bias ? operand[arity - 1].untyped_data() : nullptr,
                  .d = d.untyped_data()};
  if (rets.size() == 2) {
    auto workspace = rets.get<ffi::AnyBuffer>(1);
    if (!workspace) return invalid("result 'workspace' is not a buffer");
    call.buffers.workspace = (**workspace).untyped_data();
    call.workspace_bytes = (**workspace).size_bytes();
  }
  return ffi::Error::Success();
}

// Whether the kernel can run this call on a device of that kind, with the workspace that it got.
ffi::Error check_facts(const Call& call, const Facts& facts) {
  if (!facts.refusal.empty()) return invalid(facts.refusal);
  if (call.workspace_bytes >= facts.workspace) return ffi::Error::Success();
  return invalid(join("result 'workspace' has ", call.workspace_bytes, " bytes, kernel '", call.entry->name,
                      "' needs ", facts.workspace));
}

ffi::Error launch(const Call& call, const Executor& executor) {
  if (call.problem.output_empty()) return ffi::Error::Success();
  if (Status s = call.entry->launch(call.problem, call.buffers, executor); !s.ok()) {
    return ffi::Error::Internal("jaxgemm: " + s.message);
  }
  return ffi::Error::Success();
}

ffi::Error execute_cpu(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                       ffi::Dictionary attributes) {
  Call call;
  if (ffi::Error e = decode(attributes, args, rets, Platform::kCpu, false, call); e.failure()) return e;
  Executor executor;
  std::string failure;
  executor.parallel_for = [&](int64_t count, const std::function<void(int64_t)>& body) {
    const auto schedule = [&](std::function<void()> task) { pool.Schedule(std::move(task)); };
    std::string error = cpu::parallel_for(count, pool.num_threads(), schedule, body);
    if (!error.empty()) failure = std::move(error);
  };
  if (ffi::Error e = check_facts(call, facts_of(call, 0)); e.failure()) return e;
  ffi::Error status = launch(call, executor);
  if (status.success() && !failure.empty()) return ffi::Error::Internal("jaxgemm: " + failure);
  return status;
}

XLA_FFI_DEFINE_HANDLER(kExecuteCpu, execute_cpu,
                       ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs());

#ifdef JAXGEMM_CUDA

// Function attributes and module loading, on a device where that has not been done.
ffi::Error prepare(const Call& call, Facts& facts, int32_t device) {
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (facts.prepared_on & bit) return ffi::Error::Success();
  if (Status s = cuda::prepare_on_device(*call.entry, call.problem, device); !s.ok()) {
    return ffi::Error::Internal("jaxgemm: " + s.message);
  }
  facts.prepared_on |= bit;
  return ffi::Error::Success();
}

// Whether this thread has initialized a call on a device. A call is known by where XLA keeps its attributes,
// as this is asked for every call at every execution of a program. Where XLA has since put another call's in
// the same place, that one is prepared when it is executed.
bool initialized_before(const ffi::Dictionary& attributes, int32_t device) {
  using Known = std::pair<const void*, int32_t>;
  static thread_local std::array<Known, 1024> table;
  const Known call{(*attributes.begin()).data(), device + 1};
  Known& known = table[(reinterpret_cast<uintptr_t>(call.first) >> 4) % table.size()];
  return std::exchange(known, call) == call;
}

// Not captured, so per-device set-up belongs here. It reads its attributes only when it needs them.
template <bool kGated>
ffi::Error initialize_cuda(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                           ffi::Dictionary attributes) {
  if (attributes.size() == 0 || initialized_before(attributes, device)) return ffi::Error::Success();
  Call call;
  if (ffi::Error e = decode(attributes, args, rets, Platform::kCuda, kGated, call); e.failure()) return e;
  int arch = 0;
  if (Status s = cuda::device_arch(device, arch); !s.ok())
    return ffi::Error::Internal("jaxgemm: " + s.message);
  Facts& facts = facts_of(call, arch);
  if (ffi::Error e = check_facts(call, facts); e.failure()) return e;
  return prepare(call, facts, device);
}

template <bool kGated>
ffi::Error execute_cuda(CUstream_st* stream, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                        ffi::Dictionary attributes) {
  Call call;
  if (ffi::Error e = decode(attributes, args, rets, Platform::kCuda, kGated, call); e.failure()) return e;
  int arch = 0;
  if (Status s = cuda::device_arch(device, arch); !s.ok())
    return ffi::Error::Internal("jaxgemm: " + s.message);
  Facts& facts = facts_of(call, arch);
  if (ffi::Error e = check_facts(call, facts); e.failure()) return e;
  if (ffi::Error e = prepare(call, facts, device); e.failure()) return e;
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
      .Attrs();
}
auto bind_execute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<CUstream_st*>>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets()
      .Attrs();
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
