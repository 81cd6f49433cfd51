// Activations of projection and their slopes, on a thread's values of a fragment.
#pragma once

#include "cuda/parts/sigmoid.cuh"
#include "cuda/projection/forward_params.h"

namespace tandem::cuda::projection {

/// log(1 + u) of u in [0, 1], within 4e-7 of itself: u times the polynomial of degree 7 with the
/// least largest relative error (Remez).
__device__ inline float log_of_one_plus(float u) {
  constexpr float kCoefficients[] = {-0.008539208f, 0.044089634f, -0.107681714f, 0.177452415f,
                                     -0.244954631f, 0.332754791f, -0.499974042f, 0.999999821f};
  float value = 0.0f;
#pragma unroll
  for (const float coefficient : kCoefficients) value = fmaf(value, u, coefficient);
  return value * u;
}

/// log(1 + e^z).
__device__ inline float softplus(float z) {
  return (z < 0.0f ? 0.0f : z) + log_of_one_plus(fast_exp2(-fabsf(z) * kLog2E));
}

/// Replaces each z by one(z).
template <int kCount, class One>
__device__ void map(float (&values)[kCount], One one) {
#pragma unroll
  for (float& value : values) value = one(value);
}

/// The same of a fragment's values in its first `columns` at least, 32 columns at a time, by a loop
/// that turns the registers. why: code that a tile runs once takes as long as its instructions take
/// to come, and such activations stand in few, mostly narrow, tiles.
template <int kCount, class One>
__device__ void map_in_turn(float (&values)[kCount], int columns, One one) {
  constexpr int kAtOnce = 16;
  if constexpr (kCount <= kAtOnce) return map(values, one);
  static_assert(kCount % kAtOnce == 0 || kCount < kAtOnce);
#pragma unroll 1
  for (int first = 0; first < 2 * kCount; first += 2 * kAtOnce) {
    float now[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) now[i] = values[i];
    if (first < columns) map(now, one);
#pragma unroll
    for (int i = kAtOnce; i < kCount; ++i) values[i - kAtOnce] = values[i];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) values[kCount - kAtOnce + i] = now[i];
  }
}

/// z = f(z), for activations that take each value alone. Of a fragment's values those behind its
/// first `columns` may stay as they are.
template <int kCount>
__device__ void activate(const SegmentActivation& f, float (&z)[kCount], int columns = 2 * kCount) {
  switch (f.kind) {
    case Activation::kSilu: return map(z, [](float x) { return x * Sigmoid(x).value; });
    case Activation::kSigmoid: return map(z, [](float x) { return Sigmoid(x).value; });
    case Activation::kLogSigmoid:
      return map_in_turn(z, columns, [&](float x) { return -softplus(-x) * f.inverse_divisor; });
    case Activation::kSoftplus:
      return map_in_turn(z, columns, [&](float x) {
        const float y = softplus(x);  // a NaN passes both comparisons
        return y < f.min ? f.min : y > f.max ? f.max : y;
      });
    default: return;
  }
}

/// z = df/dz, as activate().
template <int kCount>
__device__ void differentiate(const SegmentActivation& f, float (&z)[kCount],
                              int columns = 2 * kCount) {
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
      return map_in_turn(z, columns,
                         [&](float x) { return Sigmoid(x).complement * f.inverse_divisor; });
    case Activation::kSoftplus:
      return map_in_turn(z, columns, [&](float x) {
        const float y = softplus(x);
        return y < f.min || y > f.max ? 0.0f : Sigmoid(x).value;
      });
    default: return;
  }
}

}  // namespace tandem::cuda::projection
