// The typed FFI handlers of quantize: an array becomes values of 8 bits and scales.
#include "handler_quantize.h"

#include <cstdint>
#include <string>
#include <utility>

#include "buffers.h"
#include "check.h"
#include "cuda/device_info.h"

namespace jaxgemm {
namespace {

namespace ffi = xla::ffi;

// The call that buffers and the attribute `scaling` ask for; x has shape (batch, rows, columns). Returns what
// is wrong, or an empty string.
std::string decode(const ffi::AnyBuffer& x, const ffi::AnyBuffer& values, const ffi::AnyBuffer& scales,
                   int64_t scaling, cuda::QuantizeCall& call) {
  const Buffer from = buffer_of(x), to = buffer_of(values), by = buffer_of(scales);
  DType type = DType::kF32;
  if (!from_xla(from.type, call.from) || !from_xla(to.type, call.to) || !from_xla(by.type, type) ||
      type != DType::kF32)
    return "an XLA type is none of quantize's";
  if (x.dimensions().size() != 3) return "x must have 3 axes";
  if (scaling < 0 || scaling > 2) return join("attribute 'scaling' must be 0, 1 or 2, got ", scaling);
  call.batch = x.dimensions()[0], call.rows = x.dimensions()[1], call.columns = x.dimensions()[2];
  call.scaling = static_cast<cuda::Scaling>(scaling);
  if (std::string wrong = cuda::unsupported_quantize(call); !wrong.empty()) return wrong;
  const int64_t lines = call.scaling == cuda::Scaling::kRow      ? call.batch * call.rows
                        : call.scaling == cuda::Scaling::kColumn ? call.batch * call.columns
                                                                 : 1;
  if (to.elements != from.elements || by.elements != lines) {
    return join("expected ", from.elements, " values and ", lines, " scales, got ", to.elements, " and ",
                by.elements);
  }
  call.x = from.data;
  call.values = to.data;
  call.scales = static_cast<float*>(by.data);
  return {};
}

ffi::Error resolve(const ffi::AnyBuffer& x, const ffi::AnyBuffer& values, const ffi::AnyBuffer& scales,
                   int64_t scaling, cuda::QuantizeCall& call) {
  const std::string wrong = decode(x, values, scales, scaling, call);
  return wrong.empty() ? ffi::Error::Success()
                       : ffi::Error(ffi::ErrorCode::kInvalidArgument, "jaxgemm: quantize: " + wrong);
}

ffi::Error outcome(const Status& status) {
  return status.ok() ? ffi::Error::Success() : ffi::Error::Internal("jaxgemm: " + status.message);
}

ffi::Error initialize(int32_t device, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> values,
                      ffi::Result<ffi::AnyBuffer> scales, int64_t scaling) {
  cuda::QuantizeCall call{};
  if (ffi::Error e = resolve(x, *values, *scales, scaling, call); e.failure()) return e;
  return outcome(cuda::prepare_on_device(call, device));
}

ffi::Error execute(CUstream_st* stream, int32_t device, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> values,
                   ffi::Result<ffi::AnyBuffer> scales, int64_t scaling) {
  cuda::QuantizeCall call{};
  if (ffi::Error e = resolve(x, *values, *scales, scaling, call); e.failure()) return e;
  return outcome(cuda::launch_quantize(call, device, stream));
}

XLA_FFI_DEFINE_HANDLER(kInitialize, initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("scaling"));
// One launch, so XLA may capture it in a command buffer.
XLA_FFI_DEFINE_HANDLER(kExecute, execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<CUstream_st*>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("scaling"),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void add_quantize_registrations(std::vector<Registration>& to) {
  constexpr const char* kTarget = "jaxgemm_quantize";
  to.push_back({kTarget, "CUDA", "initialize", reinterpret_cast<void*>(kInitialize)});
  to.push_back({kTarget, "CUDA", "execute", reinterpret_cast<void*>(kExecute)});
}

}  // namespace jaxgemm
