// Activations of projection and their slopes, on a thread's values of a fragment.
//
// e^-|z| is never above 1, so nothing overflows, and a sigmoid's complement is as exact as itself.
#pragma once

#include "cuda/parts/exp2.cuh"
#include "cuda/projection/forward_params.h"

namespace tandem::cuda::projection {

/// 1 / (1 + e^-z) and 1 / (1 + e^z).
struct Sigmoid {
  float value, complement;

  explicit __device__ Sigmoid(float z) {
    const float e = fast_exp2(-fabsf(z) * kLog2E);
    const float r = reciprocal(1.0f + e);
    value = z < 0.0f ? e * r : r;
    complement = z < 0.0f ? r : e * r;
  }
};

/// log(1 + e^z).
__device__ inline float softplus(float z) {
  return (z < 0.0f ? 0.0f : z) + log1pf(fast_exp2(-fabsf(z) * kLog2E));
}

/// Replaces each z by one(z).
template <int kCount, class One>
__device__ void map(float (&values)[kCount], One one) {
#pragma unroll
  for (float& value : values) value = one(value);
}

/// z = f(z), for activations that take each value alone.
template <int kCount>
__device__ void activate(const ForwardSegment& segment, float (&z)[kCount]) {
  switch (segment.activation) {
    case Activation::kSilu: return map(z, [](float x) { return x * Sigmoid(x).value; });
    case Activation::kSigmoid: return map(z, [](float x) { return Sigmoid(x).value; });
    case Activation::kLogSigmoid:
      return map(z, [&](float x) { return -softplus(-x) * segment.inverse_divisor; });
    case Activation::kSoftplus:
      return map(z, [&](float x) {
        const float y = softplus(x);  // a NaN passes both comparisons
        return y < segment.min ? segment.min : y > segment.max ? segment.max : y;
      });
    default: return;
  }
}

/// z = df/dz.
template <int kCount>
__device__ void differentiate(const ForwardSegment& segment, float (&z)[kCount]) {
  switch (segment.activation) {
    case Activation::kSilu:
      return map(z, [](float x) {
        const Sigmoid s(x);
        return s.value * (1.0f + x * s.complement);
      });
    case Activation::kSigmoid:
      return map(z, [](float x) {
        const Sigmoid s(x);
        return s.value * s.complement;
      });
    case Activation::kLogSigmoid:
      return map(z, [&](float x) { return Sigmoid(x).complement * segment.inverse_divisor; });
    case Activation::kSoftplus:
      return map(z, [&](float x) {
        const float y = softplus(x);
        return y < segment.min || y > segment.max ? 0.0f : Sigmoid(x).value;
      });
    default: return;
  }
}

}  // namespace tandem::cuda::projection
