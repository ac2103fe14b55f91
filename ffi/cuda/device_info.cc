#include "device_info.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "../check.h"

namespace jaxgemm::cuda {
namespace {

Status cuda_status(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {join(what, ": ", cudaGetErrorString(error))};
}

// Makes a device current for a scope. XLA keeps track of the current device, so the scope's end restores it.
class ScopedDevice {
 public:
  explicit ScopedDevice(int device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess && previous_ != device) error_ = cudaSetDevice(device);
  }
  ~ScopedDevice() {
    if (previous_ >= 0) cudaSetDevice(previous_);
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int previous_ = -1;
  cudaError_t error_ = cudaSuccess;
};

template <typename Run>
Status on_device(int device, Run&& run) {
  const ScopedDevice scope(device);
  if (scope.error() != cudaSuccess) return cuda_status("selecting the device", scope.error());
  return run();
}

}  // namespace

Status device_arch(int device, int& arch) {
  constexpr int kCached = 64;
  static std::array<std::atomic<int>, kCached> cache{};
  if (device >= 0 && device < kCached && (arch = cache[device].load(std::memory_order_relaxed)) != 0)
    return {};
  int major = 0, minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error != cudaSuccess) return cuda_status("reading the compute capability", error);
  arch = major * 10 + minor;
  if (device >= 0 && device < kCached) cache[device].store(arch, std::memory_order_relaxed);
  return {};
}

Status prepare_on_device(const KernelEntry& entry, const GemmProblem& problem, int device) {
  return entry.prepare ? on_device(device, [&] { return entry.prepare(problem, device); }) : Status{};
}

Status prepare_on_device(const KernelEntry& entry, std::span<const GemmProblem> problems, int device) {
  return on_device(device, [&] { return entry.prepare_many(problems, device); });
}

Status prepare_on_device(const QuantizeCall& call, int device) {
  return on_device(device, [&] { return prepare_quantize(call); });
}

}  // namespace jaxgemm::cuda
