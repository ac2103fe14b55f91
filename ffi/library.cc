#include "library.h"

#include "built_for.h"  // this and the next are written by the build
#include "source_digest.h"

extern "C" const jaxgemm::Library* jaxgemm_library() {
  static const jaxgemm::Library library{.source_digest = JAXGEMM_SOURCE_DIGEST,
                                        .cuda_version = JAXGEMM_CUDA_VERSION,
                                        .cuda_architectures = JAXGEMM_CUDA_ARCHITECTURES,
                                        .ffi_api_version = jaxgemm::ffi_api_version(),
                                        .registrations = jaxgemm::registrations,
                                        .kernel_table = jaxgemm::kernel_table,
                                        .decode_call = jaxgemm::decode_call,
                                        .unsupported_reason = jaxgemm::unsupported_reason,
                                        .decode_many = jaxgemm::decode_many,
                                        .unsupported_many_reason = jaxgemm::unsupported_many_reason};
  return &library;
}
