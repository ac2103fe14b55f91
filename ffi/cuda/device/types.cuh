// The device types behind each DType, and dispatch from run-time types to a template.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "../../kernel.h"

namespace jaxgemm::cuda {

template <DType>
struct TypeOf;
template <>
struct TypeOf<DType::kF64> {
  using type = double;
};
template <>
struct TypeOf<DType::kF32> {
  using type = float;
};
template <>
struct TypeOf<DType::kF16> {
  using type = __half;
};
template <>
struct TypeOf<DType::kBF16> {
  using type = __nv_bfloat16;
};
template <>
struct TypeOf<DType::kS8> {
  using type = int8_t;
};
template <>
struct TypeOf<DType::kU8> {
  using type = uint8_t;
};
template <>
struct TypeOf<DType::kS32> {
  using type = int32_t;
};

// The types of one instantiation: operands, result and accumulator.
template <DType A_, DType B_, DType D_, DType Acc_>
struct Types {
  static constexpr DType kA = A_, kB = B_, kD = D_, kAcc = Acc_;
  static constexpr TypeRule kRule{A_, B_, D_, Acc_};
  using A = typename TypeOf<A_>::type;
  using B = typename TypeOf<B_>::type;
  using D = typename TypeOf<D_>::type;
  using Acc = typename TypeOf<Acc_>::type;
};

template <typename... Ts>
struct TypeList {};

using FloatTypes = TypeList<Types<DType::kF32, DType::kF32, DType::kF32, DType::kF32>,
                            Types<DType::kF64, DType::kF64, DType::kF64, DType::kF64>,
                            Types<DType::kF16, DType::kF16, DType::kF16, DType::kF32>,
                            Types<DType::kF16, DType::kF16, DType::kF32, DType::kF32>,
                            Types<DType::kBF16, DType::kBF16, DType::kBF16, DType::kF32>,
                            Types<DType::kBF16, DType::kBF16, DType::kF32, DType::kF32>>;

// What every fp32 rung of the ladder takes.
using LadderTypes = FloatTypes;

// Calls f(Types<...>{}) for the member of the list that matches the problem. The handler has already checked
// the problem against the row's types, so a miss means that the row and the kernel's list disagree.
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
