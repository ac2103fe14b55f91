// Activations of a register array. The common ones in a form that is two special-function instructions, exact
// to a few units in fp32's last place; the others by their definitions, in a loop that exists once.
#pragma once

#include "epilogue.cuh"

namespace jaxgemm::cuda {

// Single instructions: the library's versions of both take more, for the sake of results below 2^-126.
__device__ __forceinline__ float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_flushed(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Of NaN it is NaN.
__device__ __forceinline__ float positive_part(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / (1 + 2^x). Infinities come out right: 2^x overflows to infinity, whose reciprocal is 0.
__device__ __forceinline__ float falling_sigmoid(float x) {
  return reciprocal_flushed(1.f + exp2_flushed(x));
}
// 1 / (1 + exp(-x)).
__device__ __forceinline__ float fast_sigmoid(float x) { return falling_sigmoid(-1.4426950408889634f * x); }

// nvcc does not say which cases are missing below.
static_assert(kActivationCount == 7, "activate_any has a case for each");
static_assert(count_of(CodeLength::kTrivial) == 2 && count_of(CodeLength::kShort) == 2,
              "activate_short has all but the long ones");

// The activations for which has_short_code() holds.
template <int kCount>
__device__ __forceinline__ void activate_short(Activation activation, float (&x)[kCount]) {
  if (activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = positive_part(x[i]);
  } else if (activation == Activation::kGelu) {
    // (1 + tanh(u)) / 2 is sigmoid(2 u), and here 1 / (1 + 2^(-2 u log2(e))).
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] *= falling_sigmoid(x[i] * (-2.302208198144325f - 0.10294323460695953f * x[i] * x[i]));
    }
  } else if (activation == Activation::kSilu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] *= fast_sigmoid(x[i]);
  }
}

// Applies a function of long code, in a loop so that its code exists once: four values at a time, and the
// array is rotated past them, as registers cannot be indexed.
template <int kCount, typename F>
__device__ __forceinline__ void in_fours(float (&x)[kCount], F&& f) {
#pragma unroll 1
  for (int step = 0; step < kCount; step += 4) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = f(x[i]);
#pragma unroll
    for (int i = 0; i + 4 < kCount; ++i) x[i] = x[i + 4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[kCount - 4 + i] = y[i];
  }
}

template <int kCount>
__device__ __forceinline__ void activate_any(Activation activation, float (&x)[kCount]) {
  switch (activation) {
    case Activation::kNone:
      return;
    case Activation::kRelu:
    case Activation::kGelu:
    case Activation::kSilu:
      return activate_short(activation, x);
    case Activation::kSigmoid:
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = fast_sigmoid(x[i]);
      return;
    case Activation::kTanh:
      return in_fours(x, [](float v) { return activate(Activation::kTanh, v); });
    case Activation::kGeluErf:
      return in_fours(x, [](float v) { return activate(Activation::kGeluErf, v); });
  }
}

}  // namespace jaxgemm::cuda
