// Activations of gemm_swiglu's gate with their slopes.
#pragma once

#include <type_traits>

#include "cuda/parts/sigmoid.cuh"
#include "ops/gemm_swiglu_problem.h"

namespace tandem::cuda::gemm_swiglu {

/// f(z) and df/dz.
struct Gate {
  float value, slope;
};

/// Returns how likely a standard normal variable is to be above z >= 0, given e^(-z^2 / 2): erfc(z
/// / sqrt 2) / 2 by the Chebyshev fit of Numerical Recipes, with a relative error of 1e-7. why not
/// 1 - erf, which has no digits left at 4, nor erfcf, which takes more registers than there are.
__device__ inline float normal_tail(float z, float bell) {
  constexpr float kFit[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                            -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
  const float t = reciprocal(1.0f + 0.353553391f * z);
  float exponent = kFit[0];
#pragma unroll
  for (int i = 1; i < 10; ++i) exponent = fmaf(exponent, t, kFit[i]);
  return 0.5f * t * fast_exp2(exponent * kLog2E) * bell;
}

template <GateActivation kActivation>
__device__ Gate activate(float z) {
  if constexpr (kActivation == GateActivation::kSilu) {
    const Sigmoid s(z);
    return {z * s.value, s.value * (1.0f + z * s.complement)};
  } else if constexpr (kActivation == GateActivation::kGelu) {
    constexpr float kDensityAtZero = 0.398942280f;  // of the normal distribution
    const float bell = fast_exp2(-0.5f * z * z * kLog2E);
    const float tail = normal_tail(fabsf(z), bell);
    const float below = z < 0.0f ? tail : 1.0f - tail;
    return {z * below, below + z * kDensityAtZero * bell};
  } else if constexpr (kActivation == GateActivation::kGeluTanh) {
    // 1 + tanh(t) is 2 / (1 + e^-2t).
    constexpr float kScale = 1.595769122f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)
    const Sigmoid s(kScale * (z + kCubic * z * z * z));
    return {z * s.value,
            s.value * (1.0f + z * s.complement * kScale * (1.0f + 3.0f * kCubic * z * z))};
  } else {
    return {z < 0.0f ? 0.0f : z, z <= 0.0f ? 0.0f : 1.0f};  // a NaN passes both
  }
}

template <GateActivation kActivation>
using ActivationConstant = std::integral_constant<GateActivation, kActivation>;

/// Calls one(ActivationConstant<activation>()).
template <class One>
__device__ void with_activation(GateActivation activation, One one) {
  switch (activation) {
    case GateActivation::kSilu: return one(ActivationConstant<GateActivation::kSilu>());
    case GateActivation::kGelu: return one(ActivationConstant<GateActivation::kGelu>());
    case GateActivation::kGeluTanh: return one(ActivationConstant<GateActivation::kGeluTanh>());
    case GateActivation::kRelu: return one(ActivationConstant<GateActivation::kRelu>());
  }
}

}  // namespace tandem::cuda::gemm_swiglu
