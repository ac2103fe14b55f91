// What the Python module needs to know of the handlers, without XLA's headers.
#pragma once

#include <utility>
#include <vector>

namespace jaxgemm {

struct Registration {
  const char* target;
  const char* platform;
  const char* stage;
  void* handler;
};

std::vector<Registration> registrations();

// The version of the FFI headers this was compiled against, (major, minor).
std::pair<int, int> ffi_api_version();

}  // namespace jaxgemm
