// Division of counts.
#pragma once

#include <cstdint>

namespace jaxgemm {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }

}  // namespace jaxgemm
