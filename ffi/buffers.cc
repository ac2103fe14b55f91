#include "buffers.h"

#include <algorithm>
#include <string_view>

#include "check.h"

namespace jaxgemm {
namespace {

namespace ffi = xla::ffi;

// An operand of a call: what it is called, and its type.
struct Operand {
  const char* name;
  DType dtype = DType::kF32;
};
using Operands = std::array<Operand, kMaxOperands>;

// Lists the operands that a call with these attributes must have, and checks that it has them, each of a type
// in the table.
std::string read_operands(const CallSpec& spec, const Buffers& buffers, Operands& operands, size_t& count) {
  const bool has_c = !is_zero(spec.attributes.beta), has_bias = spec.attributes.has_bias;
  const std::span<const int64_t> scales = spec.attributes.scales;
  count = 0;
  std::string names;
  for (const auto& [name, present] : std::initializer_list<std::pair<const char*, bool>>{
           {"a", true},
           {"b", true},
           {"b_up", spec.gated},
           {"sizes", spec.grouped},
           {"offset", spec.grouped},
           {"c", has_c},
           {"bias", has_bias},
           {"a_scale", scales.size() > 0 && scales[0] != 0},
           {"b_scale", scales.size() > 1 && scales[1] != 0}}) {
    if (!present) continue;
    if (count < kMaxOperands) operands[count] = {name};
    names += join(count++ == 0 ? "" : ", ", name);
  }
  if (buffers.operand_count != count) {
    return join("expected ", count, " operands (", names, "), got ", buffers.operand_count);
  }
  if (count > kMaxOperands) return join("no call has all of the operands ", names);
  if (buffers.result_count != 1 && buffers.result_count != 2) {
    return join("expected 1 or 2 results (d, workspace), got ", buffers.result_count);
  }
  for (size_t i = 0; i < count; ++i) {
    const int type = buffers.operands[i].type;
    if (type == Buffer::kNone) return join("argument '", operands[i].name, "' is not a buffer");
    if (!from_xla(type, operands[i].dtype)) {
      return join("argument '", operands[i].name, "' has an element type that no kernel takes (XLA type ",
                  type, ")");
    }
  }
  return {};
}

// Whether the buffers of groups, which begin with operand `first`, are those of the problem.
std::string check_groups(const GemmProblem& p, const Buffers& buffers, const Operands& operands,
                         size_t first) {
  const int64_t counts[] = {p.groups.count * (p.groups.sizes_batched ? p.batch[0] : 1), 1};
  for (size_t i = 0; i < 2; ++i) {
    const auto [name, dtype] = operands[first + i];
    const int64_t elements = buffers.operands[first + i].elements;
    if (dtype != DType::kS32 || elements != counts[i]) {
      return join("argument '", name, "' has ", elements, " elements of ", dtype_name(dtype), ", expected ",
                  counts[i], " of ", dtype_name(DType::kS32));
    }
  }
  return {};
}

// How many elements c, the bias or a scale has, of a result of so many.
int64_t expected_elements(const GemmProblem& p, std::string_view name, int64_t outputs) {
  if (name == "c") return outputs;
  if (name == "a_scale") return p.a_scale == Scale::kLines ? p.m : 1;
  if (name == "b_scale") return p.b_scale == Scale::kLines ? p.n : 1;
  return (p.grouped() ? p.batch[1] : 1) * p.n;  // the bias
}

// Whether every buffer holds what the problem reads or writes there.
std::string check_buffers(const GemmProblem& p, const Buffers& buffers, const Operands& operands,
                          size_t count) {
  const auto& operand = buffers.operands;
  const Buffer& d = buffers.results[0];
  Status fits = check_elements("a", operand[0].elements, required_elements(p.a, p.m, p.k, p.batch));
  if (fits.ok()) fits = check_elements("b", operand[1].elements, required_elements(p.b, p.k, p.n, p.batch));
  if (!fits.ok()) return fits.message;
  const int64_t outputs = p.m * p.n * p.results();
  if (d.elements != outputs) {
    return join("result 'd' has ", d.elements, " elements, the attributes need ", outputs);
  }
  if (p.gated && (operands[2].dtype != p.b.dtype || operand[2].elements != operand[1].elements)) {
    return join("argument 'b_up' has ", operand[2].elements, " elements of ", dtype_name(operands[2].dtype),
                ", b has ", operand[1].elements, " of ", dtype_name(p.b.dtype));
  }
  size_t i = 2u + p.gated;
  if (p.grouped()) {
    if (std::string wrong = check_groups(p, buffers, operands, i); !wrong.empty()) return wrong;
    i += 2;
  }
  for (; i < count; ++i) {
    const char* name = operands[i].name;
    if (std::string_view(name).ends_with("_scale") && operands[i].dtype != DType::kF32)
      return join("argument '", name, "' must be of ", dtype_name(DType::kF32));
    const int64_t expected = expected_elements(p, name, outputs);
    if (operand[i].elements != expected) {
      return join("argument '", name, "' has ", operand[i].elements, " elements, expected ", expected);
    }
  }
  if (buffers.result_count == 2 && buffers.results[1].type == Buffer::kNone) {
    return "result 'workspace' is not a buffer";
  }
  return {};
}

}  // namespace

bool from_xla(int type, DType& out) {
#define JAXGEMM_CASE(enumerator, name, bytes, accumulator, xla, host, device) \
  case ffi::DataType::xla:                                                    \
    out = DType::enumerator;                                                  \
    return true;
  switch (static_cast<ffi::DataType>(type)) {
    JAXGEMM_ELEMENT_TYPES(JAXGEMM_CASE)
    default:
      return false;
  }
#undef JAXGEMM_CASE
}

Buffer buffer_of(const ffi::AnyBuffer& from) {
  return {static_cast<int>(from.element_type()), static_cast<int64_t>(from.element_count()),
          from.size_bytes(), from.untyped_data()};
}

Buffers::Buffers(ffi::RemainingArgs args, ffi::RemainingRets rets)
    : operand_count(args.size()), result_count(rets.size()) {
  for (size_t i = 0; i < std::min(operand_count, kMaxOperands); ++i) {
    if (auto buffer = args.get<ffi::AnyBuffer>(i)) operands[i] = buffer_of(*buffer);
  }
  for (size_t i = 0; i < std::min(result_count, kMaxResults); ++i) {
    if (auto buffer = rets.get<ffi::AnyBuffer>(i)) results[i] = buffer_of(**buffer);
  }
}

std::string decode(const WireAttributes& from, const Buffers& buffers, const Place& place, Request& request) {
  CallSpec spec;
  spec.gated = place.gated;
  spec.grouped = place.grouped;
  spec.scaled = place.scaled;
  if (std::string wrong = read(from, place.grouped, place.scaled, spec.attributes); !wrong.empty())
    return wrong;
  Operands operands;
  size_t count = 0;
  if (std::string wrong = read_operands(spec, buffers, operands, count); !wrong.empty()) return wrong;
  const Buffer &d = buffers.results[0], &workspace = buffers.results[1];
  if (d.type == Buffer::kNone) return "result 'd' is not a buffer";
  if (!from_xla(d.type, spec.d)) {
    return join("result 'd' has an element type that no kernel writes (XLA type ", d.type, ")");
  }
  spec.a = operands[0].dtype;
  spec.b = operands[1].dtype;
  spec.c = spec.bias = spec.d;
  for (size_t i = 2; i < count; ++i) {
    const auto [name, dtype] = operands[i];
    if (name == std::string_view("c")) spec.c = dtype;
    if (name == std::string_view("bias")) spec.bias = dtype;
  }
  const GemmProblem& p = request.problem;
  if (Status s = decode_call(spec, request.problem, request.entry); !s.ok()) return s.message;
  const KernelEntry& entry = *request.entry;
  if (entry.platform != place.platform) {
    return join("kernel '", entry.name, "' runs on ", entry.platform == Platform::kCuda ? "CUDA" : "the CPU",
                ", the call was placed elsewhere");
  }
  if (std::string wrong = check_buffers(p, buffers, operands, count); !wrong.empty()) return wrong;
  if (std::string refusal = unsupported_reason(entry, p, place.arch); !refusal.empty()) return refusal;
  if (entry.workspace) request.workspace = entry.workspace(p);
  if (workspace.bytes < request.workspace) {
    return join("result 'workspace' has ", workspace.bytes, " bytes, kernel '", entry.name, "' needs ",
                request.workspace);
  }
  return {};
}

GemmBuffers addresses(const GemmProblem& p, const Buffers& buffers) {
  const Buffer* operand = buffers.operands.data();
  const auto next = [&](bool present) -> void* { return present ? (operand++)->data : nullptr; };
  return {.a = next(true),  // in this order, as the operands are
          .b = next(true),
          .b_up = next(p.gated),
          .sizes = static_cast<const int32_t*>(next(p.grouped())),
          .offset = static_cast<const int32_t*>(next(p.grouped())),
          .c = next(p.has_c),
          .bias = next(p.has_bias),
          .a_scale = static_cast<const float*>(next(p.a_scale != Scale::kNone)),
          .b_scale = static_cast<const float*>(next(p.b_scale != Scale::kNone)),
          .d = buffers.results[0].data,
          .workspace = buffers.results[1].data};
}

}  // namespace jaxgemm
