// The handlers of quantize, which is no product.
#pragma once

#include <vector>

#include "handler.h"

namespace jaxgemm {

void add_quantize_registrations(std::vector<Registration>& to);

}  // namespace jaxgemm
