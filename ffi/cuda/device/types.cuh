// The device type behind each DType, and dispatch from the types of a problem to a template.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include "../../kernel.h"
#include "../type_lists.h"

namespace jaxgemm::cuda {

template <DType>
struct TypeOf;
#define JAXGEMM_TYPE_OF(enumerator, name, bytes, accumulator, xla, host, device) \
  template <>                                                                    \
  struct TypeOf<DType::enumerator> {                                             \
    using type = device;                                                         \
  };
JAXGEMM_ELEMENT_TYPES(JAXGEMM_TYPE_OF)
#undef JAXGEMM_TYPE_OF

// The types of one instantiation: operands, result and accumulator.
template <DType A_, DType B_, DType D_, DType Acc_ = accumulator_of(A_)>
struct Types {
  static constexpr DType kA = A_, kB = B_, kD = D_;
  using A = typename TypeOf<A_>::type;
  using B = typename TypeOf<B_>::type;
  using D = typename TypeOf<D_>::type;
  using Acc = typename TypeOf<Acc_>::type;
};

template <typename... Ts>
struct TypeList {};

// The types that a row names, as in TypesOf<kFloatTypes>.
template <const auto& kRules, size_t... kIndex>
TypeList<Types<kRules[kIndex].a, kRules[kIndex].b, kRules[kIndex].d>...> types_of(
    std::index_sequence<kIndex...>);
template <const auto& kRules>
using TypesOf = decltype(types_of<kRules>(std::make_index_sequence<std::size(kRules)>{}));

using LadderTypes = TypesOf<kFloatTypes>;
using SingleTypes = TypesOf<kSingleTypes>;
using TensorTypes = TypesOf<k16BitTypes>;

// Calls f(Types<...>{}) for the member of the list that matches the problem. The handler has already checked
// the problem against the row's types, so a miss means that the kernel's list is not the row's.
template <typename F, typename... Ts>
Status dispatch_types(TypeList<Ts...>, const GemmProblem& p, F&& f) {
  Status status{"internal error: the kernel's row names types that the kernel was not compiled for"};
  ((p.a.dtype == Ts::kA && p.b.dtype == Ts::kB && p.d == Ts::kD ? (status = f(Ts{}), true) : false) || ...);
  return status;
}

template <typename To, typename From>
__device__ __forceinline__ To convert(From x) {
  if constexpr (std::is_same_v<From, __half>) {
    if constexpr (std::is_same_v<To, __half>)
      return x;
    else
      return static_cast<To>(__half2float(x));
  } else if constexpr (std::is_same_v<From, __nv_bfloat16>) {
    if constexpr (std::is_same_v<To, __nv_bfloat16>)
      return x;
    else
      return static_cast<To>(__bfloat162float(x));
  } else if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

inline Status launch_status(const char* kernel) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return {std::string("launching kernel '") + kernel + "': " + cudaGetErrorString(error)};
}

}  // namespace jaxgemm::cuda
