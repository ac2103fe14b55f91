// What the handler asks of the CUDA runtime, so that it needs no CUDA header itself.
#pragma once

#include <span>

#include "../kernel.h"
#include "quantize/quantize.h"

namespace jaxgemm::cuda {

// Compute capability of a device times ten (90 for 9.0), cached.
Status device_arch(int device, int& arch);

// Runs entry.prepare with that device current, or for many products entry.prepare_many.
Status prepare_on_device(const KernelEntry& entry, const GemmProblem& problem, int device);
Status prepare_on_device(const KernelEntry& entry, std::span<const GemmProblem> problems, int device);
// The same of the kernel that a call of quantize takes.
Status prepare_on_device(const QuantizeCall& call, int device);

}  // namespace jaxgemm::cuda
