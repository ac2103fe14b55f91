// Every change of a problem, and what it does to the key by which a plan is remembered, for test_recall.py.
#include "ffi/recall.h"

#include <string>

namespace {

using namespace jaxgemm;

struct Change {
  const char* name;
  void (*make)(GemmProblem&);
};

constexpr int64_t kConfig[kMaxOptions] = {};
constexpr auto kOther = [] {
  std::array<int64_t, kMaxOptions> values{};
  values[kMaxOptions - 1] = 1;
  return values;
}();

constexpr Change kChanges[] = {
    {"m", [](GemmProblem& p) { p.m = 2; }},
    {"n", [](GemmProblem& p) { p.n = 2; }},
    {"k", [](GemmProblem& p) { p.k = 2; }},
    {"outer batch", [](GemmProblem& p) { p.batch[0] = 2; }},
    {"inner batch", [](GemmProblem& p) { p.batch[1] = 2; }},
    {"type of a", [](GemmProblem& p) { p.a.dtype = DType::kF16; }},
    {"type of b", [](GemmProblem& p) { p.b.dtype = DType::kF16; }},
    {"type of d", [](GemmProblem& p) { p.d = DType::kF16; }},
    {"type of c", [](GemmProblem& p) { p.c = DType::kF16; }},
    {"type of bias", [](GemmProblem& p) { p.bias = DType::kF16; }},
    {"arithmetic", [](GemmProblem& p) { p.arithmetic = Arithmetic::kTf32; }},
    {"activation", [](GemmProblem& p) { p.activation = Activation::kRelu; }},
    {"a transposed", [](GemmProblem& p) { p.a.transposed = true; }},
    {"b transposed", [](GemmProblem& p) { p.b.transposed = true; }},
    {"lines of a", [](GemmProblem& p) { p.a.ld = 2; }},
    {"lines of b", [](GemmProblem& p) { p.b.ld = 2; }},
    {"outer stride of a", [](GemmProblem& p) { p.a.batch_stride[0] = 2; }},
    {"inner stride of a", [](GemmProblem& p) { p.a.batch_stride[1] = 2; }},
    {"outer stride of b", [](GemmProblem& p) { p.b.batch_stride[0] = 2; }},
    {"inner stride of b", [](GemmProblem& p) { p.b.batch_stride[1] = 2; }},
    {"alpha", [](GemmProblem& p) { p.alpha = 2.0; }},
    {"beta", [](GemmProblem& p) { p.beta = 2.0; }},
    {"a c", [](GemmProblem& p) { p.has_c = true; }},
    {"a bias", [](GemmProblem& p) { p.has_bias = true; }},
    {"gated", [](GemmProblem& p) { p.gated = true; }},
    {"form of groups", [](GemmProblem& p) { p.groups.form = Form::kRows; }},
    {"count of groups", [](GemmProblem& p) { p.groups.count = 2; }},
    {"batched sizes", [](GemmProblem& p) { p.groups.sizes_batched = true; }},
    {"no options", [](GemmProblem& p) { p.config = {}; }},
    {"fewer options", [](GemmProblem& p) { p.config = p.config.first(kMaxOptions - 1); }},
    {"the last option", [](GemmProblem& p) { p.config = kOther; }},
};

}  // namespace

extern "C" {

// The changes of which the key of a problem knows nothing, with a comma behind each; and "alike" where two
// keys of one problem differ.
const char* unseen() {
  static std::string names;
  names.clear();
  GemmProblem problem;
  problem.config = kConfig;
  const ProblemKey before = key_of(problem, 0, 0);
  if (!before.fits() || !(before == key_of(problem, 0, 0))) names += "alike,";
  for (const Change& change : kChanges) {
    GemmProblem changed = problem;
    change.make(changed);
    if (key_of(changed, 0, 0) == before) names += std::string(change.name) + ",";
  }
  if (key_of(problem, 1, 0) == before || key_of(problem, 0, 1) == before) names += "numbers of the caller,";
  return names.c_str();
}

int max_options() { return kMaxOptions; }
}
