// jaxgemm._ffi: the library's handlers as capsules, and its kernel table as Python sees it. It is compiled
// once for each Python; the kernels are not.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "library.h"
#include "source_digest.h"  // written by the build

namespace nb = nanobind;

namespace jaxgemm {
namespace {

const Library& library() { return *jaxgemm_library(); }

nb::list registration_list() {
  nb::list out;
  for (const Registration& r : library().registrations()) {
    out.append(
        nb::make_tuple(r.target, r.platform, r.stage, nb::capsule(r.handler, "xla._CUSTOM_CALL_TARGET")));
  }
  return out;
}

nb::list kernel_list() {
  nb::list out;
  for (const KernelEntry& e : library().kernel_table()) {
    nb::list rules;
    for (const TypeRule& t : e.types) {
      rules.append(nb::make_tuple(dtype_name(t.a), dtype_name(t.b), dtype_name(t.d),
                                  dtype_name(accumulator_of(t.a)), arithmetic_name(t.arithmetic),
                                  dtype_name(t.c), dtype_name(t.bias)));
    }
    nb::dict options;
    for (const Option& o : e.options) {
      options[o.name] = nb::tuple(nb::cast(std::vector<int64_t>(o.values.begin(), o.values.end())));
    }
    nb::dict pins;
    for (const Pin& pin : e.pins) pins[pin.option] = pin.value;
    nb::dict row;
    row["name"] = e.name;
    row["family"] = e.family;
    row["summary"] = e.summary;
    row["platform"] = e.platform == Platform::kCuda ? "cuda" : "cpu";
    row["min_arch"] = e.min_arch;
    row["max_arch"] = e.max_arch;
    row["rules"] = rules;
    row["options"] = options;
    row["scaled"] = !e.scaled_types.empty();
    row["gated"] = e.gated;
    row["grouped"] = e.grouped;
    row["many"] = e.many;
    row["deterministic"] = e.deterministic;
    row["batch_invariant"] = e.batch_invariant;
    row["pins"] = pins;
    row["built"] = e.launch != nullptr;
    out.append(row);
  }
  return out;
}

nb::list element_type_list() {
  nb::list out;
  for (const ElementType& t : kElementTypes)
    out.append(nb::make_tuple(t.name, t.bytes, dtype_name(t.accumulator)));
  return out;
}

nb::list arithmetic_list() {
  nb::list out;
  for (const char* name : kArithmetics) out.append(name);
  return out;
}

DType parse_dtype(const std::string& name) {
  DType found;
  if (!find_dtype(name, found)) throw nb::value_error(("no kernel knows dtype " + name).c_str());
  return found;
}

// Reads attributes that jaxgemm/wire.py makes for XLA as the handler would read them.
class PythonAttributes {
 public:
  explicit PythonAttributes(const nb::dict& attributes) : attributes_(attributes) {}

  template <typename Field>
  std::string operator()(const char* name, Field& field) {
    if (!attributes_.contains(name)) return "it is missing";
    nb::object value = attributes_[name];
    kept_.push_back(value);
    return read(value, field) ? "" : "it has a wrong type";
  }

 private:
  // False for a value whose type is not exactly the one that XLA would pass: nothing is converted.
  static bool read(const nb::object& from, std::span<const int64_t>& to) {
    nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig> array;
    if (!nb::try_cast(from, array, false)) return false;
    to = {array.data(), array.size()};
    return true;
  }
  static bool read(const nb::object& from, double& to) {
    return nb::isinstance<nb::float_>(from) &&
           nb::try_cast(from, to);  // NumPy's scalars of 64 bits are floats, too
  }
  template <typename T>
  static bool read(const nb::object& from, T& to) {
    return nb::try_cast(from, to, false);
  }

  nb::dict attributes_;
  std::vector<nb::object> kept_;  // keeps alive the texts and arrays that fields refer to
};

// A call as Python describes it: its attributes, and the element types of a, b and d, and of c and bias where
// these are not d's.
class PythonCall {
 public:
  PythonCall(const nb::dict& attributes, const std::vector<std::string>& dtypes, bool gated)
      : attributes_(attributes) {
    if (dtypes.size() != 3 && dtypes.size() != 5)
      throw nb::value_error("dtypes: expected the types of a, b and d, or of a, b, d, c and bias");
    spec_.a = parse_dtype(dtypes[0]);
    spec_.b = parse_dtype(dtypes[1]);
    spec_.d = spec_.c = spec_.bias = parse_dtype(dtypes[2]);
    if (dtypes.size() == 5) {
      spec_.c = parse_dtype(dtypes[3]);
      spec_.bias = parse_dtype(dtypes[4]);
    }
    spec_.gated = gated;
    spec_.grouped = attributes.contains("groups");
    spec_.scaled = attributes.contains("scales");
    wrong_ = read_attributes(spec_.attributes, attributes.size(), spec_.grouped, spec_.scaled, attributes_);
  }

  Status decode(GemmProblem& problem, const KernelEntry*& entry) const {
    return wrong_.empty() ? library().decode_call(spec_, problem, entry) : Status{wrong_};
  }

