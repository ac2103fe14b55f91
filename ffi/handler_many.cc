// The typed FFI handlers of calls of many products: decode, check, launch.
#include "handler_many.h"

#include <utility>
#include <vector>

#include "buffers.h"
#include "cuda/device_info.h"
#include "many.h"

namespace jaxgemm {
namespace {

namespace ffi = xla::ffi;

struct ManyCall {
  std::vector<GemmProblem> problems;
  std::vector<GemmBuffers> buffers;
  const KernelEntry* entry = nullptr;
};

// The arguments a_0, ..., b_0, ... and the results d_0, ..., and perhaps a workspace.
class ManyBuffers {
 public:
  ManyBuffers(ffi::RemainingArgs args, ffi::RemainingRets rets) : args_(args), rets_(rets) {}

  size_t operands() const { return args_.size(); }
  size_t results() const { return rets_.size(); }
  // One that is not a buffer has the type Buffer::kNone.
  Buffer operand(size_t i) const {
    const auto found = args_.get<ffi::AnyBuffer>(i);
    return found ? buffer_of(*found) : Buffer{};
  }
  Buffer result(size_t i) const {
    auto found = rets_.get<ffi::AnyBuffer>(i);
    return found ? buffer_of(**found) : Buffer{};
  }

 private:
  ffi::RemainingArgs args_;
  ffi::RemainingRets rets_;
};

// Whether a buffer is of this type and size; else what is wrong.
std::string check_buffer(const char* name, size_t number, const Buffer& buffer, int type, int64_t elements) {
  if (buffer.type == type && buffer.elements == elements) return {};
  return join("buffer ", name, "_", number, " has ", buffer.elements, " elements of XLA type ", buffer.type,
              ", expected ", elements, " of type ", type);
}

// Fills the addresses in `call`, whose problems are decoded.
std::string take_buffers(const ManyBuffers& given, void* workspace, ManyCall& call) {
  const size_t count = call.problems.size();
  const int a_type = given.operand(0).type, b_type = given.operand(count).type, d_type = given.result(0).type;
  for (size_t i = 0; i < count; ++i) {
    const GemmProblem& p = call.problems[i];
    const Buffer a = given.operand(i), b = given.operand(count + i), d = given.result(i);
    std::string wrong = check_buffer("a", i, a, a_type, p.m * p.k);
    if (wrong.empty()) wrong = check_buffer("b", i, b, b_type, p.k * p.n);
    if (wrong.empty()) wrong = check_buffer("d", i, d, d_type, p.m * p.n);
    if (!wrong.empty()) return wrong;
    call.buffers.push_back({.a = a.data, .b = b.data, .d = d.data, .workspace = workspace});
  }
  return {};
}

std::string decode(const WireAttributes& attributes, const ManyBuffers& given, int arch, ManyCall& call) {
  ManySpec spec;
  if (std::string wrong = read(attributes, spec.attributes); !wrong.empty()) return wrong;
  const size_t count = spec.attributes.dims.size() / 3;
  if (count == 0 || given.operands() != 2 * count || given.results() < count || given.results() > count + 1) {
    return join("expected ", 2 * count, " operands and ", count, " results (with a workspace ", count + 1,
                "), got ", given.operands(), " and ", given.results());
  }
  for (const auto& [buffer, type] :
       {std::pair(given.operand(0), &spec.a), std::pair(given.operand(count), &spec.b),
        std::pair(given.result(0), &spec.d)}) {
    if (!from_xla(buffer.type, *type)) return join("XLA type ", buffer.type, " is one that no kernel takes");
  }
  if (Status s = decode_many(spec, call.problems, call.entry); !s.ok()) return s.message;
  const KernelEntry& entry = *call.entry;
  if (entry.platform != Platform::kCuda) return join("kernel '", entry.name, "' does not run on CUDA");
  if (std::string why = unsupported_many_reason(entry, call.problems, arch); !why.empty()) return why;
  const Buffer workspace = given.results() > count ? given.result(count) : Buffer{};
  const size_t needed = entry.workspace_many(call.problems);
  if (workspace.bytes < needed) {
    return join("result 'workspace' has ", workspace.bytes, " bytes, kernel '", entry.name, "' needs ",
                needed);
  }
  return take_buffers(given, workspace.data, call);
}

// Decodes a call and prepares its kernel: sets function attributes and loads modules.
ffi::Error resolve(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   const WireAttributes& attributes, ManyCall& call) {
  int arch = 0;
  if (Status s = cuda::device_arch(device, arch); !s.ok())
    return ffi::Error::Internal("jaxgemm: " + s.message);
  if (std::string wrong = decode(attributes, ManyBuffers(args, rets), arch, call); !wrong.empty())
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "jaxgemm: " + wrong);
  if (Status s = cuda::prepare_on_device(*call.entry, call.problems, device); !s.ok())
    return ffi::Error::Internal("jaxgemm: " + s.message);
  return ffi::Error::Success();
}

ffi::Error initialize(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                      WireAttributes attributes) {
  if (initialized_before(attributes, device)) return ffi::Error::Success();
  ManyCall call;
  return resolve(device, args, rets, attributes, call);
}

ffi::Error execute(CUstream_st* stream, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   WireAttributes attributes) {
  ManyCall call;
  if (ffi::Error e = resolve(device, args, rets, attributes, call); e.failure()) return e;
  Executor executor;
  executor.stream = stream;
  executor.device = device;
  if (Status s = call.entry->launch_many(call.problems, call.buffers, executor); !s.ok())
    return ffi::Error::Internal("jaxgemm: " + s.message);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kInitialize, initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs<WireAttributes>());
// Launches only, so XLA may capture it in a command buffer.
XLA_FFI_DEFINE_HANDLER(kExecute, execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<CUstream_st*>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs<WireAttributes>(),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void add_many_registrations(std::vector<Registration>& to) {
  constexpr const char* kTarget = "jaxgemm_many_gemm";
  to.push_back({kTarget, "CUDA", "initialize", reinterpret_cast<void*>(kInitialize)});
  to.push_back({kTarget, "CUDA", "execute", reinterpret_cast<void*>(kExecute)});
}

}  // namespace jaxgemm
