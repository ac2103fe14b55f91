// What the handlers of single and of many products share.
#pragma once

#include <cstdint>
#include <vector>

#include "handler.h"
#include "wire.h"

namespace jaxgemm {

// Whether this thread has initialized a call on a device. XLA asks at every execution of a program, so a call
// is identified by the address at which XLA keeps its attributes. If XLA has since put the attributes of
// another call there, that other call is taken for initialized, and prepared when it is executed.
bool initialized_before(const WireAttributes& attributes, int32_t device);

void add_many_registrations(std::vector<Registration>& to);

}  // namespace jaxgemm
