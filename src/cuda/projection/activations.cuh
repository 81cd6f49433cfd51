// Activations of projection and their slopes, on a thread's values of a fragment.
#pragma once

#include "cuda/parts/sigmoid.cuh"
#include "cuda/projection/forward_params.h"

namespace tandem::cuda::projection {

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
__device__ void activate(const SegmentActivation& f, float (&z)[kCount]) {
  switch (f.kind) {
    case Activation::kSilu: return map(z, [](float x) { return x * Sigmoid(x).value; });
    case Activation::kSigmoid: return map(z, [](float x) { return Sigmoid(x).value; });
    case Activation::kLogSigmoid:
      return map(z, [&](float x) { return -softplus(-x) * f.inverse_divisor; });
    case Activation::kSoftplus:
      return map(z, [&](float x) {
        const float y = softplus(x);  // a NaN passes both comparisons
        return y < f.min ? f.min : y > f.max ? f.max : y;
      });
    default: return;
  }
}

/// z = df/dz.
template <int kCount>
__device__ void differentiate(const SegmentActivation& f, float (&z)[kCount]) {
  switch (f.kind) {
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
      return map(z, [&](float x) { return Sigmoid(x).complement * f.inverse_divisor; });
    case Activation::kSoftplus:
      return map(z, [&](float x) {
        const float y = softplus(x);
        return y < f.min || y > f.max ? 0.0f : Sigmoid(x).value;
      });
    default: return;
  }
}

}  // namespace tandem::cuda::projection
