// The row `host` of the kernel table.
#pragma once

#include "../kernel.h"

namespace jaxgemm::cpu {

std::span<const KernelEntry> host_rows();

}  // namespace jaxgemm::cpu
