// The arguments and results of a call as XLA hands them over, and what they and the attributes together ask a
// kernel for.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kernel.h"
#include "wire.h"

namespace jaxgemm {

// An argument or a result.
struct Buffer {
  static constexpr int kNone = -1;

  int type = kNone;  // XLA's element type; kNone: there is no buffer
  int64_t elements = 0;
  size_t bytes = 0;
  void* data = nullptr;
};
Buffer buffer_of(const xla::ffi::AnyBuffer& from);
// False for an XLA type that is not in the table of element types.
bool from_xla(int type, DType& out);

constexpr size_t kMaxOperands = 6, kMaxResults = 2;

struct Buffers {
  size_t operand_count = 0, result_count = 0;  // how many XLA passes; the arrays hold the first ones
  // a, b, then those of b_up, sizes, offset, c, bias, a_scale and b_scale that the call has
  std::array<Buffer, kMaxOperands> operands;
  std::array<Buffer, kMaxResults> results;  // d, workspace

  Buffers(xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets);
};

// Where a call runs, and by which handler.
struct Place {
  Platform platform;
  int arch = 0;  // compute capability times ten; 0 on CPU
  bool gated = false, grouped = false, scaled = false;
};

// A decoded call: the problem, and the kernel that computes it.
struct Request {
  GemmProblem problem;
  const KernelEntry* entry = nullptr;
  size_t workspace = 0;  // bytes that the kernel needs
};

// Decodes a call. Operands are a, b, for a gated product b_up, for a grouped one sizes and offset, then c
// when beta is not 0, then bias, then scales; results are d, then a workspace if there is one. Returns what
// is wrong with the call, or an empty string. request.problem.config points into the attributes.
std::string decode(const WireAttributes& attributes, const Buffers& buffers, const Place& place,
                   Request& request);

// The addresses for a problem whose call has been decoded.
GemmBuffers addresses(const GemmProblem& problem, const Buffers& buffers);

}  // namespace jaxgemm