 private:
  CallSpec spec_;
  PythonAttributes attributes_;
  std::string wrong_;  // what is wrong with the attributes, or empty
};

// Why the kernel cannot run the call on a device of this architecture ("" if it can), and its workspace
// bytes.
std::pair<std::string, int64_t> check(const PythonCall& call, int arch) {
  GemmProblem problem;
  const KernelEntry* entry = nullptr;
  if (Status s = call.decode(problem, entry); !s.ok()) return {s.message, 0};
  if (std::string why = library().unsupported_reason(*entry, problem, arch); !why.empty()) return {why, 0};
  return {"", static_cast<int64_t>(entry->workspace ? entry->workspace(problem) : 0)};
}

// The same for a call of many products.
std::pair<std::string, int64_t> check_many(const nb::dict& attributes, const std::vector<std::string>& dtypes,
                                           int arch) {
  if (dtypes.size() != 3) throw nb::value_error("dtypes: expected the types of a, b and d");
  ManySpec spec;
  spec.a = parse_dtype(dtypes[0]);
  spec.b = parse_dtype(dtypes[1]);
  spec.d = parse_dtype(dtypes[2]);
  PythonAttributes look_up(attributes);
  if (std::string wrong = read_attributes(spec.attributes, attributes.size(), look_up); !wrong.empty())
    return {wrong, 0};
  std::vector<GemmProblem> problems;
  const KernelEntry* entry = nullptr;
  if (Status s = library().decode_many(spec, problems, entry); !s.ok()) return {s.message, 0};
  if (std::string why = library().unsupported_many_reason(*entry, problems, arch); !why.empty())
    return {why, 0};
  return {"", static_cast<int64_t>(entry->workspace_many(problems))};
}

// (option values, predicted microseconds, their parts by name) of each candidate, best first, `most` of them
// if that is not 0; empty without a cost model.
nb::list candidates(const PythonCall& call, int arch, int sm_count, double bandwidth, size_t most) {
  nb::list out;
  GemmProblem problem;
  const KernelEntry* entry = nullptr;
  if (!call.decode(problem, entry).ok() || !library().unsupported_reason(*entry, problem, arch).empty())
    return out;
  if (!entry->candidates) return out;
  for (const Candidate& c : entry->candidates(problem, Machine{sm_count, bandwidth})) {
    if (most != 0 && out.size() == most) break;
    nb::dict parts;
    for (const TimePart& part : c.parts) parts[part.name] = part.microseconds;
    out.append(nb::make_tuple(c.config, c.microseconds, parts));
  }
  return out;
}

// Splits a list at its semicolons.
std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(';', at), list.size());
    out.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

}  // namespace
}  // namespace jaxgemm

NB_MODULE(_ffi, m) {
  if (std::string_view(jaxgemm::library().source_digest) != JAXGEMM_SOURCE_DIGEST) {
    throw nb::import_error(jaxgemm::join("jaxgemm: libjaxgemm.so was built from other sources (digest ",
                                         jaxgemm::library().source_digest,
                                         ") than the binding that loads it (", JAXGEMM_SOURCE_DIGEST,
                                         "). Build and install both together: pip install .")
                               .c_str());
  }
  m.doc() = "The compiled half of jaxgemm: typed FFI handlers and the kernel table.";
  m.def("registrations", &jaxgemm::registration_list, "(target, platform, stage, capsule) of every handler.");
  m.def("kernels", &jaxgemm::kernel_list, "The kernel table, one dictionary a row.");
  m.def(
      "ffi_api_version", [] { return jaxgemm::library().ffi_api_version; },
      "(major, minor) of the FFI headers compiled against.");
  m.def(
      "cuda_architectures", [] { return jaxgemm::split(jaxgemm::library().cuda_architectures); },
      "The CUDA architectures compiled in; empty in a build without CUDA.");
  m.def(
      "cuda_version", [] { return std::string(jaxgemm::library().cuda_version); },
      "Version of the CUDA compiler; empty in a build without CUDA.");
  m.def(
      "source_digest", [] { return std::string(jaxgemm::library().source_digest); },
      "sha256 of the sources in ffi/ that the library was built from.");
  m.def("element_types", &jaxgemm::element_type_list,
        "(name, bytes, accumulator) of every element type, in the order of their numbers.");
  m.def("arithmetics", &jaxgemm::arithmetic_list,
        "The name of every arithmetic, in the order of their numbers.");
  nb::class_<jaxgemm::PythonCall>(m, "Call", "A call that check and candidates are asked about.")
      .def(nb::init<const nb::dict&, const std::vector<std::string>&, bool>(), nb::arg("attributes"),
           nb::arg("dtypes"), nb::arg("gated"));
  m.def("check", &jaxgemm::check, nb::arg("call"), nb::arg("arch"),
        "(reason, workspace bytes): the reason is empty when the kernel can run the call.");
  m.def("check_many", &jaxgemm::check_many, nb::arg("attributes"), nb::arg("dtypes"), nb::arg("arch"),
        "The same for a call of many products.");
  m.def(
      "candidates", &jaxgemm::candidates, nb::arg("call"), nb::arg("arch"), nb::arg("sm_count"),
      nb::arg("bandwidth"), nb::arg("most") = 0,
      "(option values, predicted microseconds, their parts by name) of each configuration, best first, or of "
      "the first `most`; empty without a cost model. The parts add up to the whole; there are none where the "
      "model tells none. The bandwidth is in bytes per second, 0 where it is not known.");
}
