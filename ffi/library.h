// What libjaxgemm.so offers: the one function it exports returns this table. A binding, which is compiled for
// one Python, sees nothing else of the library.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "handler.h"
#include "kernel.h"
#include "many.h"

namespace jaxgemm {

struct Library {
  // sha256 of the sources in ffi/, in hexadecimal. The first member, so that a binding that was compiled from
  // other sources, where later members may lie elsewhere, can read it and refuse the library.
  const char* source_digest;
  const char* cuda_version;        // of the compiler; empty without CUDA
  const char* cuda_architectures;  // in CMake's notation, separated by semicolons; empty without CUDA
  std::pair<int, int> ffi_api_version;

  std::vector<Registration> (*registrations)();
  std::span<const KernelEntry> (*kernel_table)();
  Status (*decode_call)(const CallSpec&, GemmProblem&, const KernelEntry*&);
  std::string (*unsupported_reason)(const KernelEntry&, const GemmProblem&, int arch);
  Status (*decode_many)(const ManySpec&, std::vector<GemmProblem>&, const KernelEntry*&);
  std::string (*unsupported_many_reason)(const KernelEntry&, std::span<const GemmProblem>, int arch);
};

}  // namespace jaxgemm

extern "C" __attribute__((visibility("default"))) const jaxgemm::Library* jaxgemm_library();
